"""The baseline that the library's solvers are measured against, and the reference that all are checked by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from trained_layer import LayerProblem

LEAST_WEIGHT = 1e-8
"""α/q needs q > 0: smaller weights are lifted to this. It moves a block by far less than float32 errors do."""


@dataclass
class Textbook:
    """(1+α)/α [g_j − Uᵀ (αQ_j⁻¹ + UUᵀ)⁻¹ U g_j] with one n × n inverse kept for every unit, as published."""

    parents: Tensor
    inverses: Tensor
    damping: float

    @classmethod
    def prepare(cls, problem: LayerProblem) -> Textbook:
        parents, alpha = problem.parents, problem.damping
        inner = (parents @ parents.T).repeat(problem.weights.shape[1], 1, 1)
        inner.diagonal(dim1=1, dim2=2).add_(alpha / problem.weights.T.clamp_min(LEAST_WEIGHT))
        return cls(parents, torch.cholesky_inverse(torch.linalg.cholesky(inner)), alpha)

    def solve(self, gradient: Tensor) -> Tensor:
        """The natural gradient."""
        inside = torch.einsum("jab,jb->ja", self.inverses, gradient @ self.parents.T)
        return (gradient - inside @ self.parents) / self.damping

    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(t.numel() * t.element_size() for t in (self.parents, self.inverses))


def exact(problem: LayerProblem) -> tuple[Tensor, Tensor]:
    """The natural gradients of both gradients of a problem, by Cholesky factors of its blocks in float64."""
    parents, weights = problem.parents.double(), problem.weights.double()
    both = torch.stack([problem.gradient, problem.later], 2).double()
    chunk = max(1, 2**24 // parents.shape[1] ** 2)
    parts = []
    for q, right in zip(torch.split(weights.T, chunk), torch.split(both, chunk), strict=True):
        blocks = (q.unsqueeze(2) * parents).mT @ parents
        blocks.diagonal(dim1=1, dim2=2).add_(problem.damping)
        parts.append(torch.cholesky_solve(right, torch.linalg.cholesky(blocks)))
    solutions = torch.cat(parts)
    return solutions[:, :, 0], solutions[:, :, 1]


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖ over all units."""
    return float((found.double() - wanted).norm() / wanted.norm())
