"""What an optimizer with declared layers shows of itself: its layers, their memory, its settings."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..declaration import Declaration
from .examples import ExampleNorms
from .joining import JoinableOptimizer
from .layer import TrainedLayer
from .settings import plain


class ShownOptimizer(JoinableOptimizer):
    """An optimizer that can be printed and asked about its layers."""

    def memory_usage(self) -> dict[str, int]:
        """Bytes that each layer keeps, by its name: its prepared solver and what is staged for the coming step."""
        return {name: layer.nbytes() for name, layer in self.named_layers().items()}

    def example_norms(self, examples: Tensor | None = None) -> ExampleNorms:
        """A block that finds how long the gradient of each example of a minibatch is, without a pass per example.

        ``with opt.example_norms() as norms:`` run the minibatch and its ``backward()``; afterwards ``norms.gradient``
        is ‖g_n‖, ``norms.natural`` ‖F̃⁻¹g_n‖ and ``norms.fisher`` √(g_nᵀF̃⁻¹g_n), g_n the gradient of the loss of
        example n alone. Where examples have weights in the loss, divide by them.

        Args:
            examples: the number of its example for each sample, 0 to n − 1, where examples have several samples
                (equally many); a layer that runs once for each example needs none. None: each sample is an example.
        """
        return ExampleNorms(self._layers, examples)

    def diagnostics(self) -> dict[str, Any]:
        """What the last step did, as plain numbers; reads them from the device.

        Returns:
            ``step``: the steps taken; ``groups``: for each param group its ``lr``, its ``damping``, which is the
            geometric mean over its layers (once one has a Fisher), and, with a trust region, the ``divergence`` of the
            last step in nats (to second order), the ``factor`` of its length in that metric (1: whole), and how many
            steps were ``shortened`` so far, in any layer; ``layers``: for each layer by name its ``damping``,
            ``solver``, the step at which it was ``refreshed``, ``ratio``, the curvature that fresh samples found at
            that refresh over the predicted one (None if the damping is given), and ``failures``, refreshes in a row
            whose blocks could not be inverted.
        """
        groups = [
            {"lr": plain(group["lr"]), **self._damping_of(group), **self._regions.described(group)}
            for group in self.param_groups
        ]
        layers = {
            name: {
                "damping": None if layer.fisher is None else layer.fisher.damping,
                "solver": layer.solver,
                "refreshed": layer.refreshed,
                "ratio": layer.ratio,
                "failures": layer.failures,
            }
            for name, layer in self.named_layers().items()
        }
        return {"step": self._step, "groups": groups, "layers": layers}

    def _damping_of(self, group: dict[str, Any]) -> dict[str, float]:
        """The geometric mean of the dampings of a group's layers; nothing if none has a Fisher yet."""
        found = [layer.fisher.damping for layer in self._layers if layer.group is group and layer.fisher is not None]
        if not found:
            return {}
        return {"damping": math.exp(sum(map(math.log, found)) / len(found)) if min(found) else 0.0}

    def communication(self) -> dict[str, Any]:
        """What this process last received from the others, gradients that DistributedDataParallel averages left out.

        Returns:
            ``processes``: how many train together; ``refresh`` and ``reuse``: of the last step that refreshed, and of
            the last one that did not, the ``messages`` and their ``bytes``. A message that gathers s bytes in all
            counts (W − 1)/W · s for W processes, and one that sums s bytes 2(W − 1)/W · s, as ring algorithms have it.
        """
        kinds = {kind: {"messages": t.messages, "bytes": t.received} for kind, t in self._traffic.items()}
        return {"processes": self._processes.size, **kinds}

    def named_layers(self) -> dict[str, TrainedLayer]:
        """The declared layers as this optimizer trains them, by names that differ; for inspection."""
        found: dict[str, TrainedLayer] = {}
        for layer in self._layers:
            name, copies = layer.name.strip("'"), 1
            while (label := name if copies == 1 else f"{name} ({copies})") in found:
                copies += 1
            found[label] = layer
        return found

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
