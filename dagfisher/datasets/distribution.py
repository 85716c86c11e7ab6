"""A distribution over binary patterns that is known exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Distribution:
    """The probability of every binary pattern of some length.

    ``patterns`` holds all of them, float32, one per row, in the order of the binary numbers that they spell;
    ``probabilities`` (float64, always on the CPU) sums to one.
    """

    patterns: Tensor
    probabilities: Tensor

    @property
    def support(self) -> Tensor:
        """The patterns with positive probability, one per row."""
        return self.patterns[self._positive.to(self.patterns.device)]

    @property
    def support_probabilities(self) -> Tensor:
        """The probabilities of the rows of ``support``."""
        return self.probabilities[self._positive]

    @property
    def entropy(self) -> float:
        """The entropy in nats: no model has an expected log-likelihood above its negative."""
        return float(torch.special.entr(self.probabilities).sum())

    def kl_from(self, log_p: Tensor) -> Tensor:
        """KL(data || model) in nats, exact, from the model's log-probability of each row of ``support``."""
        p = self.support_probabilities
        if log_p.shape != p.shape:
            raise ValueError(f"log_p has shape {tuple(log_p.shape)}; it needs one value per row of support ({len(p)})")
        return (p * (p.log() - log_p.to("cpu", torch.float64))).sum()

    def to(self, device: torch.device | str) -> Distribution:
        """The same distribution with its patterns on ``device``."""
        return replace(self, patterns=self.patterns.to(device))

    @property
    def _positive(self) -> Tensor:
        return self.probabilities > 0
