"""Penalties on weights and rewards for entropy, as small objects that any algorithm takes.

L1 and L2 act on the parameters directly, outside the inverse Fisher (thesis 6.14). The entropy of the units given their
parents is part of the objective, so its gradient goes through the inverse Fisher with the rest (thesis 6.18); it is the
exact one of each layer, in closed form, given sampled parents. (The thesis estimates it by the mean of ∇ log p over the
model's own samples, whose expectation is zero.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._settings import LARGEST_RATE
from ..errors import SettingError
from ..nn import StochasticLayer
from .machine import HelmholtzMachine
from .objectives import Terms
from .sampling import Wake

WARM_UPS = ("linear", "hyperbolic")


@dataclass(frozen=True)
class Regulariser:
    """A strength that grows to its full value during the first `warm_up` steps.

    Args:
        strength: of the penalty, or of the reward, per nat.
        warm_up: steps until it counts in full.
        shape: ``"linear"``, t/t_w; or ``"hyperbolic"``, 1/(t_w − t), which the thesis prints (C.3) and which is nearly
            nothing until the last steps.
    """

    strength: float
    warm_up: int = 0
    shape: str = "linear"

    def __post_init__(self) -> None:
        if not 0 <= self.strength < LARGEST_RATE:
            raise SettingError(
                f"a regulariser needs a finite strength of at least 0 and below {LARGEST_RATE:g}, not {self.strength}."
            )
        if self.warm_up < 0 or self.shape not in WARM_UPS:
            raise SettingError(f"warm_up must be at least 0 and its shape one of {', '.join(WARM_UPS)}.")

    @property
    def name(self) -> str:
        """The name of its column in metrics.csv."""
        return type(self).__name__.lower()

    def at(self, step: int) -> float:
        """The strength at a step, counted from 0."""
        if step >= self.warm_up:
            return self.strength
        return self.strength * (step / self.warm_up if self.shape == "linear" else 1 / (self.warm_up - step))


class L1(Regulariser):
    """The penalty strength · Σ|w| on weights, not biases; its step is not multiplied by the inverse Fisher."""

    def penalty(self, weight: Tensor) -> Tensor:
        """The penalty on one weight tensor, a scalar, at strength 1."""
        return weight.abs().sum()

    def shrunk(self, weight: Tensor, length: float) -> Tensor:
        """The weight after a step of length rate · strength that lowers the penalty; its sign never changes."""
        return weight.sign() * (weight.abs() - length).clamp_min_(0)


class L2(Regulariser):
    """The penalty ½ · strength · Σw² on weights, not biases; its step is not multiplied by the inverse Fisher."""

    def penalty(self, weight: Tensor) -> Tensor:
        """The penalty on one weight tensor, a scalar, at strength 1."""
        return 0.5 * weight.square().sum()

    def shrunk(self, weight: Tensor, length: float) -> Tensor:
        """The weight after a step of length rate · strength that lowers the penalty; its sign never changes."""
        return weight * max(0.0, 1 - length)


class Entropy(Regulariser):
    """strength · the mean entropy of all units of both networks given their parents, which is maximised."""

    def add(
        self,
        machine: HelmholtzMachine,
        state: Wake,
        weights: Tensor,
        strength: float,
        terms: Terms,
        *,
        share: float = 1.0,
    ) -> Tensor:
        """Add its gradient to the terms of a step.

        Args:
            machine: both networks.
            state: the wake samples.
            weights: of the samples in p's update, (S, B); in q's they count equally.
            strength: of the reward at this step.
            terms: where the gradient is added.
            share: the part of the minibatch that the samples are of, which `weights` sum to.

        Returns:
            The mean entropy, a scalar, times the share.
        """
        column = weights.reshape(-1, 1)
        children = [*machine.generative_layers(), machine.prior]
        total = weights.new_zeros(())
        for layer, predictor in zip(children, state.generative, strict=True):
            total = total + _add(layer, predictor, column, strength, terms)
        for layer, predictor in zip(machine.recognition_layers(), state.recognition, strict=True):
            total = total + _add(layer, predictor, share / max(len(predictor), 1), strength, terms)
        return total


def _add(layer: StochasticLayer, predictor: Tensor, weights: Tensor | float, strength: float, terms: Terms) -> Tensor:
    fixed = predictor.detach()
    terms.add(predictor, layer.family.entropy_score(fixed) * weights * -strength)
    return (layer.family.entropy(fixed) * weights).sum()


def weights_of(machine: nn.Module) -> list[Tensor]:
    """The parameters that L1 and L2 act on: weights, no biases."""
    return [p for p in machine.parameters() if p.dim() > 1]


@torch.no_grad()
def shrinkage(
    machine: HelmholtzMachine, penalties: list[tuple[L1 | L2, float]], rates: dict[Tensor, float]
) -> dict[Tensor, Tensor]:
    """What one step down the slopes of the penalties adds to each weight.

    Args:
        machine: its weights are penalised as they are now, and not changed.
        penalties: each with its strength at this step.
        rates: the learning rate of each weight.
    """
    changes = {}
    for weight in weights_of(machine):
        after: Tensor = weight
        for regulariser, strength in penalties:
            after = regulariser.shrunk(after, min(rates[weight] * strength, LARGEST_RATE))
        changes[weight] = after - weight
    return changes
