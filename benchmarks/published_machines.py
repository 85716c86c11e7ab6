"""The machines on 48×48 pixels of `published.py`: bottom layers of several kinds, the rest dense (thesis 7.1.3, 7.4).

A kind is that of q's bottom layer and that of p's, "conv/dense" for example: dense; conv and deconv, 3×3 filters with
stride 2 between the pixels and 8 channels of 24×24 units; or local, which has the connections of these convolutions
and shares no weights. "none" is a dense machine without these channels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagfisher.helmholtz import HelmholtzMachine
from dagfisher.nn import (
    BernoulliConv2d,
    BernoulliConvTranspose2d,
    BernoulliLinear,
    GaussianConv2d,
    GaussianConvTranspose2d,
    GaussianLinear,
    MaskedBernoulliLinear,
    MaskedGaussianLinear,
    Prior,
    StochasticLayer,
)

SIDE, CHANNELS, ABOVE = 48, 8, (75, 50, 35, 25, 20, 20)
"""Pixels in a row, channels of the bottom layer, and the units above it (thesis 7.4)."""
FILTERS: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1}


def machine(kind: str, gaussian: bool, seed: int, side: int = SIDE) -> HelmholtzMachine:
    """A machine of a kind, of Gaussian or of binary units, on side × side pixels; its weights depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    own: dict[str, Any] = {"min_std": 0.01} if gaussian else {"states": (-1.0, 1.0)}
    linear: Any = GaussianLinear if gaussian else BernoulliLinear
    sizes = [side * side, CHANNELS * (side // 2) ** 2, *ABOVE]
    if kind == "none":
        sizes.pop(1)
    pairs: list[tuple[StochasticLayer, StochasticLayer]] = [
        (linear(upper, lower, **own), linear(lower, upper, **own)) for lower, upper in pairwise(sizes)
    ]
    if kind != "none":
        upward, downward = kind.split("/")
        pairs[0] = (
            _bottom(downward, gaussian, side, own, pairs[0][0]),
            _bottom(upward, gaussian, side, own, pairs[0][1]),
        )
    prior = Prior(ABOVE[-1], "gaussian" if gaussian else "bernoulli", **own)
    made = HelmholtzMachine(pairs, prior=prior, shape=(1, side, side))
    made.reset_parameters(generator=generator)
    for layer in (made.generative[0], made.recognition[0]):
        if isinstance(layer, (MaskedBernoulliLinear, MaskedGaussianLinear)):
            _begin_as_a_convolution(layer, gaussian, generator)
    return made


def _bottom(kind: str, gaussian: bool, side: int, own: dict[str, Any], dense: StochasticLayer) -> StochasticLayer:
    upwards = dense.in_features == side * side
    if kind == "conv" and upwards:
        made: Any = GaussianConv2d if gaussian else BernoulliConv2d
        return made(1, CHANNELS, **FILTERS, **own)  # type: ignore[no-any-return]
    if kind == "deconv" and not upwards:
        made = GaussianConvTranspose2d if gaussian else BernoulliConvTranspose2d
        return made(CHANNELS, 1, output_padding=1, **FILTERS, **own)  # type: ignore[no-any-return]
    if kind == "local":
        made = MaskedGaussianLinear if gaussian else MaskedBernoulliLinear
        return made(seen(side) if upwards else seen(side).T, **own)  # type: ignore[no-any-return]
    if kind != "dense":
        raise ValueError(f"there is no bottom layer {kind} in that direction")
    return dense


def seen(side: int) -> Tensor:
    """Which pixels each unit above a convolution sees, (units, pixels), bool."""
    pixels = torch.eye(side * side).reshape(-1, 1, side, side)
    window = torch.ones(CHANNELS, 1, *[FILTERS["kernel_size"]] * 2)
    reached = F.conv2d(pixels, window, stride=FILTERS["stride"], padding=FILTERS["padding"])
    return reached.flatten(1).T > 0


@torch.no_grad()
def _begin_as_a_convolution(layer: MaskedBernoulliLinear | MaskedGaussianLinear, gaussian: bool, g: Any) -> None:
    """Glorot-normal weights of the deviation that the filters of the convolution would have; scales begin at 0."""
    filters = FILTERS["kernel_size"] ** 2 * (1 + CHANNELS)
    mean = layer.weight.chunk(2)[0] if gaussian else layer.weight
    nn.init.normal_(mean, std=(2 / filters) ** 0.5, generator=g)
    mean.mul_(layer.mask[: len(mean)])
