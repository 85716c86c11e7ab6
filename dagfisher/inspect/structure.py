"""The whole Fisher matrix of a small model, so that its zeros are seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..capture import no_capture
from ..declaration import declaration_of
from ..errors import MissingStatisticsError, SettingError, ShapeError
from ..families import Bernoulli
from ..helmholtz.machine import HelmholtzMachine
from ..maps import to_matrix
from ..plots import INK, blank

MOST_PARAMETERS = 4000
MOST_UNITS = 14
"""Machines with at most so many units are enumerated."""
CHUNK = 128
"""Scores that are computed at once."""


@dataclass(frozen=True)
class LayerPlace:
    """The rows and columns of a whole Fisher matrix that belong to one layer."""

    name: str
    start: int
    blocks: int
    """How many blocks follow each other from there, one for each unit; 1 for parameters that are not declared."""
    width: int
    """Of each block."""


@dataclass(frozen=True)
class Structure:
    """The whole Fisher matrix of a model, its parameters in the order of units."""

    fisher: Tensor
    """(parameters × parameters), float64."""
    layers: tuple[LayerPlace, ...]
    exact: bool
    """Whether it is an expectation over all states, and not a mean over draws."""

    @property
    def inside(self) -> Tensor:
        """True inside the blocks of units, (parameters × parameters)."""
        mask = torch.zeros_like(self.fisher, dtype=torch.bool)
        for layer in self.layers:
            for i in range(layer.blocks):
                start = layer.start + i * layer.width
                mask[start : start + layer.width, start : start + layer.width] = True
        return mask

    @property
    def block_diagonal(self) -> Tensor:
        """The blocks of the units alone, zero elsewhere."""
        return torch.where(self.inside, self.fisher, 0.0)

    @property
    def outside(self) -> float:
        """The largest entry outside the blocks over the largest inside, both without sign: 0 if they are exact."""
        size = self.fisher.abs()
        return float(size[~self.inside].max() / size.max()) if bool((~self.inside).any()) else 0.0

    def figure(self) -> Any:
        """A matplotlib figure: the whole Fisher matrix, and the blocks of the units alone."""
        figure = blank(10.5, 5.8)
        most = float(self.fisher.abs().max())
        titles = ("all entries" if self.exact else "all entries, from draws", "blocks of the units")
        for axes, matrix, title in zip(figure.subplots(1, 2), (self.fisher, self.block_diagonal), titles, strict=True):
            shown = (matrix.abs() / most).sqrt().numpy()
            axes.imshow(shown, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            for layer in self.layers[1:]:
                axes.axhline(layer.start - 0.5, color=INK, linewidth=0.6)
                axes.axvline(layer.start - 0.5, color=INK, linewidth=0.6)
            middles = [layer.start + layer.blocks * layer.width / 2 for layer in self.layers]
            axes.set_yticks(middles, [layer.name for layer in self.layers], rotation=90, va="center", fontsize=8)
            axes.set_xticks([])
            axes.tick_params(length=0)
            axes.set_title(title, fontsize=11, color=INK)
        text = (
            f"largest entry outside the blocks: {self.outside:.1e} of the largest inside; colour: square root of size"
        )
        figure.supxlabel(text, fontsize=9, color=INK)
        return figure


def structure(
    model: nn.Module,
    log_prob: Callable[[Any], Tensor] | None = None,
    *,
    weights: Tensor | None = None,
    samples: int = 4096,
    seed: int = 0,
) -> Structure:
    """The Fisher matrix of all parameters: the mean of score · scoreᵀ over what the model itself draws.

    Args:
        model: small, with declared layers. Those of a machine that generates are looked at without further arguments.
        log_prob: of the model, gives log p of n draws of all its variables, (n,), through which gradients flow.
        weights: the probability of each draw, (n,), if they are all there are; by default each counts the same.
        samples: draws of a machine with more than 14 units, or other than Bernoulli units.
        seed: of these draws.
    """
    if log_prob is not None:
        with torch.enable_grad(), no_capture():
            parts = [log_prob(model)]
        if parts[0].dim() != 1:
            raise ShapeError(f"log_prob must give one number for each draw, (n,), not {tuple(parts[0].shape)}.")
        exact = weights is not None
    elif isinstance(model, HelmholtzMachine):
        model = copy.deepcopy(model).double()
        states, exact = _states(model, samples, Generator().manual_seed(seed))
        with torch.enable_grad(), no_capture():
            rows = zip(*(torch.split(s, CHUNK) for s in states), strict=True)
            parts = [_log_joint(model, list(each)) for each in rows]
    else:
        raise SettingError("give log_prob, a function of the model that gives log p of draws of all its variables.")
    log_p = torch.cat([part.detach() for part in parts])
    if weights is None:
        weights = log_p.exp() if exact else torch.full_like(log_p, 1 / len(log_p))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if sum(p.numel() for _, p in named) > MOST_PARAMETERS:
        raise SettingError(f"the whole Fisher matrix of more than {MOST_PARAMETERS:,} parameters cannot be looked at.")
    scores = _scores(parts, [p for _, p in named])
    columns, layers = _places(model, {name: p for (name, p), s in zip(named, scores, strict=True) if s is not None})
    if not layers:
        raise MissingStatisticsError("no parameter of the model moves log_prob.")
    every = torch.cat([s for s in scores if s is not None], dim=1)[:, columns].double()
    return Structure((every * weights.double()[:, None]).T @ every, layers, exact)


def _scores(log_ps: list[Tensor], parameters: list[Tensor]) -> list[Tensor | None]:
    """The gradient of each log p, (n × numel) for each parameter; None where it has no part in any."""
    parts = []
    for log_p in log_ps:
        for start in range(0, len(log_p), CHUNK):
            count = min(CHUNK, len(log_p) - start)
            rows = torch.zeros(count, len(log_p), dtype=log_p.dtype, device=log_p.device)
            rows[range(count), range(start, start + count)] = 1.0
            found = torch.autograd.grad(
                log_p, parameters, rows, retain_graph=True, is_grads_batched=True, allow_unused=True
            )
            parts.append([None if g is None else g.flatten(1).cpu() for g in found])
    columns = [[g for g in column if g is not None] for column in zip(*parts, strict=True)]
    return [torch.cat(column) if column else None for column in columns]


def _places(model: nn.Module, parameters: dict[str, Tensor]) -> tuple[Tensor, tuple[LayerPlace, ...]]:
    """The order of the parameters' numbers by layer, unit and parent, and where each layer is in that order."""
    index, total = {}, 0
    for name, p in parameters.items():
        index[name] = torch.arange(total, total + p.numel()).reshape(p.shape)
        total += p.numel()
    names = {id(p): name for name, p in parameters.items()}
    order: list[Tensor] = []
    layers: list[LayerPlace] = []
    start = 0

    def add(name: str, matrix: Tensor) -> None:
        nonlocal start
        order.append(matrix.flatten())
        layers.append(LayerPlace(name, start, len(matrix), matrix.shape[1]))
        start += matrix.numel()

    for name, module in model.named_modules():
        declaration = declaration_of(module)
        if declaration is not None:
            weight, bias = (index.pop(names.get(id(p), ""), None) for p in declaration.parameters)
            if weight is not None:
                weight = declaration.map.unit_major(module, weight)
            if weight is not None or bias is not None:
                matrix = to_matrix(weight, bias)
                add(name, matrix.reshape(len(matrix) // declaration.coupled, -1))
    for name, rest in index.items():
        add(name, rest.reshape(1, -1))
    return (torch.cat(order) if order else torch.zeros(0, dtype=torch.long)), tuple(layers)


def _states(machine: HelmholtzMachine, samples: int, generator: Generator) -> tuple[list[Tensor], bool]:
    """All states of the machine's units, or draws of them, from the data up, and whether they are all."""
    families = [layer.family for layer in [*machine.generative_layers(), machine.prior]]
    sizes = machine.sizes
    if sum(sizes) <= MOST_UNITS and all(isinstance(family, Bernoulli) for family in families):
        codes = torch.arange(2 ** sum(sizes))
        bits = ((codes[:, None] >> torch.arange(sum(sizes))) & 1).double()
        parts = zip(families, torch.split(bits, sizes, dim=1), strict=True)
        return [family.from_bits(part) for family, part in parts if isinstance(family, Bernoulli)], True
    with torch.no_grad(), no_capture():
        states = [machine.draw_top(samples, generator).states]
        for i in reversed(range(len(machine.generative))):
            states.insert(0, machine.draw_down(i, states[0], generator).states)
    return states, False


def _log_joint(machine: HelmholtzMachine, states: list[Tensor]) -> Tensor:
    """log p of every layer's states together, (n,)."""
    prior = machine.prior.family.log_prob(states[-1], machine.top(len(states[-1]), states[-1])).sum(-1)
    for i, layer in enumerate(machine.generative_layers()):
        prior = prior + layer.family.log_prob(states[i], machine.down(i, states[i + 1], states[i])).sum(-1)
    return prior
