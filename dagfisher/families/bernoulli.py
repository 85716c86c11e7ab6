"""Binary units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .._draws import noise
from ..errors import DeclarationError
from .base import Family, register_family


@dataclass(frozen=True)
class Bernoulli(Family):
    """A unit with two states; the predictor is the logit of the upper one: q = ρ(1−ρ) for any two states."""

    states: tuple[float, float] = (0.0, 1.0)
    """The lower and the upper state: (0, 1) or (−1, 1)."""
    name = "bernoulli"

    def __post_init__(self) -> None:
        if self.states not in ((0, 1), (-1, 1)):
            raise DeclarationError(f"Bernoulli states must be (0, 1) or (-1, 1), not {self.states}.")

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        # ρ(1−ρ) from the smaller of ρ and 1−ρ, which does not cancel for large a of either sign.
        smaller = predictor.abs().neg_().sigmoid_()
        return (torch.addcmul(smaller, smaller, smaller, value=-1),)

    @property
    def _signed(self) -> bool:
        return self.states[0] < 0

    def to_bits(self, value: Tensor) -> Tensor:
        """The states as 0 and 1."""
        return (value + 1) / 2 if self._signed else value

    def from_bits(self, bits: Tensor) -> Tensor:
        """0 and 1 as the states."""
        return bits * 2 - 1 if self._signed else bits

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        if self._signed:
            return -F.softplus(-(value * predictor), threshold=40)
        return value * predictor - F.softplus(predictor, threshold=40)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        if self._signed:
            return torch.add(0.5 - torch.sigmoid(predictor), value, alpha=0.5)
        return value - torch.sigmoid(predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        # Comparing uniform noise is twice as fast as torch.bernoulli on a CPU.
        drawn = noise("uniform", predictor, generator)
        bits = torch.lt(drawn, torch.sigmoid(predictor.detach()), out=drawn)
        return bits.mul_(2).sub_(1) if self._signed else bits

    def mean(self, predictor: Tensor) -> Tensor:
        return self.from_bits(torch.sigmoid(predictor))

    def entropy(self, predictor: Tensor) -> Tensor:
        return F.softplus(predictor, threshold=40) - predictor * torch.sigmoid(predictor)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        return -predictor * self.fisher_weights(predictor)[0]


register_family("bernoulli", Bernoulli)
