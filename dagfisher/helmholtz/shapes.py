"""The shape that the units of each layer have in space, worked out from the layers of a machine.

A machine keeps its states flat, (n, units). Convolutions see them in their shape, (n, channels, space …).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import no_capture
from ..errors import ShapeError
from ..nn import LateralBernoulliLinear, StochasticConvolution, StochasticLayer

Shape = tuple[int, ...]


def layer_shapes(
    pairs: Sequence[tuple[StochasticLayer, StochasticLayer]], visible: Shape | None, top: int
) -> list[Shape]:
    """The shapes from the data to the top: (channels, space …) where a convolution looks, else (units,).

    Args:
        pairs: (generative layer, recognition layer) from the bottom up.
        visible: the shape of the data; needed if the bottom pair has a convolution.
        top: the units of the prior.

    Returns:
        One shape more than there are pairs.
    """
    generative, recognition = pairs[0]
    if visible is None:
        if isinstance(recognition, StochasticConvolution) or isinstance(generative, StochasticConvolution):
            raise ShapeError("a machine with a convolution at the bottom needs the shape of its data, (channels, …).")
        visible = (_parents(recognition),)
    shapes = [tuple(int(s) for s in visible)]
    for i, (generative, recognition) in enumerate(pairs):
        shapes.append(_hidden(i, generative, recognition, shapes[-1]))
        made = _output(f"generative layer {i}", generative, shapes[-1])
        if math.prod(made) != math.prod(shapes[-2]):
            raise ShapeError(
                f"generative layer {i} makes {_words(made)} units of {_words(shapes[-1])}, but below it are "
                f"{_words(shapes[-2])}; change its output_padding, padding or size."
            )
    if math.prod(shapes[-1]) != top:
        raise ShapeError(f"the top layer has {_words(shapes[-1])} units and its prior {top}; they must be equal.")
    return shapes


def in_space(layer: StochasticLayer, shape: Shape, values: Tensor) -> Tensor:
    """Flat parents, or a flat predictor, as the layer's module sees them; `shape` without groups of parameters."""
    if not isinstance(layer, StochasticConvolution):
        return values
    return values.reshape(values.shape[0], -1, *shape[1:])


def _hidden(i: int, generative: StochasticLayer, recognition: StochasticLayer, below: Shape) -> Shape:
    """The shape of the units above, from the convolution of the pair that knows it."""
    above = _output(f"recognition layer {i}", recognition, below)
    if isinstance(recognition, StochasticConvolution) or not isinstance(generative, StochasticConvolution):
        return above
    module: Any = generative
    if not module.transposed:
        raise ShapeError(
            f"generative layer {i} is an ordinary convolution above a dense recognition layer, which leaves the shape "
            f"of its input open; use a transposed convolution."
        )
    if len(below) != len(module.kernel_size) + 1:
        raise ShapeError(f"generative layer {i} makes images, but the units below it have the shape {_words(below)}.")
    space = []
    for axis, size in enumerate(below[1:]):
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1) + module.output_padding[axis] + 1
        steps, rest = divmod(size - reach + 2 * module.padding[axis], module.stride[axis])
        if rest or steps < 0:
            raise ShapeError(
                f"generative layer {i} cannot make {_words(below)} units from any input; change its output_padding."
            )
        space.append(steps + 1)
    shape = (int(module.in_channels), *space)
    if math.prod(shape) != math.prod(above):
        raise ShapeError(
            f"recognition layer {i} has {_words(above)} units, but generative layer {i} takes {_words(shape)}; "
            f"give the dense layer {math.prod(shape)} units."
        )
    return shape


def _output(name: str, layer: Any, parents: Shape) -> Shape:
    """The shape of the units that a layer makes."""
    if not isinstance(layer, StochasticConvolution):
        if _parents(layer) != math.prod(parents):
            raise ShapeError(f"{name} takes {_parents(layer)} parents, but there are {_words(parents)}.")
        return (layer.family.split(layer.out_features)[0],)
    module: Any = layer
    if len(parents) != len(module.kernel_size) + 1 or parents[0] != module.in_channels:
        raise ShapeError(
            f"{name} takes {module.in_channels} channels and {len(module.kernel_size)} spatial dimensions, "
            f"but its parents have the shape {_words(parents)}."
        )
    try:
        with torch.no_grad():
            made = _shape_only(layer, parents)
    except RuntimeError as error:
        raise ShapeError(f"{name} cannot take parents of the shape {_words(parents)}: {error}") from None
    return (layer.family.split(made[1])[0], *made[2:])


def _parents(layer: Any) -> int:
    """How many units of the layer above or below a dense layer sees."""
    return int(layer.outside if isinstance(layer, LateralBernoulliLinear) else layer.in_features)


def _shape_only(layer: nn.Module, parents: Shape) -> torch.Size:
    """The shape of the output for one sample; no numbers are computed and no hook runs."""
    parameters = {name: torch.empty_like(p, device="meta") for name, p in layer.named_parameters()}
    x = torch.empty(1, *parents, device="meta", dtype=next(iter(parameters.values())).dtype)
    with no_capture():
        return torch.func.functional_call(layer, parameters, (x,)).shape  # type: ignore[no-any-return]


def _words(shape: Shape) -> str:
    return "×".join(str(s) for s in shape)
