"""A bound on how far one step may change the distribution."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import SettingError
from .layer import TrainedLayer
from .settings import plain


class Natural(NamedTuple):
    """A layer's gradient g, and its natural gradient v = (1 + α)(αI + F)⁻¹ g."""

    layer: TrainedLayer
    gradient: Tensor
    vector: Tensor
    damping: float


def limit(found: list[Natural]) -> None:
    """Shorten, in place, the natural gradients of each group whose step would pass its `trust_region`.

    For the step Δ = −lr·v the solve has given Δᵀ(αI + F)Δ = lr² (1 + α) v·g, which is at least ΔᵀFΔ; half of it is the
    Kullback-Leibler divergence of the step to second order. No host synchronisation.
    """
    groups: dict[int, list[Natural]] = {}
    for natural in found:
        layer = natural.layer
        if layer.group["trust_region"] is None:
            continue
        if any(group["lr"] != layer.group["lr"] for group in layer.groups):
            raise SettingError(
                f"layer {layer.name}: its weight and bias have different learning rates, so that a trust_region cannot "
                f"be kept; give both the same, or no trust_region."
            )
        groups.setdefault(id(layer.group), []).append(natural)
    for members in groups.values():
        group = members[0].layer.group
        device = members[0].vector.device
        parts = [((1 + m.damping) * (m.gradient * m.vector).sum()).to(device).float() for m in members]
        divergence = 0.5 * plain(group["lr"]) ** 2 * torch.stack(parts).sum()
        # A divergence that is zero, or by rounding less, leaves the step as it is.
        factor = (plain(group["trust_region"]) / divergence.clamp_min(1e-30)).sqrt().clamp_max(1.0)
        for m in members:
            m.vector.mul_(factor.to(m.vector))
