"""Samples of both networks and their log-probabilities: wake (h ~ q given x) and dreams (x, h ~ p).

All that is needed of a machine is the protocol `Networks`, so that the machine itself can call what is built on this:
its log-likelihood is estimated from wake samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor

from ..capture import no_capture
from ..families import Family
from ..nn import StochasticLayer
from .layers import Draw, TopLayer


class Networks(Protocol):
    """A generative and a recognition network over the same layers of units; `HelmholtzMachine` is one.

    States are flat, (n, units), from the data at the bottom to the prior's layer at the top.
    """

    prior: TopLayer

    @property
    def log_volume(self) -> float:
        """What is added to a log-density of the encoded data to get that of the data."""

    def encode(self, x: Tensor) -> Tensor:
        """Data in [0, 1], (n, …), as states of the visible units, (n, pixels)."""

    def decode(self, visible: Tensor) -> Tensor:
        """States or means of the visible units, (n, pixels), as values in [0, 1]."""

    def up(self, i: int, parents: Tensor, states: Tensor | None = None) -> Tensor:
        """The predictor of recognition layer i, counted from the bottom, given the states (n, units) below it.

        `states` are those of the layer itself, (n, units), which only lateral connections look at. If n differs, the
        fewer rows are shared by the samples of the others.
        """

    def down(self, i: int, parents: Tensor, states: Tensor | None = None) -> Tensor:
        """The predictor of generative layer i, counted from the bottom, given the states (n, units) above it."""

    def top(self, count: int, states: Tensor | None = None) -> Tensor:
        """The predictor of the prior for so many samples."""

    def draw_up(self, i: int, parents: Tensor, generator: Generator | None = None, *, samples: int = 1) -> Draw:
        """So many samples of recognition layer i for each row of the states (n, units) below it."""

    def draw_down(self, i: int, parents: Tensor, generator: Generator | None = None) -> Draw:
        """A sample of generative layer i for each row of the states (n, units) above it."""

    def draw_top(self, count: int, generator: Generator | None = None) -> Draw:
        """So many samples of the prior."""

    def generative_layers(self) -> list[StochasticLayer]:
        """The generative layers from the bottom up, without the prior."""

    def recognition_layers(self) -> list[StochasticLayer]:
        """The recognition layers from the bottom up."""


@dataclass
class Wake:
    """S samples of q(h|x) for each of B examples, and what both networks say of them.

    Hidden samples are (S·B, units), sample-major; x stays (B, pixels), and so does the predictor of the bottom
    recognition layer, since all S samples share it, unless that layer has lateral connections.
    """

    x: Tensor
    """The encoded data, (B, pixels)."""
    hidden: list[Tensor]
    """The samples of each hidden layer from the bottom up, (S·B, units)."""
    recognition: list[Tensor]
    """The predictors of q, from the bottom up; the first one (B, units), with lateral connections (S·B, units)."""
    generative: list[Tensor]
    """The predictors of p from the bottom up, the prior last."""
    log_p: Tensor
    """log p(x, h), (S, B)."""
    log_q: Tensor
    """log q(h|x), (S, B)."""
    families: list[Family] = field(default_factory=list)
    """Of the recognition layers, from the bottom up."""

    @property
    def samples(self) -> int:
        """S."""
        return int(self.log_p.shape[0])

    @property
    def log_ratio(self) -> Tensor:
        """log p(x, h) − log q(h|x), (S, B)."""
        return self.log_p - self.log_q


class Dreams(NamedTuple):
    """Samples of the generative network, from the data up, and the predictors that they were drawn from."""

    path: list[Tensor]
    """The states of each layer from the data to the top, (n, units)."""
    predictors: list[Tensor]
    """The predictors of p from the bottom up, the prior last."""


def wake(machine: Networks, x: Tensor, samples: int, generator: Generator | None = None) -> Wake:
    """Samples of the recognition network (its Fisher captures, with equal weights) and what the generative one says.

    Args:
        machine: both networks.
        x: encoded data, (B, pixels).
        samples: S, for each example.
        generator: of the draws.
    """
    batch = x.shape[0]
    hidden: list[Tensor] = []
    recognition: list[Tensor] = []
    log_q = torch.zeros((), dtype=x.dtype, device=x.device)
    below = x
    for i, layer in enumerate(machine.recognition_layers()):
        below, predictor = machine.draw_up(i, below, generator, samples=samples if i == 0 else 1)
        fixed = predictor.detach()
        fixed = fixed if len(fixed) == batch else by_sample(fixed, samples)
        log_q = log_q + layer.family.log_prob(by_sample(below, samples), fixed).sum(-1)
        hidden.append(below)
        recognition.append(predictor)
    generative, log_p = joint(machine, x, hidden, samples)
    families = [layer.family for layer in machine.recognition_layers()]
    return Wake(x, hidden, recognition, generative, log_p, log_q, families)


@torch.no_grad()
def dream(machine: Networks, count: int, generator: Generator | None = None) -> Dreams:
    """So many samples of the generative network; no Fisher captures them."""
    with no_capture():
        draws = [machine.draw_top(count, generator)]
        for i in reversed(range(len(machine.generative_layers()))):
            draws.append(machine.draw_down(i, draws[-1].states, generator))
    draws.reverse()
    return Dreams([each.states for each in draws], [each.predictor for each in draws])


def joint(machine: Networks, x: Tensor, hidden: list[Tensor], samples: int) -> tuple[list[Tensor], Tensor]:
    """The predictors of p given these samples, from the bottom up, and log p(x, h), (S, B); no Fisher captures."""
    batch = x.shape[0]
    generative: list[Tensor] = []
    with no_capture():
        for i, (parents, states) in enumerate(zip(hidden, [x, *hidden], strict=False)):
            generative.append(machine.down(i, parents, states))
        generative.append(machine.top(samples * batch, hidden[-1]))
    log_p = machine.generative_layers()[0].family.log_prob(x, by_sample(generative[0].detach(), samples)).sum(-1)
    if machine.log_volume:
        log_p = log_p + machine.log_volume
    for layer, child, predictor in zip(hidden_layers(machine), hidden, generative[1:], strict=True):
        log_p = log_p + layer.family.log_prob(child, predictor.detach()).sum(-1).reshape(samples, batch)
    return generative, log_p


def hidden_layers(machine: Networks) -> list[StochasticLayer]:
    """The layers that give hidden samples their probability: generative layers above the bottom, then the prior."""
    return [*machine.generative_layers()[1:], machine.prior]


def by_sample(rows: Tensor, samples: int) -> Tensor:
    """(S·B, units) as (S, B, units)."""
    return rows.reshape(samples, -1, rows.shape[-1])


def log_mean_exp(log_values: Tensor, dim: int) -> Tensor:
    """The logarithm of the mean of exp(log_values) along an axis."""
    return torch.logsumexp(log_values, dim) - math.log(log_values.shape[dim])
