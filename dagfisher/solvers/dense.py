"""Every block built, factored and inverted: exact, for layers with few parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Problem, Solver, gram_blocks
from .spd import spd_inverse


@dataclass
class Dense(Solver):
    """Keeps (αI + F_j)⁻¹, blocks × d × d numbers."""

    inverses: Tensor

    name: ClassVar[str] = "dense"

    @classmethod
    def prepare(cls, problem: Problem) -> Dense:
        blocks = gram_blocks(problem.parents, problem.weights, problem.damping)
        return cls.from_blocks(blocks, problem.damping)

    @classmethod
    def from_blocks(cls, blocks: Tensor, damping: float) -> Dense:
        """From αI + F_j, (blocks × d × d)."""
        return cls(spd_inverse(blocks, jitter=damping > 0))

    def solve(self, gradient: Tensor) -> Tensor:
        return left_multiply(gradient, self.inverses)

    def blocks(self) -> Tensor:
        return spd_inverse(self.inverses, jitter=True)


def left_multiply(rows: Tensor, matrices: Tensor) -> Tensor:
    """Row j times matrix j (or the one matrix that all rows share); the vector on the left reads memory in order."""
    if matrices.shape[0] == 1:
        return rows @ matrices[0]
    return torch.bmm(rows.unsqueeze(1), matrices).squeeze(1)
