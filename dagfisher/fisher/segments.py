"""Runs of units that share their parents and have Fisher weights of one kind: each is one problem for a solver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..solvers import GramProblem, Problem, RowProblem
from ..solvers.base import gram_blocks


class RowSegment(NamedTuple):
    """A run of units by the rows of their parents."""

    parents: Tensor
    """(n × d)."""
    weights: Tensor
    """w_k q_jk, (n × units), or (n × 1) where all units share one block."""
    units: int

    def problem(self, damping: float, gradient: Tensor, tolerance: float, update_every: int) -> Problem:
        """These blocks with a damping and the gradient (units × d) of their units."""
        return RowProblem(self.parents, self.weights, damping, gradient, tolerance, update_every)

    def damped_blocks(self, damping: float) -> Tensor:
        """αI + F_j, (units or 1 × d × d)."""
        return gram_blocks(self.parents, self.weights, damping)

    @property
    def parents_count(self) -> int:
        """d, the constant 1 included."""
        return self.parents.shape[1]

    def to_gram(self) -> GramSegment:
        """The same blocks, built."""
        return GramSegment(gram_blocks(self.parents, self.weights, 0.0), self.units)


class GramSegment(NamedTuple):
    """A run of units by their blocks."""

    blocks: Tensor
    """(units × d × d), or (1 × d × d) where all units share one block."""
    units: int

    def problem(self, damping: float, gradient: Tensor, tolerance: float, update_every: int) -> Problem:
        """These blocks with a damping and the gradient (units × d) of their units."""
        return GramProblem(self.blocks, damping, gradient, tolerance, update_every)

    def damped_blocks(self, damping: float) -> Tensor:
        """αI + F_j, (units or 1 × d × d)."""
        return self.blocks + damping * torch.eye(self.blocks.shape[1]).to(self.blocks)

    @property
    def parents_count(self) -> int:
        """d, the constant 1 included."""
        return self.blocks.shape[1]


Segment = RowSegment | GramSegment


def row_segments(rows: Tensor, weights: Sequence[Tensor], sizes: tuple[int, ...]) -> list[RowSegment]:
    """The runs of units of a layer.

    Args:
        rows: (n × d), or (n × groups × d) for a grouped convolution.
        weights: (n × units) or (n × 1) for each group of units that the family distinguishes.
        sizes: how many units each of those groups has.
    """
    if rows.dim() == 2:
        return [RowSegment(rows, q, size) for q, size in zip(weights, sizes, strict=True)]
    channels = sum(sizes) // rows.shape[1]
    found, start = [], 0
    for q, size in zip(weights, sizes, strict=True):
        inner = range((start // channels + 1) * channels, start + size, channels)
        for first, last in pairwise([start, *inner, start + size]):
            part = q if q.shape[1] == 1 else q[:, first - start : last - start]
            found.append(RowSegment(rows[:, first // channels].contiguous(), part, last - first))
        start += size
    return found
