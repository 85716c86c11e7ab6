"""The gradients of every algorithm, from samples and the coefficients that the algorithm gives them.

Layers exchange samples, never gradients. So a gradient is known in closed form up to each layer's own linear map:
Σ_k c_k ∂log p_k/∂a · ∂a/∂w, with c_k the coefficient that the algorithm gives to sample k. Automatic differentiation
does the last factor only, for all layers at once. The functions here add terms of a loss, which is minimised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ..capture import no_capture, sample_weights
from .machine import HelmholtzMachine
from .sampling import Wake, by_sample, dream, hidden_layers, joint, log_recognition


@dataclass
class Terms:
    """Predictors and the derivatives of the loss about them: `add` during a step, `backward` once at its end."""

    predictors: list[Tensor] = field(default_factory=list)
    derivatives: list[Tensor] = field(default_factory=list)

    def add(self, predictor: Tensor, derivative: Tensor) -> None:
        """One more term of the gradient: a predictor and ∂loss/∂predictor, of the same shape."""
        self.predictors.append(predictor)
        self.derivatives.append(derivative)

    def backward(self) -> None:
        """Add the gradients to the parameters' `.grad`."""
        torch.autograd.backward(self.predictors, self.derivatives)


class FixedSamples(NamedTuple):
    """Samples and coefficients of one minibatch, of which `losses` can be taken again when the networks have moved."""

    x: Tensor
    """The encoded data, (B, pixels)."""
    hidden: list[Tensor]
    """The wake samples of each hidden layer from the bottom up, (S·B, units)."""
    weights: Tensor
    """Of log p(x, h), (S, B)."""
    coefficients: Tensor | None
    """Of log q(h|x), (S, B), without a baseline; None if the wake samples do not teach q."""
    dreams: list[Tensor]
    """The states of each layer from the data to the top, (n, units); empty if dreams do not teach q."""
    dream_coefficient: float

    def to(self, device: torch.device) -> FixedSamples:
        """The same on another device."""
        return FixedSamples(
            self.x.to(device),
            [h.to(device) for h in self.hidden],
            self.weights.to(device),
            None if self.coefficients is None else self.coefficients.to(device),
            [states.to(device) for states in self.dreams],
            self.dream_coefficient,
        )


@torch.no_grad()
def losses(machine: HelmholtzMachine, of: FixedSamples) -> tuple[Tensor, Tensor]:
    """What the updates of p and of q descend, as the networks are now, the samples and their weights held fixed."""
    _, log_p = joint(machine, of.x, of.hidden, len(of.weights))
    loss_q = log_p.new_zeros((), dtype=torch.float64)
    if of.coefficients is not None:
        loss_q -= (of.coefficients * log_recognition(machine, of.x, of.hidden)).sum(dtype=torch.float64)
    if of.dreams:
        log_q = log_recognition(machine, of.dreams[0], of.dreams[1:])
        loss_q -= of.dream_coefficient * log_q.mean(dtype=torch.float64)
    return -(of.weights * log_p).sum(dtype=torch.float64), loss_q


def generative_terms(machine: HelmholtzMachine, state: Wake, weights: Tensor, terms: Terms) -> None:
    """Add the loss −Σ weights · log p(x, h); weights (S, B) sum to 1."""
    column = weights.reshape(-1, 1)
    bottom, above = machine.generative_layers()[0], state.generative[0]
    score = bottom.family.score(state.x, by_sample(above.detach(), state.samples)).reshape(above.shape)
    terms.add(above, score.mul_(-column))
    for layer, child, predictor in zip(hidden_layers(machine), state.hidden, state.generative[1:], strict=True):
        terms.add(predictor, layer.family.score(child, predictor.detach()).mul_(-column))


def observe_generative(machine: HelmholtzMachine, state: Wake, weights: Tensor) -> None:
    """Feed the Fisher of p with the wake samples and their weights, (S, B)."""
    with sample_weights(weights.reshape(-1)):
        machine.observe_generative([state.x, *state.hidden], state.generative)


def recognition_terms(machine: HelmholtzMachine, state: Wake, coefficients: Tensor, terms: Terms) -> None:
    """Add the loss −Σ coefficients · log q(h|x); coefficients (S, B) of any sign."""
    batch = state.x.shape[0]
    column = coefficients.reshape(-1, 1)
    for i, (layer, child, predictor) in enumerate(
        zip(machine.recognition_layers(), state.hidden, state.recognition, strict=True)
    ):
        if i == 0 and len(predictor) == batch:
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
    """Add the loss −coefficient · mean of log q(h|x) over dreams (x, h) ~ p; q's Fisher does not see them.

    Args:
        machine: dreams, and learns from it.
        dreams: how many.
        coefficient: of the mean in the loss.
        terms: where the loss is added.
        generator: of the draws.
        observe_dreams: feed the Fisher of p with the dreams.

    Returns:
        The dreams as the states of each layer from the data to the top, (dreams, units).
    """
    path, predictors = dream(machine, dreams, generator)
    if observe_dreams:
        machine.observe_generative(path, predictors)
    with no_capture():
        for i, (layer, below, above) in enumerate(zip(machine.recognition_layers(), path[:-1], path[1:], strict=True)):
            predictor = machine.up(i, below, above)
            terms.add(predictor, layer.family.score(above, predictor.detach()).mul_(-coefficient / dreams))
    return path
