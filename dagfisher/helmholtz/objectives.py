"""The gradients of every algorithm, from samples and the coefficients that the algorithm gives them.

Layers exchange samples, never gradients. So a gradient is known in closed form up to each layer's own linear map:
Σ_k c_k ∂log p_k/∂a · ∂a/∂w, with c_k the coefficient that the algorithm gives to sample k. Automatic differentiation
does the last factor only, for all layers at once. The functions here add terms of a loss, which is minimised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from ..capture import no_capture, sample_weights
from .machine import HelmholtzMachine
from .sampling import Wake, by_sample, dream, hidden_layers


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
            score = layer.family.score(by_sample(child, state.samples), predictor.detach())
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
            terms.add(predictor, layer.family.score(above, predictor.detach()).mul_(-coefficient / max(dreams, 1)))
    return path
