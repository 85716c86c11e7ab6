"""Only the diagonal of every block, as in DNRWS: an approximation that couples no parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Solver
from .problems import Kind, Problem


@dataclass
class Diagonal(Solver):
    """Keeps α + diag F_j, blocks × d numbers."""

    diagonal: Tensor

    name: ClassVar[str] = "diagonal"
    exact: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False
    needs_damping: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = ("plain", "masked", "coupled")
    by_unit: ClassVar[dict[str, int] | None] = {"diagonal": 0}

    @classmethod
    def prepare(cls, problem: Problem) -> Diagonal:
        return cls(problem.damped_diagonal())

    def solve(self, gradient: Tensor) -> Tensor:
        return gradient / self.diagonal

    def blocks(self) -> Tensor:
        return torch.diag_embed(self.diagonal)
