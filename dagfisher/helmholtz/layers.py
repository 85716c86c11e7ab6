"""What a machine asks of its layers: predictors of flat states and draws of them, the same for every kind of layer.

States are (n, units), whatever shape a convolution sees them in. The units of a layer with lateral connections are
parents of each other: their predictor depends on their own states, and they are drawn one after the other.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ..capture import observe
from ..nn import LateralBernoulliLinear, Prior, StochasticLayer
from .shapes import Shape, in_space

TopLayer = Prior | LateralBernoulliLinear
"""The units without parents above them; with lateral connections, a fully visible belief net."""


class Draw(NamedTuple):
    """States of a layer and the predictor that they have."""

    states: Tensor
    """(samples · n, units), sample-major."""
    predictor: Tensor
    """(n, parameters), or (samples · n, parameters) of a layer with lateral connections."""


def predict(layer: StochasticLayer, shape: Shape, parents: Tensor, states: Tensor | None) -> Tensor:
    """The layer's predictor for flat parents.

    Args:
        layer: is captured, as in any forward pass.
        shape: of the parents in space.
        parents: (n, units).
        states: of the layer itself, (m, units), which only lateral connections look at; then n divides m or m divides
            n, and the fewer rows are shared by the samples of the others, which are sample-major.

    Returns:
        (n, parameters), or with lateral connections (max(n, m), parameters).
    """
    if isinstance(layer, LateralBernoulliLinear):
        return layer.predictor(*_aligned(parents, _known(states))).reshape(-1, layer.out_features)
    predictor: Tensor = layer(in_space(layer, shape, parents))
    return predictor.flatten(1)


def draw(layer: StochasticLayer, shape: Shape, parents: Tensor, samples: int, generator: Generator | None) -> Draw:
    """So many samples of the layer's states for each row of flat parents, (n, units); captured like `predict`.

    Args:
        layer: its units are drawn.
        shape: of the parents in space.
        parents: (n, units).
        samples: for each row.
        generator: of the draws.
    """
    if isinstance(layer, LateralBernoulliLinear):
        states = _draw_lateral(layer, parents, samples, generator)
        return Draw(states, predict(layer, shape, parents, states))
    predictor = predict(layer, shape, parents, None)
    fixed = predictor.detach()
    states = layer.family.sample(fixed.expand(samples, *fixed.shape), generator)
    return Draw(states.flatten(0, 1), predictor)


def observe_layer(
    layer: StochasticLayer, above: Shape, shape: Shape, parents: Tensor, states: Tensor, predictor: Tensor
) -> None:
    """Feed the layer's Fisher with what `predict` was given and gave.

    Args:
        layer: a declared layer.
        above: the shape of the parents in space.
        shape: of the layer itself.
        parents: flat.
        states: of the layer itself, flat.
        predictor: flat.
    """
    if isinstance(layer, LateralBernoulliLinear):
        observe(layer, layer.joined(*_aligned(parents, states)).reshape(len(predictor), -1), predictor)
    else:
        observe(layer, in_space(layer, above, parents), in_space(layer, shape, predictor))


def predict_top(layer: TopLayer, count: int, states: Tensor | None) -> Tensor:
    """The predictor of the top layer, (count, parameters), given its own states if they are connected laterally."""
    if isinstance(layer, LateralBernoulliLinear):
        return layer.predictor(_nothing(layer, count), _known(states))
    predictor: Tensor = layer(count)
    return predictor


def draw_top(layer: TopLayer, count: int, generator: Generator | None) -> Draw:
    """So many samples of the top layer."""
    if isinstance(layer, LateralBernoulliLinear):
        states = _draw_lateral(layer, _nothing(layer, count), 1, generator)
        return Draw(states, predict_top(layer, count, states))
    predictor = predict_top(layer, count, None)
    return Draw(layer.family.sample(predictor, generator), predictor)


def observe_top(layer: TopLayer, states: Tensor, predictor: Tensor) -> None:
    """Feed the top layer's Fisher with its states and the predictor that `predict_top` gave."""
    observe(layer, states if isinstance(layer, LateralBernoulliLinear) else None, predictor)


def _nothing(layer: LateralBernoulliLinear, count: int) -> Tensor:
    """The parents of so many samples of a layer that has none."""
    return layer.weight.new_empty(count, 0)


def _known(states: Tensor | None) -> Tensor:
    assert states is not None, "the predictor of a layer with lateral connections depends on its own states"
    return states


def _aligned(parents: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Both as (samples, rows, …), broadcast where one of them is shared by all samples; as they are if none is."""
    rows = min(len(parents), len(states))
    if len(parents) == len(states):
        return parents, states
    return parents.reshape(-1, rows, parents.shape[-1]), states.reshape(-1, rows, states.shape[-1])


@torch.no_grad()
def _draw_lateral(layer: LateralBernoulliLinear, parents: Tensor, samples: int, generator: Generator | None) -> Tensor:
    given = layer.distribution(parents)
    given = dataclasses.replace(given, predictor=given.predictor.expand(samples, *given.predictor.shape))
    return given.sample(generator).flatten(0, 1)
