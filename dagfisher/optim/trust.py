"""From solved gradients to natural gradients, and a bound on how far one step may change the distribution."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch import foreach_norm
from .layer import Refreshed, TrainedLayer
from .settings import AUTO, DEFAULTS, chosen, plain

TINY = 1e-30
"""Below what is compared."""


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
    """What its length in the Fisher metric was multiplied by, at most 1."""
    shortened: Tensor
    """Whether any of its layers was shortened."""
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
NATS = 0.06
"""The bound that is found by itself, for each random variable of a stochastic layer."""
MOST_SHARED, MOST_TOGETHER = 32.0, 16.0
"""The most that it is for layers that share it, and for layers that act together."""
CHANGE = 0.5
"""The sum over the layers of how much of its weights each may change at a step, where some are deterministic."""
USUAL_SQUARES = 1 / 3
"""The sum of squares of the weights of a unit as torch initialises it."""


def bounded(
    found: list[Natural], fresh: Container[TrainedLayer]
) -> tuple[list[Tensor], list[Tensor | None], dict[int, Step]]:
    """Turn each vector, in place, into the natural gradient, shortened where a group's would pass its bound.

    The natural gradient is v = s·x with s = 1 + α. Where each layer finds its own damping and none is deterministic, s
    is 1, so that a layer with a large damping does not use up the bound of all. The solve has given
    vᵀ(αI + F)v = s² x·g, which is at least vᵀFv; half of it is the Kullback-Leibler divergence of the whole step −v to
    second order. A step −lr·v then has at most lr² of the bound, so that a falling rate makes steps shorter. A rate
    above 1 makes the bound smaller. No host synchronisation.

    All layers of a group are shortened alike. But where s is 1, the divergences of the layers are independent of each
    other and just add up: the layers share the bound (`_shared`). And where some layers are deterministic and find
    their damping, none may change much of its weights at once (`_gentle`), unless Adam's moments rescale the steps.

    A Fisher can become wrong while it is kept. If the divergence of a whole step is more than `BRAKE` times what it was
    when the Fisher was made, and more than the bound, it adds nothing to the momentum.

    Args:
        found: of all layers.
        fresh: the layers that this step refreshes.

    Returns:
        x·g of each layer, which is not finite if an entry of its vector is not; what each layer was shortened by, None
        without a trust region; and what was done to each group with one, by the id of the group.
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
    steps: dict[int, Step] = {}
    factors: list[Tensor | None] = [None] * len(found)
    for key, members in groups.items():
        own = [found[i] for i in members]
        together = 0 if exact else len(found)
        each, steps[key] = _shortened(own, [products[i] for i in members], [sizes[i] for i in members], together, fresh)
        for i, shortening in zip(members, each.unbind(), strict=True):
            vector = found[i].vector
            factors[i] = factor = shortening.to(vector.device, vector.dtype)
            vector.mul_(factor * sizes[i])
    return products, factors, steps


def _shortened(
    found: list[Natural], products: list[Tensor], sizes: list[float], together: int, fresh: Container[TrainedLayer]
) -> tuple[Tensor, Step]:
    """The factors by which the layers of one group are shortened, and what that does to the step.

    Args:
        found: of the layers of the group, the vectors still x.
        products: x·g of each.
        sizes: s of each.
        together: the layers that have a gradient, if some are deterministic; otherwise 0.
        fresh: the layers that this step refreshes.
    """
    layers, device = [m.layer for m in found], found[0].vector.device
    group, reference = layers[0].group, layers[0].reference
    groups = {id(each): each for layer in layers for each in layer.groups}.values()
    rate = max(plain(each["lr"]) for each in groups)
    halves = tuple(0.5 * (max(1.0, rate) * size) ** 2 for size in sizes)
    forms = torch.stack([product.to(device, torch.float32) for product in products])
    # A divergence that is zero, or by rounding less, leaves the step as it is.
    divergences = (forms * _on_device(halves, device)).clamp_min_(TINY)
    divergence = divergences.sum()
    apart = layers[0].finds_damping and not together
    most = _bound(group, layers, apart)
    alike = (most / divergence).sqrt_().clamp_max_(1.0)
    factors = _shared(divergences, most) if apart else alike.expand(len(found))
    if layers[0].finds_damping and together and group["betas"] is None:
        reach = max(plain(each["lr"]) / (1 - plain(chosen(each, "momentum"))) for each in groups)
        factors = factors * _gentle(found, factors, reach, together)
    refreshed = any(layer in fresh for layer in layers)
    usual = divergence / max(1.0, rate) ** 2
    if reference is not None and not refreshed:
        # A step that is inside the region is harmless, however small those of the refresh were.
        factors = factors * ((divergence <= most) | (usual <= BRAKE * reference.to(device)))
    factor = ((divergences * factors.square()).sum() / divergence).sqrt_().nan_to_num_(0.0)
    return factors, Step(usual, factor, (factors < 1).any(), refreshed, plain(group["lr"]))


def _bound(group: dict[str, Any], layers: list[TrainedLayer], apart: bool) -> float:
    """ε of a group with these layers, in nats: as it is given, or by the number of their random variables.

    Of layers that are `apart` it is the sum of what each may have, and of others the mean.
    """
    given = chosen(group, "trust_region")
    if given != AUTO:
        return float(plain(given))
    stochastic = [layer.variables for layer in layers if not layer.deterministic]
    counts = stochastic or [layer.variables for layer in layers]
    return min(NATS * sum(counts), MOST_SHARED) if apart else min(NATS * sum(counts) / len(counts), MOST_TOGETHER)


def _shared(divergences: Tensor, most: float) -> Tensor:
    """The factors by which layers are shortened that have `most` together.

    Each may have as much as any other. What is left by those that want less goes to the others: with the level t at
    which Σ min(divergence, t) = most, no layer has more than t.
    """
    ascending = divergences.sort().values
    # Not the difference of a sum and its last part, which would lose digits.
    below: Tensor = torch.nn.functional.pad(ascending[:-1], (1, 0)).cumsum(0)
    level: Tensor = ((most - below) / _on_device(tuple(range(len(below), 0, -1)), below.device)).amax()
    return (level / divergences).sqrt_().clamp_max_(1.0)


def _gentle(found: list[Natural], before: Tensor, reach: float, count: int) -> Tensor:
    """Further factors, by which none of `count` layers changes more than its part of `CHANGE` of its weights at once.

    The Fisher matrix of a deterministic layer says what its units do to the outputs now. Where they do next to nothing,
    because those above do nothing yet, divergences bound nothing: all of them may wake up together, within a few steps.
    A function of many layers stays near to what it was if no layer changes by a large part of itself.

    Args:
        found: of the layers of a group, the vectors still x.
        before: the factors so far.
        reach: how far vectors of one direction go, by rate and momentum together.
        count: of all layers that have a gradient.
    """
    device = before.device
    norms = foreach_norm([*(m.vector for m in found), *(m.layer.parameters[0].detach() for m in found)])
    vectors, weights = torch.stack([norm.to(device, torch.float32) for norm in norms]).view(2, -1)
    weights = torch.maximum(weights, _on_device(tuple((USUAL_SQUARES * len(m.gradient)) ** 0.5 for m in found), device))
    changes = vectors * before * _on_device(tuple(1 + m.damping for m in found), device) * reach
    factors: Tensor = weights * (CHANGE / count) / changes.clamp_min_(TINY)
    return factors.clamp_max_(1.0)


@lru_cache(maxsize=1024)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """The numbers as a tensor; those of steps that reuse a Fisher at one rate are sent once."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def squared_lengths(found: list[Natural], factors: list[Tensor | None]) -> dict[Tensor, Tensor]:
    """vᵀMv of the natural gradients that `bounded` gave, for layers whose second moment is of units or layers.

    M = (αI + F)/s is the metric of v = f·s·(αI + F)⁻¹g, which the trust region shortened by f, so that vᵀMv = f·gᵀv.
    Logits that are coupled are one unit.

    Args:
        found: of all layers, after `bounded`.
        factors: what `bounded` shortened each by.

    Returns:
        For each trained parameter of these layers, the number of its unit or layer in every element.
    """
    squares: dict[Tensor, Tensor] = {}
    for (layer, gradient, vector, _), factor in zip(found, factors, strict=True):
        kind = layer.group["second_moment"]
        if kind == DEFAULTS.second_moment:
            continue
        size = layer.declaration.coupled if kind == "unit" else len(gradient)
        # By rounding, or by a solve that is not exact, it could be less than 0 where it is nearly 0.
        lengths = (gradient * vector).sum(1).reshape(-1, size).sum(1).clamp_min_(0)
        if factor is not None:
            lengths = lengths * factor
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
            count = step.shortened.long()
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
