"""Wake and sleep: samples, importance weights, and the gradients of every algorithm.

Layers exchange samples, never gradients. So a gradient is known in closed form up to each layer's own linear map:
Σ_k c_k ∂log p_k/∂a · ∂a/∂w, with c_k the coefficient that the algorithm gives to sample k. Automatic differentiation
does the last factor only, for all layers at once. Coefficients are of the loss, which is minimised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ..capture import no_capture, observe, sample_weights
from ..nn import StochasticLayer
from .machine import HelmholtzMachine


@dataclass
class Terms:
    """Predictors and the derivatives of the loss about them, gathered over a step and differentiated once."""

    predictors: list[Tensor] = field(default_factory=list)
    derivatives: list[Tensor] = field(default_factory=list)

    def add(self, predictor: Tensor, derivative: Tensor) -> None:
        """One more term of the gradient."""
        self.predictors.append(predictor)
        self.derivatives.append(derivative)

    def backward(self) -> None:
        """Add the gradients to the parameters' `.grad`."""
        torch.autograd.backward(self.predictors, self.derivatives)


@dataclass
class Wake:
    """S samples of q(h|x) for each of B examples, and what both networks say of them.

    Hidden samples are (S·B, units), sample-major; x stays (B, pixels), and so does the predictor of the bottom
    recognition layer, since all S samples share it.
    """

    x: Tensor
    hidden: list[Tensor]
    recognition: list[Tensor]
    """The predictors of q, from the bottom up; the first one (B, units)."""
    generative: list[Tensor]
    """The predictors of p from the bottom up, the prior last."""
    log_p: Tensor
    """log p(x, h), (S, B)."""
    log_q: Tensor
    """log q(h|x), (S, B)."""

    @property
    def samples(self) -> int:
        """S."""
        return int(self.log_p.shape[0])

    @property
    def log_ratio(self) -> Tensor:
        """log p(x, h) − log q(h|x), (S, B)."""
        return self.log_p - self.log_q


def wake(machine: HelmholtzMachine, x: Tensor, samples: int, generator: Generator | None = None) -> Wake:
    """Sample the recognition network (its Fisher captures, with equal weights) and run the generative one on that."""
    batch = x.shape[0]
    hidden: list[Tensor] = []
    recognition: list[Tensor] = []
    log_q = torch.zeros((), dtype=x.dtype, device=x.device)
    below = x
    for i, layer in enumerate(machine.recognition_layers()):
        predictor = machine.up(i, below)
        fixed = predictor.detach()
        if i == 0:
            fixed = fixed.expand(samples, *fixed.shape)
        h = layer.family.sample(fixed, generator)
        log_q = log_q + layer.family.log_prob(h, fixed).sum(-1).reshape(samples, batch)
        below = h.reshape(samples * batch, -1)
        hidden.append(below)
        recognition.append(predictor)
    generative, log_p = _joint(machine, x, hidden, samples)
    return Wake(x, hidden, recognition, generative, log_p, log_q)


def _joint(machine: HelmholtzMachine, x: Tensor, hidden: list[Tensor], samples: int) -> tuple[list[Tensor], Tensor]:
    """The predictors of p given these samples, and log p(x, h), (S, B)."""
    batch = x.shape[0]
    generative: list[Tensor] = []
    with no_capture():
        for i, parents in enumerate(hidden):
            generative.append(machine.down(i, parents))
        generative.append(machine.prior(samples * batch))
    log_p = machine.generative_layers()[0].family.log_prob(x, _by_sample(generative[0].detach(), samples)).sum(-1)
    if machine.log_volume:
        log_p = log_p + machine.log_volume
    for layer, child, predictor in zip(_children(machine), hidden, generative[1:], strict=True):
        log_p = log_p + layer.family.log_prob(child, predictor.detach()).sum(-1).reshape(samples, batch)
    return generative, log_p


class Descended(NamedTuple):
    """Samples and coefficients of one minibatch, of which `losses` can be taken again when the networks have moved."""

    x: Tensor
    hidden: list[Tensor]
    weights: Tensor
    """Of log p(x, h), (S, B)."""
    coefficients: Tensor | None
    """Of log q(h|x), (S, B), without a baseline; None if the wake samples do not teach q."""
    dreams: list[Tensor]
    dream_coefficient: float

    def to(self, device: torch.device) -> Descended:
        """The same on another device."""
        return Descended(
            self.x.to(device),
            [h.to(device) for h in self.hidden],
            self.weights.to(device),
            None if self.coefficients is None else self.coefficients.to(device),
            [dream.to(device) for dream in self.dreams],
            self.dream_coefficient,
        )


@torch.no_grad()
def losses(machine: HelmholtzMachine, of: Descended) -> tuple[Tensor, Tensor]:
    """What the updates of p and of q descend, as the networks are now, the samples and their weights held fixed."""
    _, log_p = _joint(machine, of.x, of.hidden, len(of.weights))
    loss_q = log_p.new_zeros((), dtype=torch.float64)
    if of.coefficients is not None:
        loss_q -= (of.coefficients * _log_q(machine, of.x, of.hidden)).sum(dtype=torch.float64)
    if of.dreams:
        loss_q -= of.dream_coefficient * _log_q(machine, of.dreams[0], of.dreams[1:]).mean(dtype=torch.float64)
    return -(of.weights * log_p).sum(dtype=torch.float64), loss_q


def _log_q(machine: HelmholtzMachine, x: Tensor, hidden: list[Tensor]) -> Tensor:
    """log q(h|x), (S, B), of S samples for each x."""
    batch = x.shape[0]
    log_q = torch.zeros((), dtype=x.dtype, device=x.device)
    with no_capture():
        for i, (layer, below, child) in enumerate(
            zip(machine.recognition_layers(), [x, *hidden[:-1]], hidden, strict=True)
        ):
            predictor = machine.up(i, below)
            predictor = predictor.reshape(-1, batch, predictor.shape[-1])
            log_q = log_q + layer.family.log_prob(child.reshape(-1, batch, child.shape[-1]), predictor).sum(-1)
    return log_q


def generative_terms(machine: HelmholtzMachine, state: Wake, weights: Tensor, terms: Terms) -> None:
    """The loss −Σ weights · log p(x, h); weights (S, B) sum to 1."""
    column = weights.reshape(-1, 1)
    bottom, above = machine.generative_layers()[0], state.generative[0]
    score = bottom.family.score(state.x, _by_sample(above.detach(), state.samples)).reshape(above.shape)
    terms.add(above, score.mul_(-column))
    for layer, child, predictor in zip(_children(machine), state.hidden, state.generative[1:], strict=True):
        terms.add(predictor, layer.family.score(child, predictor.detach()).mul_(-column))


def observe_generative(machine: HelmholtzMachine, state: Wake, weights: Tensor) -> None:
    """Feed the Fisher of p with the wake samples and their weights."""
    with sample_weights(weights.reshape(-1)):
        for i, (parents, predictor) in enumerate(zip(state.hidden, state.generative, strict=False)):
            machine.observe_down(i, parents, predictor)
        observe(machine.prior, None, state.generative[-1])


def recognition_terms(machine: HelmholtzMachine, state: Wake, coefficients: Tensor, terms: Terms) -> None:
    """The loss −Σ coefficients · log q(h|x); coefficients (S, B) of any sign."""
    batch = state.x.shape[0]
    column = coefficients.reshape(-1, 1)
    for i, (layer, child, predictor) in enumerate(
        zip(machine.recognition_layers(), state.hidden, state.recognition, strict=True)
    ):
        if i == 0:
            score = layer.family.score(child.reshape(-1, batch, child.shape[1]), predictor.detach())
            terms.add(predictor, score.mul_(coefficients.unsqueeze(-1)).sum(0).neg_())
        else:
            terms.add(predictor, layer.family.score(child, predictor.detach()).mul_(-column))


def sleep_terms(
    machine: HelmholtzMachine,
    dreams: int,
    coefficient: float,
    terms: Terms,
    generator: Generator | None = None,
    *,
    observe_dreams: bool = False,
) -> list[Tensor]:
    """The loss −coefficient · mean of log q(h|x) over dreams (x, h) ~ p; q's Fisher does not see them.

    With `observe_dreams` they feed the Fisher of p. Returns the dreams, from the data up.
    """
    with torch.no_grad(), no_capture():
        predictors = [machine.prior(dreams)]
        path = [machine.prior.family.sample(predictors[0], generator)]
        for i in reversed(range(len(machine.generative))):
            predictors.append(machine.down(i, path[-1]))
            path.append(machine.generative_layers()[i].family.sample(predictors[-1], generator))
    predictors.reverse()
    path.reverse()
    if observe_dreams:
        for i, (above, predictor) in enumerate(zip(path[1:], predictors, strict=False)):
            machine.observe_down(i, above, predictor)
        observe(machine.prior, None, predictors[-1])
    with no_capture():
        for i, (layer, below, above) in enumerate(zip(machine.recognition_layers(), path[:-1], path[1:], strict=True)):
            predictor = machine.up(i, below)
            terms.add(predictor, layer.family.score(above, predictor.detach()).mul_(-coefficient / dreams))
    return path


def _children(machine: HelmholtzMachine) -> list[StochasticLayer]:
    """The layers that give the hidden samples their probability: generative layers above the bottom, then the prior."""
    return [*machine.generative_layers()[1:], machine.prior]


def _by_sample(rows: Tensor, samples: int) -> Tensor:
    """(S·B, units) as (S, B, units)."""
    return rows.reshape(samples, -1, rows.shape[-1])
