"""What an optimizer with declared layers shows of itself: its layers, their memory, its settings."""

from __future__ import annotations

from ..declaration import Declaration
from .layer import TrainedLayer
from .saving import SavedOptimizer


class ShownOptimizer(SavedOptimizer):
    """An optimizer that can be printed and asked about its layers."""

    def memory_usage(self) -> dict[str, int]:
        """Bytes that each layer keeps, by its name: its prepared solver and what is staged for the coming step."""
        usage: dict[str, int] = {}
        for layer in self._layers:
            name, copies = layer.name.strip("'"), 1
            while (label := name if copies == 1 else f"{name} ({copies})") in usage:
                copies += 1
            usage[label] = layer.nbytes()
        return usage

    def __repr__(self) -> str:
        lines = [f"DAGNaturalGradient (step {self._step})"]
        for layer in self._layers:
            lines.append(f"  {layer!r}")
        plain = sum(len(group["params"]) for group in self.param_groups) - len(self._declared)
        if plain:
            rules = "/".join(sorted({str(group["undeclared"]) for group in self.param_groups}))
            lines.append(f"  {plain} undeclared parameters: {rules}")
        for i, group in enumerate(self.param_groups):
            settings = ", ".join(f"{k}={group[k]}" for k in group if k not in ("params", "param_names"))
            lines.append(f"  group {i}: {settings}")
        return "\n".join(lines)

    def layer_of(self, declaration: Declaration) -> TrainedLayer | None:
        """The declared layer as this optimizer trains it, if it does; for tables."""
        return next((layer for layer in self._layers if layer.declaration is declaration), None)
