"""From solved gradients to natural gradients, and a bound on how far one step may change the distribution."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .layer import Refreshed, TrainedLayer
from .settings import AUTO, DEFAULTS, chosen, plain


class Natural(NamedTuple):
    """A layer's gradient g and x = (αI + F)⁻¹ g, which `bounded` turns into the natural gradient."""

    layer: TrainedLayer
    gradient: Tensor
    vector: Tensor
    damping: float


class Step(NamedTuple):
    """What the trust region of one param group did to one step."""

    divergence: Tensor
    """Of the whole step, at a rate of 1 and before it was shortened, in nats."""
    factor: Tensor
    """What it was shortened by, at most 1."""
    refreshed: bool
    """Whether a layer of the group was."""
    lr: float
    """Of the group at this step."""


class Vectors(NamedTuple):
    """What parameters are to move along at one step, before moments and rates, and what was found on the way."""

    vectors: dict[Tensor, Tensor]
    """Of every parameter with a gradient."""
    squares: dict[Tensor, Tensor]
    """What `squared_lengths` gives."""
    whole: list[Tensor]
    """Tensors whose sums are not finite if a vector is not."""
    fresh: dict[TrainedLayer, Refreshed]
    """The inverse Fishers that this step made."""
    bounds: dict[int, Step]
    """What the trust region did to each group, by the id of the group."""


BRAKE = 30.0
"""A step whose divergence is so many times that of the last refresh comes from a Fisher that is out of date."""
NATS, MOST_NATS = 0.06, 16.0
"""The bound that is found by itself: nats for each random variable of a stochastic layer, the mean over the layers,
and the most in all."""


def bounded(found: list[Natural], fresh: Container[TrainedLayer]) -> tuple[list[Tensor], dict[int, Step]]:
    """Turn each vector, in place, into the natural gradient, shortened where a group's would pass its bound.

    The natural gradient is v = s·x with s = 1 + α. Where each layer finds its own damping and none is deterministic, s
    is 1, so that a layer with a large damping does not use up the bound of all. The solve has given
    vᵀ(αI + F)v = s² x·g, which is at least vᵀFv; half of it is the Kullback-Leibler divergence of the whole step −v to
    second order. A step −lr·v then has at most lr² of the bound, so that a falling rate makes steps shorter. A rate
    above 1 makes the bound smaller. No host synchronisation.

    A Fisher can become wrong while it is kept. If the divergence of a whole step is more than `BRAKE` times what it was
    when the Fisher was made, and more than the bound, it adds nothing to the momentum.

    Args:
        found: of all layers.
        fresh: the layers that this step refreshes.

    Returns:
        x·g of each layer, which is not finite if an entry of its vector is not; and what was done to each group with a
        trust region, by the id of the group.
    """
    products = [torch.dot(m.gradient.reshape(-1), m.vector.reshape(-1)) for m in found]
    exact = not any(m.layer.deterministic for m in found)
    sizes = [1.0 if exact and m.layer.finds_damping else 1 + m.damping for m in found]
    groups: dict[int, list[int]] = {}
    for i, m in enumerate(found):
        if chosen(m.layer.group, "trust_region") is None:
            m.vector.mul_(sizes[i])
        else:
            groups.setdefault(id(m.layer.group), []).append(i)
    steps = {}
    for key, members in groups.items():
        group, device = found[members[0]].layer.group, found[members[0]].vector.device
        rate = max(1.0, *(plain(each["lr"]) for i in members for each in found[i].layer.groups))
        halves = tuple(0.5 * (rate * sizes[i]) ** 2 for i in members)
        forms = torch.stack([products[i].to(device, torch.float32) for i in members])
        divergence = forms @ _on_device(halves, device)
        # A divergence that is zero, or by rounding less, leaves the step as it is.
        most = _bound(group, [found[i].layer for i in members]) * min(found[i].layer.pace.trust for i in members)
        factor = (most / divergence.clamp_min(1e-30)).sqrt_().clamp_max_(1.0)
        refreshed = any(found[i].layer in fresh for i in members)
        reference = found[members[0]].layer.reference
        if reference is not None and not refreshed:
            # A step that is inside the region is harmless, however small those of the refresh were.
            factor = factor * ((divergence <= most) | (divergence / rate**2 <= BRAKE * reference.to(device)))
        steps[key] = Step(divergence / rate**2, factor, refreshed, plain(group["lr"]))
        for i in members:
            vector, scale = found[i].vector, factor.to(found[i].vector.dtype) * sizes[i]
            vector.mul_(scale if scale.device == vector.device else scale.to(vector.device))
    return products, steps


def _bound(group: dict[str, Any], layers: list[TrainedLayer]) -> float:
    """ε of a group with these layers, in nats: as it is given, or by the number of their random variables."""
    given = chosen(group, "trust_region")
    if given != AUTO:
        return float(plain(given))
    stochastic = [layer.variables for layer in layers if not layer.deterministic]
    counts = stochastic or [layer.variables for layer in layers]
    return min(NATS * sum(counts) / len(counts), MOST_NATS)


@lru_cache(maxsize=64)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """The numbers as a tensor; those of steps that reuse a Fisher at one rate are sent once."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def squared_lengths(found: list[Natural], steps: dict[int, Step]) -> dict[Tensor, Tensor]:
    """vᵀMv of the natural gradients that `bounded` gave, for layers whose second moment is of units or layers.

    M = (αI + F)/s is the metric of v = f·s·(αI + F)⁻¹g, which the trust region shortened by f, so that vᵀMv = f·gᵀv.
    Logits that are coupled are one unit.

    Args:
        found: of all layers, after `bounded`.
        steps: what `bounded` did to each group.

    Returns:
        For each trained parameter of these layers, the number of its unit or layer in every element.
    """
    squares: dict[Tensor, Tensor] = {}
    for layer, gradient, vector, _ in found:
        kind = layer.group["second_moment"]
        if kind == DEFAULTS.second_moment:
            continue
        size = layer.declaration.coupled if kind == "unit" else len(gradient)
        # By rounding, or by a solve that is not exact, it could be less than 0 where it is nearly 0.
        lengths = (gradient * vector).sum(1).reshape(-1, size).sum(1).clamp_min_(0)
        if id(layer.group) in steps:
            lengths = lengths * steps[id(layer.group)].factor.to(lengths)
        split = layer.split(lengths.repeat_interleave(size).unsqueeze(1).expand_as(vector))
        squares.update({p: square.to(p.dtype) for p, square in split.items()})
    return squares


class TrustRegions:
    """What the trust regions of an optimizer's groups have done."""

    def __init__(self) -> None:
        self._last: dict[int, Step] = {}
        self._shortened: dict[int, Tensor] = {}

    def keep(self, steps: dict[int, Step]) -> None:
        """Note a step that was taken; never waits for the device."""
        self._last.update(steps)
        for key, step in steps.items():
            count = (step.factor < 1).long()
            before = self._shortened.get(key)
            self._shortened[key] = count if before is None else before.to(count.device) + count

    def described(self, group: dict[str, Any]) -> dict[str, float]:
        """Divergence and factor of the group's last step, and how many steps were shortened; reads the device."""
        last = self._last.get(id(group))
        if last is None:
            return {}
        divergence, factor = torch.stack([last.divergence, last.factor]).tolist()
        length = last.lr * factor
        shortened = int(self._shortened[id(group)])
        return {"divergence": divergence * length**2, "factor": factor, "shortened": shortened}
