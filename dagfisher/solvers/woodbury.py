"""The inverse through the n × n matrices of the samples: exact, for fewer distinct samples than parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._reading import Asking
from .base import AskingSolver, Cost
from .blocks import gram_blocks, masked_blocks
from .dense import left_multiply
from .problems import BlockShape, Kind, RowProblem
from .rates import rates
from .spd import inverting


@dataclass
class Woodbury(AskingSolver):
    """Keeps W_j = Q_j^½ (αI + Q_j^½ U Uᵀ Q_j^½)⁻¹ Q_j^½, blocks × n × n numbers; no division by q anywhere."""

    parents: Tensor
    weights: Tensor
    cores: Tensor
    damping: float
    mask: Tensor | None = None
    """(units × d), true where a parent is allowed."""

    name: ClassVar[str] = "woodbury"
    kinds: ClassVar[tuple[Kind, ...]] = ("plain", "masked")
    by_unit: ClassVar[dict[str, int] | None] = {"weights": 1, "cores": 0, "mask": 0}

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        n, d, units, blocks, update_every, kind, _, _ = shape
        known = rates(device)
        prepare = blocks * (n**2 + known.small_inverse * n**3) + 40 * known.operation
        if kind == "masked":  # a Gram matrix for each unit
            prepare += blocks * n**2 * d
        solve = units * (known.stored * n**2 + 2 * n * d) + 3 * known.operation
        return Cost(prepare / update_every + solve, blocks * n**2 + n * (d + blocks))

    @classmethod
    def asking(cls, problem: RowProblem) -> Asking[tuple[Woodbury, Tensor]]:
        root = problem.weights.T.sqrt()
        parents, mask = problem.parents, getattr(problem, "mask", None)
        gram = parents @ parents.T if mask is None else _masked_grams(parents, mask)
        inner = root.unsqueeze(2) * gram * root.unsqueeze(1)
        inner.diagonal(dim1=1, dim2=2).add_(problem.damping)
        cores = yield from inverting(inner, jitter=True)
        cores.mul_(root.unsqueeze(2)).mul_(root.unsqueeze(1))
        solver = cls(parents, problem.weights, cores, problem.damping, mask)
        return solver, solver.solve(problem.gradient)

    def solve(self, gradient: Tensor) -> Tensor:
        seen = left_multiply(gradient @ self.parents.T, self.cores)
        solution = torch.addmm(gradient, seen, self.parents, alpha=-1).div_(self.damping)
        return solution if self.mask is None else solution.mul_(self.mask)

    def applying(self, gradient: Tensor) -> float:
        n = len(self.parents)
        return 2.0 * n * gradient.numel() + rates(gradient.device).stored * len(gradient) * n**2

    def blocks(self) -> Tensor:
        if self.mask is not None:
            return masked_blocks(gram_blocks(self.parents, self.weights, 0.0), self.mask, self.damping)
        return gram_blocks(self.parents, self.weights, self.damping)


def _masked_grams(parents: Tensor, mask: Tensor) -> Tensor:
    """U diag(m_j) Uᵀ of every unit, (units × n × n)."""
    kept = mask.to(parents.dtype)
    return torch.stack([(parents * row) @ parents.T for row in kept])
