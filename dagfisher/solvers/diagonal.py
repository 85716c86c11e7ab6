"""Only the diagonal of every block (the thesis' DNRWS): an approximation that couples no parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Problem, Solver


@dataclass
class Diagonal(Solver):
    """Keeps α + diag F_j, blocks × d numbers."""

    diagonal: Tensor

    name: ClassVar[str] = "diagonal"

    @classmethod
    def prepare(cls, problem: Problem) -> Diagonal:
        return cls((problem.weights.T @ problem.parents.square()).add_(problem.damping))

    @classmethod
    def from_blocks(cls, blocks: Tensor, damping: float) -> Diagonal:
        """From αI + F_j, (blocks × d × d)."""
        return cls(blocks.diagonal(dim1=1, dim2=2).contiguous())

    def solve(self, gradient: Tensor) -> Tensor:
        return gradient / self.diagonal

    def blocks(self) -> Tensor:
        return torch.diag_embed(self.diagonal)
