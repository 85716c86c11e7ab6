"""Preconditioned conjugate gradients over all units at once, in a basis that all units of a layer share.

One product with every block is two matrix products, Y = αX + ((X Pᵀ) ∘ qᵀ) P. Three reductions come first:

1. Rows of U whose whole contribution Σ_k max_j q_jk ‖u_k‖² stays below a part of tolerance · α are left out; the
   residual that this can cause is bounded by that part of the tolerance. Importance weights concentrate, so that often
   most rows go.
2. With fewer rows than parents, coordinates are taken in the row space; outside it every block is αI.
3. The eigenbasis of the weighted Gram matrix Pᵀ diag(q̄) P, q̄ the mean over the units, makes all blocks nearly
   diagonal. Its leading directions may be solved exactly for every unit; the rest by the exact diagonal. For many
   rows and few uses only the leading part of that basis is computed, by subspace iteration.

What this gives is the preconditioner; the number of iterations that the tolerance needs is found when preparing and
kept, so that later solves never ask the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Problem, Solver, gram_blocks
from .dense import left_multiply
from .spd import spd_inverse

_DROP_SHARE = 0.25
"""The part of the tolerance that left-out rows may use up."""
_PARTIAL = 32
"""Directions of a partial basis."""


@dataclass
class Conjugate(Solver):
    """Keeps rows, weights, basis and preconditioner: O(n(l + d) + d²) numbers, and l·r² for r leading directions."""

    rows: Tensor
    """P, (n' × m): the kept rows in the coordinates of the basis."""
    weights: Tensor
    """(blocks × n')."""
    basis: Tensor | None
    """(d × m), orthonormal columns; None: the coordinates are the parents themselves."""
    diagonal: Tensor
    """(blocks × m or r): the inverse of α + diag F_j in the coordinates, or along `directions`."""
    leading: Tensor | None
    """(blocks × r × r): the inverses of the leading corners of the blocks."""
    directions: Tensor | None
    """(m × r): a partial eigenbasis for the preconditioner; None: the coordinates are the eigenbasis."""
    remainder: Tensor | None
    """(blocks × 1): with a partial eigenbasis, the inverse of the mean of α + F_j outside it."""
    damping: float
    iterations: int

    name: ClassVar[str] = "conjugate"

    @classmethod
    def begin(cls, problem: Problem) -> tuple[Conjugate, Tensor]:
        alpha = problem.damping
        kept_rows, kept_weights = _drop_rows(problem)
        basis: Tensor | None = None
        rows = kept_rows
        if rows.shape[0] < rows.shape[1]:
            basis, triangle = torch.linalg.qr(rows.T)
            rows = triangle.T.contiguous()
        mean_weights = kept_weights.mean(1, keepdim=True)
        gram = rows.T @ (mean_weights * rows)
        blocks, size = problem.blocks, rows.shape[1]
        leading = directions = remainder = None
        if _full_basis(size, problem.update_every):
            rotation = torch.linalg.eigh(gram).eigenvectors.flip(1)
            basis = rotation if basis is None else basis @ rotation
            rows = rows @ rotation
            inverse_diagonal = (kept_weights.T @ rows.square()).add_(alpha).reciprocal_()
            corner = _leading_size(rows.shape[0], size, blocks, problem.update_every)
            if corner:
                leading = spd_inverse(gram_blocks(rows[:, :corner], kept_weights, alpha), jitter=True)
        else:
            directions = _leading_directions(gram, rows)
            inverse_diagonal = kept_weights.T @ (rows @ directions).square()
            total = kept_weights.T @ rows.square().sum(1, keepdim=True)
            rest = (total - inverse_diagonal.sum(1, keepdim=True)).clamp_min_(0) / (size - directions.shape[1])
            remainder = (rest + alpha).reciprocal_()
            inverse_diagonal.add_(alpha).reciprocal_()
        weights = kept_weights.T.contiguous()
        solver = cls(rows, weights, basis, inverse_diagonal, leading, directions, remainder, alpha, 0)
        inside = problem.gradient if basis is None else problem.gradient @ basis
        goal = (1 - _DROP_SHARE) * problem.tolerance * float(problem.gradient.norm())
        solver.iterations, solution = solver._calibrate(inside, goal)
        return solver, solver._leave_basis(problem.gradient, inside, solution)

    def solve(self, gradient: Tensor) -> Tensor:
        inside = gradient if self.basis is None else gradient @ self.basis
        solution = self._precondition(inside) if self.iterations == 0 else self._iterate(inside)
        return self._leave_basis(gradient, inside, solution)

    def _leave_basis(self, gradient: Tensor, inside: Tensor, solution: Tensor) -> Tensor:
        """The solution in the parents' coordinates; outside the basis every block is αI."""
        if self.basis is None:
            return solution
        if self.basis.shape[0] == self.basis.shape[1]:
            return solution @ self.basis.T
        solution = solution.sub_(inside, alpha=1 / self.damping)
        return torch.addmm(gradient, solution, self.basis.T, beta=1 / self.damping)

    def blocks(self) -> Tensor:
        rows = self.rows if self.basis is None else self.rows @ self.basis.T
        return gram_blocks(rows, self.weights.T, self.damping)

    def _product(self, x: Tensor) -> Tensor:
        """(αI + F_j) x_j for every unit."""
        seen = (x @ self.rows.T).mul_(self.weights)
        return torch.addmm(x, seen, self.rows, beta=self.damping)

    def _precondition(self, residual: Tensor) -> Tensor:
        if self.directions is not None:
            assert self.remainder is not None
            along = residual @ self.directions
            along.mul_(self.diagonal - self.remainder)
            return torch.addmm(residual * self.remainder, along, self.directions.T)
        result = residual * self.diagonal
        if self.leading is not None:
            corner = self.leading.shape[1]
            result[:, :corner] = left_multiply(residual[:, :corner], self.leading)
        return result

    def _iterate(self, gradient: Tensor) -> Tensor:
        solution = torch.zeros_like(gradient)
        state = _Descent(self, gradient)
        for last in range(self.iterations - 1, -1, -1):
            state.advance(solution, last == 0)
        return solution

    def _calibrate(self, gradient: Tensor, goal: float) -> tuple[int, Tensor]:
        """How many iterations bring this gradient's residual below the goal, and the solution they give."""
        if self.leading is not None:
            solution = self._precondition(gradient)
            if float((gradient - self._product(solution)).norm()) <= goal:
                return 0, solution
        solution = torch.zeros_like(gradient)
        state = _Descent(self, gradient)
        best, best_at = float("inf"), 0
        for count in range(1, 4 * self.rows.shape[1] + 16):
            state.advance(solution, False)
            size = float(state.residual.norm())
            if size <= goal or count >= best_at + 8:
                return count, solution
            if size < best:
                best, best_at = size, count
        return count, solution


class _Descent:
    """The vectors that conjugate gradients carry from one iteration to the next, one row per unit."""

    def __init__(self, solver: Conjugate, gradient: Tensor) -> None:
        self.solver = solver
        self.residual = gradient.clone()
        self.direction = solver._precondition(gradient)
        self.size = (self.residual * self.direction).sum(1, keepdim=True)
        self.tiny = torch.finfo(gradient.dtype).tiny

    def advance(self, solution: Tensor, last: bool) -> None:
        """One iteration, in place; the last one stops when the solution is known."""
        image = self.solver._product(self.direction)
        length = self.size / (self.direction * image).sum(1, keepdim=True).clamp_min_(self.tiny)
        solution.addcmul_(length, self.direction)
        if last:
            return
        self.residual.addcmul_(length, image, value=-1)
        preconditioned = self.solver._precondition(self.residual)
        size = (self.residual * preconditioned).sum(1, keepdim=True)
        self.direction.mul_(size / self.size.clamp_min(self.tiny)).add_(preconditioned)
        self.size = size


def _drop_rows(problem: Problem) -> tuple[Tensor, Tensor]:
    """The rows that matter at this tolerance, and their weights."""
    parents, weights = problem.parents, problem.weights
    reach = weights.amax(1) * parents.square().sum(1)
    ordered, order = reach.sort()
    budget = _DROP_SHARE * problem.tolerance * problem.damping
    first = int((ordered.cumsum(0) <= budget).sum())
    if first == 0:
        return parents, weights
    kept = order[min(first, len(order) - 1) :].sort().values
    return parents[kept], weights[kept]


def _leading_directions(gram: Tensor, rows: Tensor) -> Tensor:
    """An orthonormal basis close to the leading eigenvectors of the Gram matrix, by two subspace iterations."""
    generator = torch.Generator(device=gram.device).manual_seed(0)
    start = torch.randn(gram.shape[0], _PARTIAL, generator=generator, device=gram.device, dtype=gram.dtype)
    subspace = torch.linalg.qr(gram @ start).Q
    subspace = torch.linalg.qr(gram @ subspace).Q
    rotated: Tensor = subspace @ torch.linalg.eigh(subspace.T @ gram @ subspace).eigenvectors
    return rotated


# The cost model: everything in units of one multiply-add inside a large matrix product.
_EIGH = 45.0
"""Per m³ of a symmetric eigenproblem."""
_SMALL_INVERSE = 30.0
"""Per r³ of one of many small Cholesky inverses."""
_ITERATIONS = {0: 8, 16: 6, 32: 3, 64: 1}
"""Iterations expected at the default tolerance when so many leading directions are solved exactly."""


def _full_basis(size: int, update_every: int) -> bool:
    return size <= 2 * _PARTIAL or _EIGH * float(size) ** 3 / update_every <= 2e7


def _leading_size(n: int, size: int, blocks: int, update_every: int) -> int:
    """How many directions to solve exactly: preparing them, spread over the steps, against iterations saved."""

    def cost(corner: int) -> float:
        used = min(corner, size)
        prepare = blocks * (n * used**2 + _SMALL_INVERSE * used**3)
        iterations = 0 if used == size else _ITERATIONS[corner]
        return prepare / update_every + blocks * (4 * used**2 + iterations * 2 * n * size)

    return min(min(_ITERATIONS, key=cost), size)


def expected_cost(n: int, d: int, units: int, blocks: int, update_every: int) -> tuple[float, float]:
    """(multiply-adds per step, numbers kept) that a solve of this size is expected to take."""
    size = min(n, d)
    if _full_basis(size, update_every):
        corner = _leading_size(n, size, blocks, update_every)
        prepare = n * d * size + _EIGH * size**3 + blocks * (n * corner**2 + _SMALL_INVERSE * corner**3)
        iterations = 0 if corner == size else _ITERATIONS.get(corner, 1)
    else:
        corner, iterations = 0, _ITERATIONS[0]
        prepare = n * d * (size + _PARTIAL)
    apply = units * (2 * d * size + 4 * corner**2 + iterations * 2 * n * size)
    return prepare / update_every + apply, n * (blocks + d) + d * size + blocks * corner**2
