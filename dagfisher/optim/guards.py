"""Gradients, and the vectors made of them, are checked before any parameter moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..capture import compute_dtype
from ..errors import GradientError, NonFiniteError
from .layer import TrainedLayer


def require_dense(groups: list[dict[str, Any]], names: dict[int, str]) -> None:
    """Raise on a gradient that is sparse or complex."""
    for group in groups:
        for index, p in enumerate(group["params"]):
            if p.grad is not None and (p.grad.layout != torch.strided or p.grad.is_complex()):
                kind = "complex" if p.grad.is_complex() else "sparse"
                raise GradientError(
                    f"parameter {names.get(id(p), index)} has a {kind} gradient, which cannot be applied here; "
                    f"build its module with sparse=False, or give it to an optimizer of torch.optim."
                )


def blame(
    vectors: dict[Tensor, Tensor], groups: list[dict[str, Any]], layers: list[TrainedLayer], names: dict[int, str]
) -> str:
    """Which layer or parameter has a gradient that is not finite, or, if all are, a vector made of them."""
    gradients = {p: p.grad for p in vectors if p.grad is not None}
    for what, suspects in (("gradient", gradients), ("natural gradient", vectors)):
        for group in groups:
            for index, p in enumerate(group["params"]):
                if p not in suspects or bool(suspects[p].isfinite().all()):
                    continue
                layer = next((la for la in layers if any(q is p for q in la.parameters)), None)
                place = f"layer {layer.name}" if layer else f"parameter {names.get(id(p), index)}"
                return (
                    f"{place}: its {what} holds an infinity or a NaN; no parameter has moved. Look at the data, "
                    f"lower the learning rate, or raise the damping."
                )
    return "the gradients are finite, but their sum overflows; no parameter has moved. Look at the scale of the loss."


class FiniteGuard:
    """Lets no infinity or NaN reach a parameter, without making an accelerator wait on a step that reuses."""

    def __init__(self) -> None:
        self._skipped: Tensor | None = None

    def require(
        self, vectors: dict[Tensor, Tensor], whole: list[Tensor], *, refreshing: bool, blamed: Callable[[], str]
    ) -> dict[torch.device, Tensor]:
        """Raise on an infinity or a NaN; an accelerator that reuses skips the step and the next refresh raises.

        `whole` are the tensors that `vectors` are views of. What is returned says of each accelerator whether its
        parameters may move.
        """
        gates: dict[torch.device, Tensor] = {}
        for device in {v.device for v in whole}:
            here = [v for v in whole if v.device == device and v.numel()]
            if not here:
                continue
            # A sum is infinite or NaN if a term is; it is taken where half precision does not overflow.
            flag = torch.stack([v.sum(dtype=compute_dtype(v)).float() for v in here]).isfinite().all()
            if _reads_freely(device) or refreshing:
                # tolist() of a CPU tensor reads memory: no dispatch, no synchronisation.
                if not flag.reshape(1).tolist()[0]:
                    raise NonFiniteError(blamed())
                continue
            self._skipped = ~flag if self._skipped is None else self._skipped | ~flag.to(self._skipped.device)
            gates[device] = flag
            for p, v in vectors.items():
                if v.device == device:
                    vectors[p] = torch.where(flag, v, torch.zeros_like(v))
        if refreshing and self._skipped is not None:
            skipped, self._skipped = bool(self._skipped), None
            if skipped:
                raise NonFiniteError(
                    "a gradient since the last refresh held an infinity or a NaN; those steps moved nothing. "
                    "Look at the data and the learning rate."
                )
        return gates


def _reads_freely(device: torch.device) -> bool:
    """Whether the host reads this device's memory without waiting for it."""
    return device.type == "cpu"
