"""Units whose probability is almost 0 or 1 for every sample: no gradient reaches their weights any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import no_capture
from ..declaration import Declaration, declaration_of
from ..errors import MissingStatisticsError
from ..families import Bernoulli
from ..plots import INK, blank, depth_colours, tidy

MOST = 0.25
"""The largest Fisher weight ρ(1−ρ) of a Bernoulli unit."""


@dataclass(frozen=True)
class LayerSaturation:
    """The mean Fisher weight of every unit of one layer, over its largest possible value."""

    name: str
    weights: Tensor
    """(units,), from 0 (the unit is fixed) to 1 (its probability is ½ for every sample)."""

    def share(self, below: float = 0.01) -> float:
        """The share of the units whose mean weight is below this share of the largest possible one."""
        return float((self.weights < below).double().mean())


@dataclass(frozen=True)
class Saturation:
    """How saturated the Bernoulli layers of a model are."""

    layers: tuple[LayerSaturation, ...]

    def figure(self) -> Any:
        """A matplotlib figure: for each layer the weights of its units in order, and a line at one hundredth."""
        figure = blank(8, 4.2)
        axes = figure.subplots()
        for i, (layer, colour) in enumerate(zip(self.layers, depth_colours(len(self.layers)), strict=True)):
            values = layer.weights.sort(descending=True).values.clamp_min(1e-8).tolist()
            places = [(j + 0.5) / len(values) for j in range(len(values))]
            label = f"{layer.name}: {layer.share():.0%} saturated"
            axes.plot(places, values, ("-", "--")[i % 2], label=label, color=colour, linewidth=2)
        axes.axhline(0.01, color=INK, linewidth=1, linestyle="--")
        axes.set_yscale("log")
        axes.set_xlabel("units, from the most to the least free (share)", color=INK)
        axes.set_ylabel("mean Fisher weight over ¼", color=INK)
        tidy(axes)
        figure.legend(loc="outside right center", frameon=False)
        return figure


def saturation(model: nn.Module, forward: Callable[[], Any]) -> Saturation:
    """How saturated the Bernoulli layers of a model are for some samples.

    Args:
        model: with layers declared ``"bernoulli"``.
        forward: runs the model on samples; gradients are off, and nothing is captured for the optimizer.

    Raises:
        MissingStatisticsError: no Bernoulli layer ran.
    """
    sums: dict[str, tuple[Tensor, int]] = {}

    def look(name: str, declaration: Declaration, module: nn.Module, given: Any, output: Tensor) -> None:
        predictors = declaration.map.predictors(module, output)
        assert isinstance(declaration.family, Bernoulli)
        (weights,) = declaration.family.fisher_weights(predictors.double())
        total, count = sums.get(name, (0.0, 0))
        sums[name] = (weights.sum(0).cpu() + total, count + len(weights))

    hooks = []
    for name, module in model.named_modules():
        declaration = declaration_of(module)
        if declaration is not None and isinstance(declaration.family, Bernoulli):
            hooks.append(module.register_forward_hook(partial(look, name, declaration)))
    try:
        with torch.no_grad(), no_capture():
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    if not sums:
        raise MissingStatisticsError("no Bernoulli layer of this model ran; declare some, and call the model.")
    return Saturation(tuple(LayerSaturation(name, total / count / MOST) for name, (total, count) in sums.items()))
