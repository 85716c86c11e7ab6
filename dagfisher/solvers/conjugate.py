"""Preconditioned conjugate gradients over all units at once, in a basis that all units of a layer share.

One product with every block is two matrix products, Y = αX + ((X Pᵀ) ∘ qᵀ) P. Three reductions come first:

1. Rows of U whose whole contribution Σ_k max_j q_jk ‖u_k‖² stays below a part of tolerance · α are left out; the
   residual that this can cause is bounded by that part of the tolerance. Importance weights concentrate, so that often
   most rows go.
2. With far fewer rows than parents, coordinates are taken in the row space; outside it every block is αI.
3. The eigenbasis of the weighted Gram matrix Pᵀ diag(q̄) P, q̄ the mean over the units, makes all blocks nearly
   diagonal. Its leading directions may be solved exactly for every unit; the rest by the exact diagonal. For many
   rows and few uses only the leading part of that basis is computed, by subspace iteration.

Where what is prepared serves several steps, a narrower solver is tried first: the leading directions exactly, and one
number for each unit outside them. If that meets the tolerance, there are no iterations and no whole basis.

What this gives is the preconditioner; the number of iterations that the tolerance needs is found when preparing and
kept, so that later solves never ask the host.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import BlockShape, Cost, RowProblem, Solver, gram_blocks
from .dense import left_multiply
from .rates import Rates, rates
from .spd import eigenvectors, spd_inverse

DROP_SHARE = 0.2
"""The part of the tolerance that left-out rows may use up."""
_WORTH_SELECTING = 2**14
"""Numbers of a solution above which setting converged units aside saves time."""
NARROW = 48
"""Exactly solved directions that are expected where what is prepared serves several steps."""
PARTIAL = 32
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
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        """What to expect before anything is known of the weights."""
        n, d, units, blocks, update_every, _, _ = shape
        known, size = rates(device), min(n, d)
        iteration = 2.0 * units * n * size + OPERATIONS * known.operation
        prepare = float(n) * d * size + 6 * iteration
        if full_basis(n, size, blocks, update_every, known):
            prepare += known.eigh * size**3
        solve = 6 * iteration
        if update_every > 1 and size > NARROW:  # what a loose tolerance needs is seldom more
            solve = known.stored * blocks * NARROW**2 + 2.0 * units * d * NARROW + 2 * known.operation
            prepare += blocks * NARROW**2 * (n + known.small_inverse * NARROW)
        kept = 0
        for corner in (c for c in _CORNERS if c < size and blocks * c**2 <= MOST_KEPT):
            extra = blocks * corner**2 * (n + known.small_inverse * corner)
            attempt = known.stored * blocks * corner**2 + 64 / corner * iteration
            if extra / update_every + attempt < solve:
                prepare, solve, kept = prepare + extra, attempt, blocks * corner**2
        solve += 2.0 * units * d * size
        starting = 50 * known.operation / update_every + 10 * known.operation
        step = (prepare + (update_every - 1) * solve) / update_every + starting
        return Cost(step, n * (blocks + d) + d * size + kept)

    @classmethod
    def begin(cls, problem: RowProblem) -> tuple[Conjugate, Tensor]:
        alpha = problem.damping
        kept, weights = drop_rows(problem)
        n, d = kept.shape
        size, known = n if 2 * n <= d else d, rates(kept.device)
        whole = full_basis(len(kept), size, problem.blocks, problem.update_every, known)
        if problem.update_every > 1 and not whole:
            narrow = cls._narrow(problem, kept, weights)
            if narrow is not None:
                return narrow, narrow.solve(problem.gradient)
        rows = kept
        basis: Tensor | None = None
        if 2 * rows.shape[0] <= rows.shape[1]:
            basis, triangle = torch.linalg.qr(rows.T)
            rows = triangle.T.contiguous()
        gram = rows.T @ (weights.mean(1, keepdim=True) * rows)
        directions = remainder = None
        if whole:
            rotation = eigenvectors(gram).flip(1)
            gram = rotation.T @ gram @ rotation
            basis = rotation if basis is None else basis @ rotation
            rows = rows @ rotation
            diagonal = (weights.T @ rows.square()).add_(alpha).reciprocal_()
        else:
            directions = leading_directions(gram)
            diagonal = weights.T @ (rows @ directions).square()
            total = weights.T @ rows.square().sum(1, keepdim=True)
            rest = (total - diagonal.sum(1, keepdim=True)).clamp_min_(0) / (rows.shape[1] - directions.shape[1])
            remainder = (rest + alpha).reciprocal_()
            diagonal.add_(alpha).reciprocal_()
        solver = cls(rows, weights.T.contiguous(), basis, diagonal, None, directions, remainder, alpha, 0)
        inside = problem.gradient if basis is None else problem.gradient @ basis
        length = float(problem.gradient.norm())
        met = float((inside @ gram).norm()) if problem.update_every > 1 else 0.0
        tells = problem.update_every == 1 or met > 1e-6 * length * float(gram.norm()) > 0
        guide = inside if tells else typical_gradient(rows, len(inside))
        rounding = torch.finfo(problem.gradient.dtype).eps
        goal = max((1 - DROP_SHARE) * problem.tolerance, rounding) * (length if tells else float(guide.norm()))
        if directions is not None or problem.update_every == 1:
            solver.iterations, solution = solver._calibrate(guide, goal)
        else:
            solver, solution = solver._cheapest(guide, goal, problem.update_every, kept)
        if not tells or solver.directions is not directions:
            return solver, solver.solve(problem.gradient)
        return solver, solver._leave_basis(problem.gradient, inside, solution)

    def _cheapest(self, gradient: Tensor, goal: float, update_every: int, kept: Tensor) -> tuple[Conjugate, Tensor]:
        """The solver with that number of exactly solved leading directions which makes a step cheapest.

        The other directions are solved by their diagonal, or, where the goal allows it, all by their mean: then there
        is no iteration, and nothing is ever turned into the whole basis.
        """
        n, size = self.rows.shape
        units, blocks, parents = gradient.shape[0], self.weights.shape[0], kept.shape[1]
        known = rates(gradient.device)
        iteration = 2.0 * units * n * size + OPERATIONS * known.operation
        turn = 0.0 if self.basis is None else 2.0 * units * self.basis.numel()
        self.iterations, solution = self._calibrate(gradient, goal)
        best, best_solution, best_cost = self, solution, turn + self.iterations * iteration
        for corner in [c for c in _CORNERS if c < size] + [size]:
            prepare = blocks * corner**2 * (n + known.small_inverse * corner) / update_every
            cost = prepare + known.stored * blocks * corner**2
            narrow = cost + 2.0 * units * parents * corner
            if min(cost + turn, narrow) >= best_cost or blocks * corner**2 > MOST_KEPT:
                break
            blocks_here = gram_blocks(self.rows[:, :corner], self.weights.T, self.damping)
            candidate = dataclasses.replace(self, leading=spd_inverse(blocks_here, jitter=True))
            if narrow < best_cost and candidate._mean_suffices(gradient, goal, parents):
                best, best_cost = candidate._narrowed(kept), narrow
                continue
            candidate.iterations, found = candidate._calibrate(gradient, goal)
            cost += turn + candidate.iterations * iteration
            if cost < best_cost:
                best, best_solution, best_cost = candidate, found, cost
        return best, best_solution

    def _outside(self, corner: int, parents: int) -> Tensor:
        """The inverse of the mean of α + F_j outside the leading directions, (blocks × 1)."""
        rest = self.weights @ self.rows[:, corner:].square().sum(1, keepdim=True)
        return rest.div_(max(parents - corner, 1)).add_(self.damping).reciprocal_()

    def _mean_suffices(self, gradient: Tensor, goal: float, parents: int) -> bool:
        """Whether the goal is met if all that is outside the exactly solved directions is solved by its mean."""
        assert self.leading is not None
        corner = self.leading.shape[1]
        solution = gradient * self._outside(corner, parents)
        solution[:, :corner] = left_multiply(gradient[:, :corner], self.leading)
        return float((gradient - self._product(solution)).norm()) <= goal

    def _narrowed(self, kept: Tensor) -> Conjugate:
        """The same, with the mean outside the exactly solved directions, in the coordinates of the parents."""
        assert self.leading is not None
        corner, parents = self.leading.shape[1], kept.shape[1]
        basis = torch.eye(parents, dtype=kept.dtype, device=kept.device) if self.basis is None else self.basis
        return dataclasses.replace(
            self,
            rows=kept,
            basis=None,
            diagonal=self.diagonal[:, :corner].contiguous(),
            directions=basis[:, :corner].contiguous(),
            remainder=self._outside(corner, parents),
            iterations=0,
        )

    @classmethod
    def _narrow(cls, problem: RowProblem, rows: Tensor, weights: Tensor) -> Conjugate | None:
        """A solver without iterations: some leading directions exactly, all that is outside by its mean for each unit.

        None if the tolerance needs so many directions that iterating should be cheaper.
        """
        n, d = rows.shape
        units, blocks, known = len(problem.gradient), problem.blocks, rates(rows.device)
        spare = 2 * (2.0 * units * n * min(n, d) + OPERATIONS * known.operation) + 2.0 * units * d * min(n, d)
        gram: Tensor | None = None
        for corner in sorted({*(c for c in _CORNERS if c < min(n, d)), *([n] if n < d else [])}):
            prepare = blocks * corner**2 * (n + known.small_inverse * corner) / problem.update_every
            cost = prepare + known.stored * blocks * corner**2 + 2.0 * units * d * corner
            if cost >= spare or blocks * corner**2 > MOST_KEPT:
                return None
            if gram is None:
                gram = rows.T @ (weights.mean(1, keepdim=True) * rows)
                guide = problem.gradient
                met, length, size = torch.stack([(guide @ gram).norm(), guide.norm(), gram.norm()]).tolist()
                if met <= 1e-6 * length * size:
                    guide = typical_gradient(rows, units)
                    length = float(guide.norm())
                goal = max((1 - DROP_SHARE) * problem.tolerance, torch.finfo(rows.dtype).eps) * length
            solver = cls._along(leading_directions(gram, corner), rows, weights, problem.damping)
            if float((guide - solver._product(solver._precondition(guide))).norm()) <= goal:
                return solver
        return None

    @classmethod
    def _along(cls, directions: Tensor, rows: Tensor, weights: Tensor, damping: float) -> Conjugate:
        """The solver that is exact along these directions and takes the mean of α + F_j for all others."""
        along = rows @ directions
        corners = gram_blocks(along, weights, damping)
        outside = (rows.square().sum(1) - along.square().sum(1)).clamp_min_(0)
        rest = (weights.T @ outside.unsqueeze(1)).div_(rows.shape[1] - directions.shape[1])
        diagonal = corners.diagonal(dim1=1, dim2=2).reciprocal()
        leading = spd_inverse(corners, jitter=True)
        remainder = rest.add_(damping).reciprocal_()
        return cls(rows, weights.T.contiguous(), None, diagonal, leading, directions, remainder, damping, 0)

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
            solved = along * self.diagonal if self.leading is None else left_multiply(along, self.leading)
            solved.addcmul_(along, self.remainder, value=-1)
            return (residual * self.remainder).addmm_(solved, self.directions.T)
        result = residual * self.diagonal
        if self.leading is not None:
            corner = self.leading.shape[1]
            result[:, :corner] = left_multiply(residual[:, :corner], self.leading)
        return result

    def _iterate(self, gradient: Tensor) -> Tensor:
        solution = torch.zeros_like(gradient)
        state = _Descent(self, gradient)
        for _ in range(self.iterations - 1):
            state.descend(self, solution)
            state.turn(self)
        state.descend(self, solution, last=True)
        return solution

    def _calibrate(self, gradient: Tensor, goal: float) -> tuple[int, Tensor]:
        """How many iterations bring this gradient's residual below the goal, and the solution they give.

        Units that have converged are set aside; only the others go on.
        """
        if self.leading is not None or self.directions is None:
            solution = self._precondition(gradient)
            if float((gradient - self._product(solution)).norm()) <= goal:
                return 0, solution
        result = torch.zeros_like(gradient)
        solver, solution, state = self, result, _Descent(self, gradient)
        units: Tensor | None = None
        settled, best, best_at = 0.0, float("inf"), 0
        # A residual may grow for many iterations before it falls; without rounding it is zero after this many.
        patience = self.rows.shape[1] + 8
        for count in range(1, 10 * patience):
            state.descend(solver, solution)
            squares = state.residual.square().sum(1)
            size = float(squares.sum()) + settled
            if size <= goal**2 or count >= best_at + patience:
                break
            if size < best:
                best, best_at = size, count
            if count % 2 == 0 and self.weights.shape[0] > 1 and solution.numel() > _WORTH_SELECTING:
                going = (squares > goal**2 / (4 * len(result))).nonzero().squeeze(1)
                if len(going) < 0.75 * len(squares):
                    if units is not None:
                        result.index_copy_(0, units, solution)
                    settled = size - float(squares[going].sum())
                    units = going if units is None else units[going]
                    solver, solution = solver._select(going), solution[going]
                    state.select(going)
            state.turn(solver)
        if units is not None:
            result.index_copy_(0, units, solution)
        return count, result

    def _select(self, units: Tensor) -> Conjugate:
        """The same solver for some of its units."""
        return dataclasses.replace(
            self,
            weights=self.weights[units],
            diagonal=self.diagonal[units],
            leading=None if self.leading is None else self.leading[units],
            remainder=None if self.remainder is None else self.remainder[units],
        )


class _Descent:
    """The vectors that conjugate gradients carry from one iteration to the next, one row per unit."""

    def __init__(self, solver: Conjugate, gradient: Tensor) -> None:
        self.residual = gradient.clone()
        self.direction = solver._precondition(gradient)
        self.size = (self.residual * self.direction).sum(1, keepdim=True)
        self.tiny = torch.finfo(gradient.dtype).tiny

    def descend(self, solver: Conjugate, solution: Tensor, *, last: bool = False) -> None:
        """Go along the direction, in place; the last time, the residual is not needed any more."""
        image = solver._product(self.direction)
        length = self.size / (self.direction * image).sum(1, keepdim=True).clamp_min_(self.tiny)
        solution.addcmul_(length, self.direction)
        if not last:
            self.residual.addcmul_(length, image, value=-1)

    def turn(self, solver: Conjugate) -> None:
        """Find the next direction, in place."""
        preconditioned = solver._precondition(self.residual)
        size = (self.residual * preconditioned).sum(1, keepdim=True)
        self.direction.mul_(size / self.size.clamp_min(self.tiny)).add_(preconditioned)
        self.size = size

    def select(self, units: Tensor) -> None:
        """Go on with some of the units."""
        self.residual, self.direction, self.size = self.residual[units], self.direction[units], self.size[units]


def drop_rows(problem: RowProblem) -> tuple[Tensor, Tensor]:
    """The rows that matter at this tolerance, and their weights."""
    parents, weights = problem.parents, problem.weights
    reach = weights.amax(1) * parents.square().sum(1)
    ordered, order = reach.sort()
    budget = DROP_SHARE * problem.tolerance * problem.damping
    first = int((ordered.cumsum(0) <= budget).sum())
    if first == 0:
        return parents, weights
    kept = order[min(first, len(order) - 1) :].sort().values
    return parents[kept], weights[kept]


def typical_gradient(rows: Tensor, units: int) -> Tensor:
    """Random sums of rows, to calibrate on where the gradient at hand is zero or meets no row."""
    generator = torch.Generator(device=rows.device).manual_seed(0)
    mix = torch.randn(units, rows.shape[0], generator=generator, device=rows.device, dtype=rows.dtype)
    return mix @ rows


def leading_directions(gram: Tensor, count: int = PARTIAL) -> Tensor:
    """An orthonormal basis close to the leading eigenvectors of the Gram matrix, by two subspace iterations."""
    generator = torch.Generator(device=gram.device).manual_seed(0)
    start = torch.randn(gram.shape[0], count, generator=generator, device=gram.device, dtype=gram.dtype)
    subspace = torch.linalg.qr(gram @ start).Q
    subspace = torch.linalg.qr(gram @ subspace).Q
    rotated: Tensor = subspace @ eigenvectors(subspace.T @ gram @ subspace)
    return rotated


MOST_KEPT = 2**26
"""Numbers that exactly solved directions may take."""
OPERATIONS = 10
"""Operations of one iteration."""
_CORNERS = (32, 48, 64, 96, 128, 256)


def full_basis(n: int, size: int, blocks: int, update_every: int, known: Rates) -> bool:
    """Whether a whole eigenbasis pays: it saves the partial basis' products and about two iterations a step."""
    saved = blocks * size * (512.0 + 4 * n) * update_every
    return size <= 2 * PARTIAL or known.eigh * float(size) ** 3 <= saved
