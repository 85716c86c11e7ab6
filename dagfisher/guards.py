"""What stands in `.grad` is looked at before any parameter moves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .bound import BoundLayer
from .errors import GradientError


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
    vectors: dict[Tensor, Tensor], groups: list[dict[str, Any]], layers: list[BoundLayer], names: dict[int, str]
) -> str:
    """Which layer or parameter has a vector that is not finite, and whether its gradient is to blame."""
    for group in groups:
        for index, p in enumerate(group["params"]):
            if p in vectors and not bool(vectors[p].isfinite().all()):
                layer = next((la for la in layers if any(q is p for q in la.parameters)), None)
                place = f"layer {layer.name}" if layer else f"parameter {names.get(id(p), index)}"
                grads = [q.grad for q in (layer.parameters if layer else [p]) if q.grad is not None]
                what = "natural gradient" if all(bool(g.isfinite().all()) for g in grads) else "gradient"
                return (
                    f"{place}: its {what} holds an infinity or a NaN; no parameter has moved. Look at the data, "
                    f"lower the learning rate, or raise the damping."
                )
    return "the gradients are finite, but their sum overflows; no parameter has moved. Look at the scale of the loss."
