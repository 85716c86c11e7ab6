"""How far the natural gradient of each layer points away from the plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import MissingStatisticsError
from ..optim import DAGNaturalGradient
from ..plots import INK, NATURAL, blank, tidy


@dataclass(frozen=True)
class Cosines:
    """The cosine of the angle between natural and plain gradient; 1: they agree, near 0: they have little in common."""

    layers: dict[str, float]
    whole: float
    """Of all declared layers together."""

    def figure(self) -> Any:
        """A matplotlib figure: a bar for each layer."""
        figure = blank(6.5, 0.36 * (len(self.layers) + 1) + 1.2)
        axes = figure.subplots()
        names, values = [*self.layers, "all layers"], [*self.layers.values(), self.whole]
        colours = [NATURAL] * len(self.layers) + [INK]
        axes.barh(range(len(names)), values, color=colours, height=0.62)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("cosine of natural and plain gradient", color=INK)
        tidy(axes)
        return figure


def cosines(opt: DAGNaturalGradient) -> Cosines:
    """The cosines of natural and plain gradients as the next step would use them; nothing moves.

    Args:
        opt: after ``backward()``, before ``step()``.

    Raises:
        MissingStatisticsError: no declared layer has a gradient.
    """
    natural = opt.natural_gradient()
    plain = {p: p.grad for p in natural if p.grad is not None}
    layers = {name: [p for p in layer.parameters if p in natural] for name, layer in opt.named_layers().items()}
    layers = {name: parameters for name, parameters in layers.items() if parameters}
    if not layers:
        raise MissingStatisticsError("no declared layer has a gradient; call backward() before you ask for cosines.")
    each = {name: cosine(natural, plain, parameters) for name, parameters in layers.items()}
    return Cosines(each, cosine(natural, plain, [p for parameters in layers.values() for p in parameters]))


def cosine(one: dict[Tensor, Tensor], other: dict[Tensor, Tensor], parameters: list[Tensor]) -> float:
    """The cosine of two vectors that have a part for each parameter; 1 if one of them is zero."""
    a, b = (torch.cat([each[p].detach().double().flatten().cpu() for p in parameters]) for each in (one, other))
    length = float(a.norm() * b.norm())
    return max(-1.0, min(1.0, float(a @ b) / length)) if length else 1.0
