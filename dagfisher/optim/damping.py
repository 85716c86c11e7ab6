"""Damping that follows the curvature which the loss shows along the natural gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import SettingError
from .distributed import mean_over_processes
from .trust import Natural

Losses = Callable[[], Tensor | float | Sequence[Tensor | float]]
"""A function that gives the loss of a minibatch, or one loss for each param group."""

TARGET = 0.6
"""The curvature of the loss that is to be found, over the predicted one."""
MOST = 2.0
"""One adaptation multiplies or divides the damping by at most this."""
LEAST, LARGEST = 1e-4, 1e4
"""The bounds of an adapted damping."""
PROBE = 0.01
"""Half of Δᵀ(αI + F)Δ, in nats, of the probing step Δ: like that of a training step, and far above rounding."""


@torch.no_grad()
def curvature_ratios(
    found: list[Natural],
    losses: Losses,
    groups: list[dict[str, Any]],
    process_group: dist.ProcessGroup | None = None,
) -> list[float]:
    """For each group, the second-order change of the loss along the natural gradient, found over predicted.

    The loss is read a short way to either side, so that its slope, and with it the noise of the gradient, cancels:
    (L(θ + Δ) + L(θ − Δ) − 2L(θ)) / Δᵀ(αI + F)Δ. NaN for a group whose natural gradient is zero.
    """
    if not callable(losses):
        raise SettingError(
            f"adapt_damping needs a function that gives the loss at the parameters as they are then, not a "
            f"{type(losses).__name__}: adapt_damping(lambda: loss_of(model, batch))."
        )
    moves: dict[Tensor, Tensor] = {}
    predicted = [0.0] * len(groups)
    for i, group in enumerate(groups):
        members = [m for m in found if m.layer.group is group]
        forms = [float((m.gradient * m.vector).sum()) * (1 + m.damping) for m in members]
        length = math.sqrt(2 * PROBE / sum(forms)) if sum(forms) > 0 else 0.0
        predicted[i] = sum(forms) * length**2
        for m in members:
            moves.update({p: (length * v).to(p.dtype) for p, v in m.layer.split(m.vector).items()})
    kept = {p: p.clone() for p in moves}
    readings = []
    try:
        for side in (0, 1, -1):
            for p, move in moves.items():
                p.copy_(kept[p] + side * move)
            readings.append(_read(losses(), len(groups)))
    finally:
        for p, value in kept.items():
            p.copy_(value)
    if process_group is not None and kept:
        readings = mean_over_processes(readings, next(iter(kept)).device, process_group)
    changes = [ahead + back - 2 * here for here, ahead, back in zip(*readings, strict=True)]
    if len(changes) == 1:
        changes, predicted = changes * len(groups), [sum(predicted)] * len(groups)
    return [c / expected if expected > 0 else math.nan for c, expected in zip(changes, predicted, strict=True)]


def _read(given: Any, groups: int) -> list[float]:
    """The loss of all groups together, or the losses of each."""
    each = list(given) if isinstance(given, (list, tuple)) else [given]
    sound = all(loss.numel() == 1 if isinstance(loss, Tensor) else isinstance(loss, (int, float)) for loss in each)
    if len(each) not in (1, groups) or not sound:
        raise SettingError(f"adapt_damping needs a function that gives one loss, or one for each of {groups} groups.")
    return [float(loss) for loss in each]


def adapted(damping: float, ratio: float, target: float = TARGET, least: float = LEAST) -> float:
    """The damping at which about `target` of the predicted curvature should be found."""
    if math.isnan(ratio):
        return damping
    return min(max(damping * min(max(ratio / target, 1 / MOST), MOST), least), LARGEST)


def targets(given: float | Sequence[float], groups: int) -> list[float]:
    """A target for each group."""
    each = [given] * groups if isinstance(given, (int, float)) else list(given)
    if len(each) != groups or not all(target > 0 for target in each):
        raise SettingError(f"adapt_damping needs a positive target, or one for each of {groups} groups.")
    return each
