"""The one contract of all solvers, and the problem they are given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self


@dataclass
class Problem:
    """The blocks αI + Uᵀ Q_j U of one group of units, and the gradient that a solver may calibrate itself on."""

    parents: Tensor
    """U, (n × d), distinct rows."""
    weights: Tensor
    """w_k q_jk, (n × units), or (n × 1) where all units share one block."""
    damping: float
    """α."""
    gradient: Tensor
    """(units × d)."""
    tolerance: float = 1e-2
    """The relative residual that an iterative solver may leave."""
    update_every: int = 1
    """For how many steps what is prepared will be used."""

    @property
    def blocks(self) -> int:
        """How many different blocks there are."""
        return int(self.weights.shape[1])


@dataclass
class Solver:
    """(αI + F_j)⁻¹ times a vector for every unit j; what it keeps are its dataclass fields and nothing else."""

    name: ClassVar[str]

    @classmethod
    def prepare(cls, problem: Problem) -> Self:
        """Do once what is worth keeping for `update_every` solves."""
        return cls.begin(problem)[0]

    @classmethod
    def begin(cls, problem: Problem) -> tuple[Self, Tensor]:
        """Prepare, and solve for the problem's own gradient; may synchronise with the host."""
        solver = cls.prepare(problem)
        return solver, solver.solve(problem.gradient)

    def solve(self, gradient: Tensor) -> Tensor:
        """Row j of the result is (αI + F_j)⁻¹ times row j of the gradient; never synchronises with the host."""
        raise NotImplementedError

    def blocks(self) -> Tensor:
        """The matrices αI + F_j that `solve` inverts, (units or 1, d, d); for inspection."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The fields, as plain tensors and numbers."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def nbytes(self) -> int:
        """Bytes of tensor memory kept."""
        return sum(v.numel() * v.element_size() for v in self.state().values() if isinstance(v, Tensor))

    def to(self, device: torch.device) -> Self:
        """The same solver on another device; the dtype stays."""
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.state().items()}
        return type(self)(**moved)


_SMALL = 64
"""Up to so many parents, blocks are built as matrix products with all products of two parents."""
_CHUNK = 2**22
"""Numbers of such products in memory at once."""


def gram_blocks(parents: Tensor, weights: Tensor, damping: float) -> Tensor:
    """αI + Uᵀ Q_j U as dense matrices, (blocks, d, d)."""
    d, units = parents.shape[1], weights.shape[1]
    if d <= _SMALL:
        blocks = parents.new_zeros(units, d * d)
        rows = max(1, _CHUNK // (d * d))
        for u, q in zip(torch.split(parents, rows), torch.split(weights, rows), strict=True):
            blocks.addmm_(q.T, (u.unsqueeze(2) * u.unsqueeze(1)).reshape(-1, d * d))
        blocks = blocks.reshape(units, d, d)
    else:
        blocks = parents.new_empty(units, d, d)
        for j, q in enumerate(weights.unbind(1)):
            torch.mm(parents.T, q.unsqueeze(1) * parents, out=blocks[j])
    blocks.diagonal(dim1=1, dim2=2).add_(damping)
    return blocks
