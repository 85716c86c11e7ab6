"""Runs of units that share their parents and have Fisher weights of one kind: each is one problem for a solver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..solvers import CoupledProblem, GramProblem, MaskedProblem, Problem, RowProblem
from ..solvers.blocks import gram_blocks


class RowSegment(NamedTuple):
    """A run of units by the rows of their parents."""

    parents: Tensor
    """(n × d)."""
    weights: Tensor
    """w_k q_jk, (n × units), or (n × 1) where all units share one block."""
    units: int
    mask: Tensor | None = None
    """(units × d), true where a parent is allowed; None: all are."""

    def problem(self, damping: float, gradient: Tensor, tolerance: float, update_every: int) -> Problem:
        """These blocks with a damping and the gradient (units × d) of their units."""
        more = (damping, gradient, tolerance, update_every)
        if self.mask is not None:
            return MaskedProblem(self.parents, self.weights, self.mask, *more)
        return RowProblem(self.parents, self.weights, *more)

    def damped_blocks(self, damping: float) -> Tensor:
        """αI + F_j, (units or 1 × d × d)."""
        return self.problem(damping, self.parents.new_zeros(self.units, self.parents_count), 0.0, 1).damped_blocks()

    def curvature(self, vectors: Tensor) -> Tensor:
        """Σ_j v_jᵀ F_j v_j of one vector for each unit, (units × d); a scalar."""
        return (self.parents @ vectors.T).square_().mul_(self.weights).sum()

    def trace(self) -> Tensor:
        """Σ_j tr F_j, a scalar; with a mask, of the entries that it allows."""
        if self.mask is not None:
            return ((self.weights.T @ self.parents.square()) * self.mask).sum()
        whole = self.weights.sum(1) @ self.parents.square().sum(1)
        return whole * (self.units / self.weights.shape[1])

    @property
    def parents_count(self) -> int:
        """d, the constant 1 included."""
        return self.parents.shape[1]

    def part(self, own: range) -> RowSegment:
        """Some of the units."""
        units = slice(own.start, own.stop)
        weights = self.weights if self.weights.shape[1] == 1 else self.weights[:, units]
        return RowSegment(self.parents, weights, len(own), None if self.mask is None else self.mask[units])

    def to_gram(self) -> GramSegment:
        """The same blocks, built."""
        return GramSegment(gram_blocks(self.parents, self.weights, 0.0), self.units)


class GramSegment(NamedTuple):
    """A run of units by their blocks."""

    blocks: Tensor
    """(units × d × d), or (1 × d × d) where all units share one block."""
    units: int
    mask: Tensor | None = None
    """(units × d), true where a parent is allowed; None: all are."""

    def problem(self, damping: float, gradient: Tensor, tolerance: float, update_every: int) -> Problem:
        """These blocks with a damping and the gradient (units × d) of their units."""
        return GramProblem(self.blocks, damping, gradient, tolerance, update_every, self.mask)

    def damped_blocks(self, damping: float) -> Tensor:
        """αI + F_j, (units or 1 × d × d)."""
        return self.problem(damping, self.blocks.new_zeros(self.units, self.parents_count), 0.0, 1).damped_blocks()

    def curvature(self, vectors: Tensor) -> Tensor:
        """Σ_j v_jᵀ F_j v_j of one vector for each unit, (units × d); a scalar."""
        if len(self.blocks) == 1:
            return (vectors @ self.blocks[0]).mul_(vectors).sum()
        return torch.bmm(vectors.unsqueeze(1), self.blocks).squeeze(1).mul_(vectors).sum()

    def trace(self) -> Tensor:
        """Σ_j tr F_j, a scalar; with a mask, of the entries that it allows."""
        if self.mask is not None:
            return (self.blocks.diagonal(dim1=1, dim2=2) * self.mask).sum()
        return self.blocks.diagonal(dim1=1, dim2=2).sum() * (self.units / len(self.blocks))

    def part(self, own: range) -> GramSegment:
        """Some of the units."""
        units = slice(own.start, own.stop)
        blocks = self.blocks if len(self.blocks) == 1 else self.blocks[units]
        return GramSegment(blocks, len(own), None if self.mask is None else self.mask[units])

    @property
    def parents_count(self) -> int:
        """d, the constant 1 included."""
        return self.blocks.shape[1]


class CoupledSegment(NamedTuple):
    """Variables whose units are coupled, by the rows of their parents."""

    parents: Tensor
    """(n × d)."""
    probability: Tensor
    """π, (n × units)."""
    shares: Tensor
    """The weights of the rows, (n)."""
    classes: int
    """Units of a variable."""

    @property
    def units(self) -> int:
        """Units of all variables."""
        return self.probability.shape[1]

    @property
    def parents_count(self) -> int:
        """d, the constant 1 included."""
        return self.parents.shape[1]

    def problem(self, damping: float, gradient: Tensor, tolerance: float, update_every: int) -> Problem:
        """These blocks with a damping and the gradient (units × d) of their units."""
        more = (damping, gradient, tolerance, update_every)
        return CoupledProblem(self.parents, self.probability, self.shares, self.classes, *more)

    def damped_blocks(self, damping: float) -> Tensor:
        """αI + F_v, (variables × C·d × C·d)."""
        return self.problem(damping, self.parents.new_zeros(self.units, self.parents_count), 0.0, 1).damped_blocks()

    def curvature(self, vectors: Tensor) -> Tensor:
        """Σ_v v_vᵀ F_v v_v of one vector for each unit, (units × d): the mean variance of what they add to logits."""
        seen = (self.parents @ vectors.T).reshape(len(self.parents), -1, self.classes)
        pi = self.probability.reshape(seen.shape)
        mean = (pi * seen).sum(2, keepdim=True)
        return (self.shares @ (pi * (seen - mean).square()).sum(2)).sum()

    def trace(self) -> Tensor:
        """Σ_v tr F_v, a scalar."""
        own = (self.probability * (1 - self.probability)).sum(1)
        return (self.shares * own) @ self.parents.square().sum(1)

    def part(self, own: range) -> CoupledSegment:
        """Some of the units, of whole variables."""
        return CoupledSegment(self.parents, self.probability[:, own.start : own.stop], self.shares, self.classes)


Segment = RowSegment | GramSegment | CoupledSegment


def row_segments(
    rows: Tensor, weights: Sequence[Tensor], sizes: tuple[int, ...], mask: Tensor | None = None
) -> list[RowSegment]:
    """The runs of units of a layer.

    Args:
        rows: (n × d), or (n × groups × d) for a grouped convolution.
        weights: (n × units) or (n × 1) for each group of units that the family distinguishes.
        sizes: how many units each of those groups has.
        mask: (all units × d), or None.
    """
    if rows.dim() == 2:
        masks = [None] * len(sizes) if mask is None else torch.split(mask, list(sizes))
        return [RowSegment(rows, q, size, m) for q, size, m in zip(weights, sizes, masks, strict=True)]
    channels = sum(sizes) // rows.shape[1]
    found, start = [], 0
    for q, size in zip(weights, sizes, strict=True):
        inner = range((start // channels + 1) * channels, start + size, channels)
        for first, last in pairwise([start, *inner, start + size]):
            part = q if q.shape[1] == 1 else q[:, first - start : last - start]
            own = None if mask is None else mask[first:last]
            found.append(RowSegment(rows[:, first // channels].contiguous(), part, last - first, own))
        start += size
    return found
