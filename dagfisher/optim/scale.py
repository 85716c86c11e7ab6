"""Whether the loss has the scale of a negative log-likelihood: summed over units, averaged over samples.

The gradient that arrives at the output of a stochastic layer is then w_k · score, with w_k the weight of the sample,
and a score has the variance q. So the gradient of each sample, over the square root of w_k² Σ_j q_jk, is about 1. A
loss that is summed over n samples makes it n times as large, one that is averaged over l units l times too small, for
all samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._reading import Asking, joint
from ..capture import Pass, Pending
from ..families import Bernoulli, Categorical, Gaussian, Poisson
from .layer import TrainedLayer

LEAST = 8
"""Samples below which a sum over them is not told from chance."""
LEAST_UNITS = 30
"""Units below which a mean over them is not told from chance."""
FACTOR = 3.0
"""How far the scale may be from a sum or a mean to be taken for it."""
SPREAD = 4.0
"""How far apart the scales of single samples may be; a loss that weights samples by more is of another kind."""


def look_at_scale(layers: list[TrainedLayer]) -> Asking[list[str]]:
    """A warning for each kind of loss on another scale that the gradients of some layers look like; asks once."""
    found: dict[str, list[str]] = {}
    sentences = yield from joint([_suspicion(layer) for layer in layers])
    for layer, sentence in zip(layers, sentences, strict=True):
        if sentence is not None:
            found.setdefault(sentence, []).append(layer.name)
    return [f"layer {', '.join(names)}: {sentence}" for sentence, names in found.items()]


def _suspicion(layer: TrainedLayer) -> Asking[str | None]:
    family, (_, bias) = layer.declaration.family, layer.declaration.parameters
    known = isinstance(family, (Bernoulli, Categorical, Poisson)) or (isinstance(family, Gaussian) and family.std)
    if not known or bias is None or bias.grad is None or layer.declaration.reading.calls == "positions":
        return None
    passes = [p for p in layer.recorder.passes if p.backward is not None and p.backward.ran]
    scales = [s for p in passes if (s := _scales(p)) is not None]
    sums = [p.received.sums for p in passes if p.received is not None and p.received.sums is not None]
    if not scales or len(sums) != len(passes) or bias.grad.shape != sums[0].shape:
        return None
    total = torch.stack([p.sample_weights.sum() for p in passes]).sum().double()
    scale = torch.cat(scales)[:100_000] * total
    quantiles = [torch.nanquantile(scale, share) for share in (0.1, 0.5, 0.9)]
    low, middle, high, explained = yield torch.stack([*quantiles, _explains(bias.grad, sums).double()])
    samples, units = sum(p.samples.numel() for p in passes), _outputs(passes[0])
    # Scaled or clipped gradients, or other terms of the loss: nothing can be said.
    if not explained or not 0 < high < SPREAD * low or not math.isfinite(high):
        return None
    if layer.group["loss_reduction"] == "sum":
        samples = 1
    if samples >= LEAST and samples / FACTOR < middle < samples * FACTOR:
        return (
            f"the gradient looks like that of a loss that is summed over its {samples} samples (about {middle:.0f} "
            f"times what the mean over them gives). Divide the loss by {samples}, or give the optimizer "
            f"loss_reduction='sum'."
        )
    if units >= LEAST_UNITS and 1 / FACTOR < middle * units < FACTOR:
        return (
            f"the gradient looks like that of a loss that is averaged over units (about 1/{1 / middle:.0f} of what the "
            f"sum over them gives). Sum it over the {units} units of a sample: multiply the loss by {units}."
        )
    return None


def _outputs(each: Pass) -> int:
    """The units of one sample, over all positions."""
    return each.shape.numel() // max(each.samples.numel(), 1)


def _scales(each: Pass) -> Tensor | None:
    """The gradient of each sample over the square root of w² Σ q, without the sum of all weights; None if unknown.

    NaN for a sample that has no weight, or no Fisher weight.
    """
    if each.received is None or each.received.squares is None or isinstance(each.fisher_weights, Pending):
        return None
    if not each.fisher_weights or each.statistics is not None:
        return None
    units = each.shape.numel() // len(each.fisher_weights[0])
    q = torch.cat([part.expand(-1, units) if part.shape[1] == 1 else part for part in each.fisher_weights], dim=1)
    samples = each.sample_weights.shape[0]
    expected = q.double().sum(1).reshape(samples, -1).sum(1)
    squares = each.received.squares.reshape(samples, -1).sum(1)
    weights = each.sample_weights.double()
    sound = (weights > 0) & (expected > 0)
    return torch.where(sound, (squares / expected).sqrt() / weights, math.nan)


def _explains(gradient: Tensor, sums: list[Tensor]) -> Tensor:
    """Whether the gradient of the bias is the sum of what arrived, so that nothing else has changed it."""
    arrived = torch.stack(sums).sum(0)
    little: Tensor = (gradient.double() - arrived).norm() <= 0.01 * arrived.norm()
    return little
