"""The eigenvalues of each layer's Fisher blocks, and how many parameters they determine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import MissingStatisticsError
from ..optim import DAGNaturalGradient
from ..plots import GUIDE, INK, NATURAL, blank, tidy

LARGEST = 2**27
"""Layers whose blocks have more numbers than this are left out."""
FLOOR = 1e-8
"""Eigenvalues below this share of the largest one of a layer are zero but for rounding, and are drawn there."""


@dataclass(frozen=True)
class LayerSpectrum:
    """The eigenvalues of the Fisher blocks of one layer."""

    name: str
    damping: float
    """α."""
    blocks: int
    """All blocks of the layer; one for each unit, or for each variable of coupled units."""
    eigenvalues: Tensor
    """(blocks looked at × d), each row from the largest to the smallest; float64, not damped."""

    @property
    def parameters(self) -> int:
        """How many parameters the layer has."""
        return self.blocks * self.eigenvalues.shape[1]

    @property
    def effective(self) -> float:
        """Σ λ/(λ + α): how many parameters of the layer the samples determine; estimated if not all were looked at."""
        if not self.damping:
            return float((self.eigenvalues > 0).sum()) * self._share
        return float((self.eigenvalues / (self.eigenvalues + self.damping)).sum()) * self._share

    @property
    def _share(self) -> float:
        return self.blocks / max(len(self.eigenvalues), 1)

    def figure(self) -> Any:
        """A matplotlib figure: the eigenvalues of the blocks, and a line at the damping."""
        figure = blank(4.2, 3.1)
        self.draw(figure.subplots())
        return figure

    def draw(self, axes: Any) -> None:
        """Draw the median of the eigenvalues over the units, their range, and the damping on matplotlib axes."""
        values = self.eigenvalues.clamp_min(FLOOR * float(self.eigenvalues.max().clamp_min(1e-300)))
        order = range(1, values.shape[1] + 1)
        low, middle, high = (values.quantile(q, dim=0).tolist() for q in (0.0, 0.5, 1.0))
        axes.fill_between(order, low, high, color=NATURAL, alpha=0.2, linewidth=0)
        axes.plot(order, middle, color=NATURAL, linewidth=2, marker="o" if len(order) == 1 else None)
        if len(order) == 1:
            axes.vlines(1, low, high, color=NATURAL, alpha=0.3, linewidth=6)
            axes.set_xticks([1])
        axes.axhline(max(self.damping, 1e-300), color=GUIDE, linestyle="--", linewidth=1.5)
        axes.set_yscale("log")
        axes.set_ylim(bottom=min(float(values.min()), self.damping or math.inf) / 3)
        axes.set_xlabel("number of the eigenvalue", color=INK)
        tidy(axes)


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of the Fisher blocks of all layers."""

    layers: tuple[LayerSpectrum, ...]
    omitted: tuple[str, ...] = ()
    """The names of layers that were not looked at: no refresh has reached them, or their blocks are too many."""

    @property
    def effective(self) -> float:
        """How many parameters of all layers the samples determine."""
        return sum(layer.effective for layer in self.layers)

    def figure(self) -> Any:
        """A matplotlib figure: for each layer the eigenvalues of its blocks, and a line at the damping."""
        columns = min(3, max(1, len(self.layers)))
        rows = max(1, math.ceil(len(self.layers) / columns))
        figure = blank(4.2 * columns, 3.1 * rows + 0.4)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in grid[len(self.layers) :]:
            axes.set_axis_off()
        for axes, layer in zip(grid, self.layers, strict=False):
            layer.draw(axes)
            axes.set_title(f"{layer.name}: {layer.effective:,.0f} of {layer.parameters:,}", fontsize=10, color=INK)
        title = "Eigenvalues of the Fisher blocks (median and range over units), dashed: damping"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
        figure.supxlabel("in titles: effective number of parameters Σ λ/(λ+α)", fontsize=9, color=GUIDE)
        return figure


@torch.no_grad()
def spectrum(opt: DAGNaturalGradient, units: int = 32) -> Spectrum:
    """The eigenvalues of the Fisher blocks that the optimizer uses now.

    Args:
        opt: after its first step.
        units: how many blocks of each layer to look at, evenly spaced; a layer with fewer is looked at whole.

    Raises:
        MissingStatisticsError: no step was taken yet.
    """
    found, omitted = [], []
    for name, layer in opt.named_layers().items():
        fisher = layer.fisher
        weight, bias = layer.declaration.parameters
        count = layer.declaration.units
        size = sum(p.numel() for p in (weight, bias) if p is not None)
        if fisher is None or size * (size // count) * layer.declaration.coupled > LARGEST:
            omitted.append(name)
            continue
        damped = fisher.blocks()
        chosen = torch.linspace(0, len(damped) - 1, min(units, len(damped))).round().long()
        blocks = damped[chosen.to(damped.device)].double().cpu() * (1 + fisher.damping)
        values = torch.linalg.eigvalsh(blocks).flip(-1) - fisher.damping
        found.append(LayerSpectrum(name, fisher.damping, len(damped), values.clamp_min(0)))
    if not found and all(layer.fisher is None for layer in opt.named_layers().values()):
        raise MissingStatisticsError("there is no Fisher matrix yet; take a step, and then look at its spectrum.")
    return Spectrum(tuple(found), tuple(omitted))
