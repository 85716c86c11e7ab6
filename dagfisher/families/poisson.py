"""Counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .base import Family, register_family
from .gaussian import LOG_2PI


@dataclass(frozen=True)
class Poisson(Family):
    """A count; the predictor is the log rate: q = λ."""

    name = "poisson"

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        return (torch.exp(predictor),)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        return value * predictor - torch.exp(predictor) - torch.lgamma(value + 1)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        return value - torch.exp(predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        return torch.poisson(torch.exp(predictor.detach()), generator=generator)

    def mean(self, predictor: Tensor) -> Tensor:
        return torch.exp(predictor)

    def entropy(self, predictor: Tensor) -> Tensor:
        """E[−log p]: the sum over counts for rates up to 100, the expansion in 1/λ above (error below 1e-8)."""
        log_rate = predictor.clamp(max=math.log(100.0))
        counts = torch.arange(250, device=predictor.device, dtype=predictor.dtype)
        log_p = self.log_prob(counts, log_rate.unsqueeze(-1))
        small = -(torch.exp(log_p) * log_p).sum(-1)
        inverse = torch.exp(-predictor.clamp(min=math.log(100.0)))
        large = 0.5 * (1 + LOG_2PI + predictor) - inverse / 12 - inverse**2 / 24 - 19 * inverse**3 / 360
        return torch.where(predictor > math.log(100.0), large, small)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        """λ E[log((k + 1)/λ)], the derivative about log λ; the derivative of the expansion above λ = 100."""
        log_rate = predictor.clamp(max=math.log(100.0))
        counts = torch.arange(250, device=predictor.device, dtype=predictor.dtype)
        p = torch.exp(self.log_prob(counts, log_rate.unsqueeze(-1)))
        small = torch.exp(log_rate) * ((p * torch.log1p(counts)).sum(-1) - log_rate)
        inverse = torch.exp(-predictor.clamp(min=math.log(100.0)))
        large = 0.5 + inverse / 12 + inverse**2 / 12 + 19 * inverse**3 / 120
        return torch.where(predictor > math.log(100.0), large, small)


register_family("poisson", Poisson)
