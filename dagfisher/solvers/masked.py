"""Conjugate gradients for units that each have parents of their own.

One product with every block is two matrix products and a mask, Y = αX + M ∘ (((X Uᵀ) ∘ qᵀ) U); X stays zero where M is.
The preconditioner is that of the same layer without a mask, in the eigenbasis that all units share, masked on the way
out: nothing of size l·d² exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._reading import Asking
from .base import AskingSolver, Cost
from .blocks import gram_blocks, masked_blocks
from .descent import Descent, calibrate, guide, iterate
from .plain import OPERATIONS
from .problems import BlockShape, Kind, MaskedProblem
from .rates import rates
from .reductions import diagonal_along, drop_rows, full_basis, iterated_share, leading_directions, weighted_gram
from .spd import eigenvectors


@dataclass
class MaskedConjugate(AskingSolver):
    """Keeps rows, weights, mask and preconditioner: O(n(l + d) + l·d + d²) numbers."""

    rows: Tensor
    """(n' × d): the kept rows."""
    weights: Tensor
    """(units × n')."""
    mask: Tensor
    """(units × d), true where a parent is allowed."""
    directions: Tensor
    """(d × r): the eigenbasis of the weighted Gram matrix, or its leading part."""
    diagonal: Tensor
    """(units × r): the inverse of α + diag F_j along the directions, less `remainder`."""
    remainder: Tensor
    """(units × 1): the inverse of the mean of α + F_j outside the directions; 0 for a whole basis."""
    damping: float
    iterations: int

    name: ClassVar[str] = "conjugate, masked"
    variant_of: ClassVar[str | None] = "conjugate"
    kinds: ClassVar[tuple[Kind, ...]] = ("masked",)
    by_unit: ClassVar[dict[str, int] | None] = {"weights": 0, "mask": 0, "diagonal": 0, "remainder": 0}

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        n, d, units, _, update_every, _, _, _ = shape
        known = rates(device)
        whole = full_basis(n, d, units, update_every, known)
        iteration = 2.0 * units * d * (n + (d if whole else 32)) + 1.5 * OPERATIONS * known.operation
        prepare = float(n) * d * d + (known.eigh * d**3 if whole else 0.0) + 50 * known.operation
        return Cost(prepare / update_every + 6 * iteration, n * (units + d) + 3 * units * d + d * d)

    @classmethod
    def asking(cls, problem: MaskedProblem) -> Asking[tuple[MaskedConjugate, Tensor]]:
        rows, weights, every = drop_rows(problem)
        alpha, d = problem.damping, rows.shape[1]
        gram = weighted_gram(rows, every)
        whole = full_basis(len(rows), d, problem.blocks, problem.update_every, rates(rows.device))
        directions = eigenvectors(gram).flip(1) if whole else leading_directions(gram)
        along, remainder = diagonal_along(directions, rows, weights, alpha)
        remainder = torch.zeros_like(remainder) if whole else remainder
        diagonal = along.sub_(remainder)
        solver = cls(rows, weights.T.contiguous(), problem.mask, directions.contiguous(), diagonal, remainder, alpha, 0)
        gradient = problem.gradient
        tells = problem.length(gradient) > 0
        on, own = yield from guide(gradient, tells, lambda: problem.typical(rows) * problem.mask)
        goal, length = iterated_share(problem), problem.length
        solver.iterations, solution = yield from calibrate(solver, on, length(on), goal, length)
        return solver, solution if own else solver.solve(gradient)

    def solve(self, gradient: Tensor) -> Tensor:
        return iterate(Descent(self, gradient), self.iterations)

    def product(self, x: Tensor) -> Tensor:
        """(αI + F_j) x_j for every unit; x is zero under the mask."""
        seen = (x @ self.rows.T).mul_(self.weights)
        return torch.addmm(x, seen, self.rows, beta=self.damping).mul_(self.mask)

    def precondition(self, residual: Tensor) -> Tensor:
        """The inverse in the shared basis, masked."""
        along = (residual @ self.directions).mul_(self.diagonal)
        return torch.addmm(residual * self.remainder, along, self.directions.T).mul_(self.mask)

    def blocks(self) -> Tensor:
        return masked_blocks(gram_blocks(self.rows, self.weights.T, 0.0), self.mask, self.damping)
