"""A family together with a predictor: the distribution of a layer's units given their parents."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from .base import Family


@dataclass(frozen=True)
class Conditional:
    """A family together with the predictor that its parents gave it, units on the last axis."""

    family: Family
    predictor: Tensor
    """(… × outputs)."""
    shape: tuple[int, ...] | None = None
    """The shape of one sample, channels first; None: a row of units."""

    def _in_space(self, units: Tensor) -> Tensor:
        return units if self.shape is None else units.reshape(*units.shape[:-1], *self.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(value | parents), one number per sample."""
        flat = value if self.shape is None else value.flatten(-len(self.shape))
        return self.family.log_prob(flat, self.predictor).sum(-1)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """One draw per sample, without a gradient."""
        return self._in_space(self.family.sample(self.predictor, generator))

    @property
    def mean(self) -> Tensor:
        """The expectation of each unit."""
        return self._in_space(self.family.mean(self.predictor))

    def entropy(self) -> Tensor:
        """The entropy given the parents, one number per sample."""
        return self.family.entropy(self.predictor).sum(-1)
