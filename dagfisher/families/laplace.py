"""Units with a Laplace distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..errors import DeclarationError
from .base import Family, register_family


@dataclass(frozen=True)
class Laplace(Family):
    """A Laplace unit; the predictor is [location, log b] in two halves, or the location alone when `b` is fixed.

    q of the location is 1/b², q of log b is 1, and the two do not couple.
    """

    b: float | None = None
    name = "laplace"

    def __post_init__(self) -> None:
        if self.b is not None and not 0 < self.b < math.inf:
            raise DeclarationError(f"b must be a positive finite number, not {self.b!r}.")

    def split(self, outputs: int) -> tuple[int, ...]:
        if self.b is not None:
            return (outputs,)
        if outputs % 2:
            raise DeclarationError(
                f"a Laplace layer gives [location, log b] in two halves, but it has {outputs} outputs; give it an even "
                f"number, or a fixed b."
            )
        return (outputs // 2, outputs // 2)

    def parts(self, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log b, (… × units) each."""
        if self.b is not None:
            return predictor, torch.full_like(predictor, math.log(self.b))
        location, log_b = predictor.chunk(2, dim=-1)
        return location, log_b

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        if self.b is not None:
            return (predictor.new_full((*predictor.shape[:-1], 1), self.b**-2),)
        log_b = self.parts(predictor)[1]
        return torch.exp(-2 * log_b), log_b.new_ones((*log_b.shape[:-1], 1))

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        location, log_b = self.parts(predictor)
        return -(value - location).abs() * torch.exp(-log_b) - log_b - math.log(2)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        location, log_b = self.parts(predictor)
        scaled = (value - location) * torch.exp(-log_b)
        about_location = scaled.sign() * torch.exp(-log_b)
        return about_location if self.b is not None else torch.cat([about_location, scaled.abs() - 1], dim=-1)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        location, log_b = self.parts(predictor.detach())
        # The difference of two exponential variables.
        first, second = (torch.empty_like(location).exponential_(generator=generator) for _ in range(2))
        return location + torch.exp(log_b) * (first - second)

    def mean(self, predictor: Tensor) -> Tensor:
        return self.parts(predictor)[0]

    def entropy(self, predictor: Tensor) -> Tensor:
        return self.parts(predictor)[1] + 1 + math.log(2)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        if self.b is not None:
            return torch.zeros_like(predictor)
        location, log_b = self.parts(predictor)
        return torch.cat([torch.zeros_like(location), torch.ones_like(log_b)], dim=-1)


register_family("laplace", Laplace)
