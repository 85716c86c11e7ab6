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
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._reading import Asking, joint, read, reads_freely, told
from ..errors import SingularBlockError
from .base import AskingSolver, Cost
from .blocks import gram_blocks, products_cost
from .dense import left_multiply
from .descent import Descent, attempt, calibrate, guide, iterate
from .plain import LOOSE, OPERATIONS, Plain, iteration_cost
from .problems import BlockShape, RowProblem
from .rates import Rates, rates
from .reductions import (
    FEW,
    PARTIAL,
    diagonal_along,
    drop_rows,
    few_directions,
    full_basis,
    iterated_share,
    leading_directions,
    weighted_gram,
)
from .spd import eigenvectors, factored, repaired

_WORTH_SELECTING = 2**14
"""Numbers of a solution above which setting converged units aside saves time."""
NARROW = 48
"""Exactly solved directions that are expected where what is prepared serves several steps."""
MOST_KEPT = 2**26
"""Numbers that exactly solved directions may take."""
_CORNERS = (32, 48, 64, 96, 128, 256)
STARTED = {True: 250, False: 50}
"""Operations of a refresh, about: of a search, and without one."""
ORTHONORMAL = 10.0
"""Of n²d, the multiply-adds in whose time n rows of d parents get an orthonormal basis."""


@dataclass
class Conjugate(AskingSolver):
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
    by_unit: ClassVar[dict[str, int] | None] = {"weights": 0, "diagonal": 0, "leading": 0, "remainder": 0}

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        """What to expect before anything is known of the weights."""
        n, d, units, blocks, update_every, _, _, tolerance = shape
        known, size = rates(device), min(n, d)
        if update_every == 1 and tolerance >= LOOSE:
            step = 3 * iteration_cost(n, d, units, known) + 6 * known.operation
            step += 2.0 * units * n * d + n * n * d if n < d else 0.0
            return Cost(step, n * (blocks + d))
        iteration = 2.0 * units * n * size + OPERATIONS * known.operation
        prepare = float(n) * d * size + 6 * iteration
        if full_basis(n, size, blocks, update_every, known):
            prepare += known.eigh * size**3
        solve = 6 * iteration
        if update_every > 1 and size > NARROW:  # what a loose tolerance needs is seldom more
            extra, attempt = _corner_cost(NARROW, n, blocks, known)
            solve = attempt + 2.0 * units * d * NARROW + 2 * known.operation
            prepare += extra
        kept = 0
        for corner in (c for c in _CORNERS if c < size and blocks * c**2 <= MOST_KEPT):
            extra, attempt = _corner_cost(corner, n, blocks, known)
            attempt += 64 / corner * iteration
            if extra / update_every + attempt < solve:
                prepare, solve, kept = prepare + extra, attempt, blocks * corner**2
        solve += 2.0 * units * d * size
        starting = 50 * known.operation / update_every + 10 * known.operation
        step = (prepare + (update_every - 1) * solve) / update_every + starting
        begin = None if update_every == 1 else _searching(shape, device)
        return Cost(step, n * (blocks + d) + d * size + kept, begin)

    @classmethod
    def asking(cls, problem: RowProblem) -> Asking[tuple[Conjugate | Plain, Tensor]]:
        if reads_freely(problem.gradient.device):
            return cls._searched(problem)
        return (yield from cls._at_once(problem))

    @classmethod
    def _at_once(cls, problem: RowProblem) -> Asking[tuple[Conjugate, Tensor]]:
        """The solver where every question makes the host wait: choices by shape alone, and one question at the end."""
        rows, weights, gradient = problem.parents, problem.weights, problem.gradient
        gram = weighted_gram(rows, problem.every_weight)
        corner = max(1, min(NARROW, *rows.shape, int((MOST_KEPT / problem.blocks) ** 0.5)))
        solver, corners = cls._along(leading_directions(gram, corner), rows, weights, problem.damping)
        factor, failed = factored(corners, jitter=True)
        met, length = problem.lengths(gradient @ gram, gradient)
        on, _ = yield from guide(gradient, met > 1e-6 * length * gram.norm(), lambda: problem.typical(rows))
        goal = max(problem.tolerance, torch.finfo(rows.dtype).eps)
        while True:
            solver.leading = torch.cholesky_inverse(factor)
            wrong = failed.any().to(rows.dtype).expand(1, 1)
            length, left, any_wrong = problem.lengths(on, solver._left(on), wrong)
            known = told(torch.stack([any_wrong, left / length]))
            tasks: list[Asking[Any]] = [known, calibrate(solver, on, length, goal, problem.length)]
            (any_failed, size), (count, _) = yield from joint(tasks)
            if not any_failed:
                solver.iterations = 0 if size <= goal else count
                return solver, solver.solve(gradient)
            try:
                factor = repaired(factor, failed, corners, jitter=True)
            except SingularBlockError:
                if problem.peers is None:
                    raise
                factor = torch.full_like(factor, torch.nan)
            if problem.peers is not None:
                (size,) = yield problem.length(factor)
                problem.settled(size)
            failed = torch.zeros_like(failed)

    @classmethod
    def _searched(cls, problem: RowProblem) -> tuple[Conjugate | Plain, Tensor]:
        """The solver that is expected to be cheapest over its uses; every choice looks at the numbers before it."""
        alpha = problem.damping
        kept, weights, every = drop_rows(problem)
        n, d = kept.shape
        size, known = n if 2 * n <= d else d, rates(kept.device)
        whole = full_basis(len(kept), size, problem.blocks, problem.update_every, known)
        if problem.update_every > 1 and not whole:
            narrow = cls._narrow(problem, kept, weights, every)
            if narrow is not None:
                return narrow, narrow.solve(problem.gradient)
        if problem.update_every == 1 and problem.tolerance >= LOOSE:
            basis_cost = n * d * size + (known.eigh * size**3 if whole else 2.0 * d * size * PARTIAL)
            quick = cls._quick(problem, kept, weights, every, basis_cost + 40 * known.operation)
            if quick is not None:
                return quick
        rows = kept
        basis: Tensor | None = None
        if 2 * rows.shape[0] <= rows.shape[1]:
            basis, triangle = torch.linalg.qr(rows.T)
            rows = triangle.T.contiguous()
        gram = weighted_gram(rows, every)
        directions = remainder = None
        if whole:
            rotation = eigenvectors(gram).flip(1)
            gram = rotation.T @ gram @ rotation
            basis = rotation if basis is None else basis @ rotation
            rows = rows @ rotation
            diagonal = (weights.T @ rows.square()).add_(alpha).reciprocal_()
        else:
            directions = leading_directions(gram)
            diagonal, remainder = diagonal_along(directions, rows, weights, alpha)
        solver = cls(rows, weights.T.contiguous(), basis, diagonal, None, directions, remainder, alpha, 0)
        inside = problem.gradient if basis is None else problem.gradient @ basis
        length, met = read(problem.lengths(problem.gradient, inside @ gram if problem.update_every > 1 else inside[:0]))
        tells = problem.update_every == 1 or met > 1e-6 * length * float(gram.norm()) > 0
        guide = inside if tells else problem.typical(rows)
        goal = iterated_share(problem) * (length if tells else float(problem.length(guide)))
        if directions is not None or problem.update_every == 1:
            solver.iterations, solution = solver._calibrate(problem, guide, goal)
        else:
            assert basis is not None
            outer = problem.gradient if tells else guide @ basis.T
            solver, solution = solver._cheapest(problem, guide, outer, goal, kept)
        if not tells or solver.directions is not directions:
            return solver, solver.solve(problem.gradient)
        return solver, solver._leave_basis(problem.gradient, inside, solution)

    @classmethod
    def _quick(
        cls, problem: RowProblem, rows: Tensor, weights: Tensor, every: Tensor, spare: float
    ) -> tuple[Conjugate | Plain, Tensor] | None:
        """A solver for one use, with next to nothing prepared; None if it seems that a basis, for `spare`, pays."""
        (n, d), known = rows.shape, rates(rows.device)
        iteration = iteration_cost(n, d, problem.units, known)
        solver: Conjugate | Plain = Plain(rows, weights.T.contiguous(), problem.damping, 0)
        if n >= d > 4 * FEW and iteration > 60 * known.operation:
            directions = few_directions(rows, every, FEW)
            along = diagonal_along(directions, rows, weights, problem.damping)
            solver = cls(rows, solver.weights, None, along[0], None, directions, along[1], problem.damping, 0)
        descent = solver.descent(problem.gradient)
        found = attempt(descent, iterated_share(problem), problem.total, spare / iteration)
        if found is None:
            return None
        solver.iterations = found
        return solver, descent.solution

    def _cheapest(
        self, problem: RowProblem, inside: Tensor, gradient: Tensor, goal: float, kept: Tensor
    ) -> tuple[Conjugate, Tensor]:
        """The solver with that number of exactly solved leading directions which makes a step cheapest.

        The other directions are solved by their diagonal, or, where the goal allows it, all by their mean: then there
        is no iteration, and nothing is ever turned into the whole basis. `inside` is the gradient in the basis.
        """
        assert self.basis is not None
        n, size = self.rows.shape
        units, parents, blocks, update_every = problem.units, kept.shape[1], problem.blocks, problem.update_every
        known = rates(gradient.device)
        iteration = 2.0 * units * n * size + OPERATIONS * known.operation
        turn = 2.0 * units * self.basis.numel()
        self.iterations, solution = self._calibrate(problem, inside, goal)
        best, best_solution, best_cost = self, solution, turn + self.iterations * iteration
        for corner in [c for c in _CORNERS if c < size] + [size]:
            prepare, use = _corner_cost(corner, n, blocks, known)
            cost = prepare / update_every + use
            narrow_cost = cost + 2.0 * units * parents * corner
            if min(cost + turn, narrow_cost) >= best_cost or blocks * corner**2 > MOST_KEPT:
                break
            narrow, corners = self._along(self.basis[:, :corner].contiguous(), kept, self.weights.T, self.damping)
            narrow.leading = problem.inverse(corners)
            if narrow_cost < best_cost and problem.settled(float(problem.length(narrow._left(gradient)))) <= goal:
                best, best_cost = narrow, narrow_cost
            if cost + turn >= best_cost:
                continue
            candidate = dataclasses.replace(self, leading=narrow.leading)
            candidate.iterations, found = candidate._calibrate(problem, inside, goal)
            cost += turn + candidate.iterations * iteration
            if cost < best_cost:
                best, best_solution, best_cost = candidate, found, cost
        return best, best_solution

    @classmethod
    def _narrow(cls, problem: RowProblem, rows: Tensor, weights: Tensor, every: Tensor) -> Conjugate | None:
        """A solver without iterations: some leading directions exactly, all that is outside by its mean for each unit.

        None if the tolerance needs so many directions that iterating should be cheaper.
        """
        n, d = rows.shape
        units, blocks, known = problem.units, problem.blocks, rates(rows.device)
        spare = 2 * (2.0 * units * n * min(n, d) + OPERATIONS * known.operation) + 2.0 * units * d * min(n, d)
        gram: Tensor | None = None
        for corner in sorted({*(c for c in _CORNERS if c < min(n, d)), *([n] if n < d else [])}):
            prepare, use = _corner_cost(corner, n, blocks, known)
            cost = prepare / problem.update_every + use + 2.0 * units * d * corner
            if cost >= spare or blocks * corner**2 > MOST_KEPT:
                return None
            if gram is None:
                gram = weighted_gram(rows, every)
                guide = problem.gradient
                met, length = read(problem.lengths(guide @ gram, guide))
                if met <= 1e-6 * length * float(gram.norm()):
                    guide = problem.typical(rows)
                    length = float(problem.length(guide))
                goal = iterated_share(problem) * length
            solver, corners = cls._along(leading_directions(gram, corner), rows, weights, problem.damping)
            solver.leading = problem.inverse(corners)
            if problem.settled(float(problem.length(solver._left(guide)))) <= goal:
                return solver
        return None

    @classmethod
    def _along(cls, directions: Tensor, rows: Tensor, weights: Tensor, damping: float) -> tuple[Conjugate, Tensor]:
        """The solver that takes the mean of α + F_j outside these directions, and its blocks along them.

        The inverses of these blocks, as its `leading`, make it exact along the directions.
        """
        along = rows @ directions
        corners = gram_blocks(along, weights, damping)
        outside = (rows.square().sum(1) - along.square().sum(1)).clamp_min_(0)
        rest = (weights.T @ outside.unsqueeze(1)).div_(max(rows.shape[1] - directions.shape[1], 1))
        diagonal = corners.diagonal(dim1=1, dim2=2).reciprocal()
        remainder = rest.add_(damping).reciprocal_()
        return cls(rows, weights.T.contiguous(), None, diagonal, None, directions, remainder, damping, 0), corners

    def _left(self, gradient: Tensor) -> Tensor:
        """What one use of the preconditioner leaves of a gradient in the coordinates of the basis."""
        return gradient - self.product(self.precondition(gradient))

    def solve(self, gradient: Tensor) -> Tensor:
        inside = gradient if self.basis is None else gradient @ self.basis
        iterated = self.iterations > 0
        solution = iterate(self.descent(inside), self.iterations) if iterated else self.precondition(inside)
        return self._leave_basis(gradient, inside, solution)

    def _leave_basis(self, gradient: Tensor, inside: Tensor, solution: Tensor) -> Tensor:
        """The solution in the parents' coordinates; outside the basis every block is αI."""
        if self.basis is None:
            return solution
        if self.basis.shape[0] == self.basis.shape[1]:
            return solution @ self.basis.T
        solution = solution.sub_(inside, alpha=1 / self.damping)
        return torch.addmm(gradient, solution, self.basis.T, beta=1 / self.damping)

    def applying(self, gradient: Tensor) -> float:
        turned = sum(t.numel() for t in (self.basis, self.directions) if t is not None)
        stored = 0 if self.leading is None else self.leading.numel()
        products = 2.0 * len(gradient) * (turned + self.iterations * self.rows.numel())
        return products + rates(gradient.device).stored * stored * max(self.iterations, 1)

    def descent(self, inside: Tensor) -> Descent:
        """Conjugate gradients from this gradient in the coordinates of the basis."""
        return Descent(self, inside)

    def blocks(self) -> Tensor:
        rows = self.rows if self.basis is None else self.rows @ self.basis.T
        return gram_blocks(rows, self.weights.T, self.damping)

    def product(self, x: Tensor) -> Tensor:
        """(αI + F_j) x_j for every unit."""
        seen = (x @ self.rows.T).mul_(self.weights)
        return torch.addmm(x, seen, self.rows, beta=self.damping)

    def precondition(self, residual: Tensor) -> Tensor:
        """About (αI + F_j)⁻¹ times each row."""
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

    def _calibrate(self, problem: RowProblem, gradient: Tensor, goal: float) -> tuple[int, Tensor]:
        """How many iterations bring this gradient's residual below the goal, and the solution they give.

        Units that have converged are set aside; only the others go on.
        """
        if self.leading is not None or self.directions is None:
            solution = self.precondition(gradient)
            if problem.settled(float(problem.length(gradient - self.product(solution)))) <= goal:
                return 0, solution
        solver, descent = self, self.descent(gradient)
        result, units = descent.solution, None
        settled, best, best_at, going_on = 0.0, float("inf"), 0, problem.units
        # A residual may grow for many iterations before it falls; without rounding it is zero after this many.
        patience = self.rows.shape[1] + 8
        for count in range(1, 10 * patience):
            descent.descend()
            squares = descent.residual.square().sum(1)
            numbers, far = [squares.sum()], squares > goal**2 / (4 * problem.units)
            selecting = count % 2 == 0 and problem.blocks > 1 and going_on * gradient.shape[1] > _WORTH_SELECTING
            if selecting:
                numbers += [squares[far].sum(), far.sum()]
            size, *selected = read(problem.total(torch.stack(numbers)))
            size += settled
            if size <= goal**2 or count >= best_at + patience:
                break
            if size < best:
                best, best_at = size, count
            if selecting and selected[1] < 0.75 * going_on:
                going, going_on = far.nonzero().squeeze(1), int(selected[1])
                if units is not None:
                    result.index_copy_(0, units, descent.solution)
                settled = size - selected[0]
                units = going if units is None else units[going]
                solver = solver._select(going)
                descent.select(going, solver)
            descent.turn()
        if units is not None:
            result.index_copy_(0, units, descent.solution)
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


def _corner_cost(corner: int, n: int, blocks: int, known: Rates) -> tuple[float, float]:
    """Of exactly solved directions: preparing them, and using them once."""
    return blocks * corner**2 * (n + known.small_inverse * corner), known.stored * blocks * corner**2


def _searching(shape: BlockShape, device: torch.device) -> float:
    """What `Conjugate` does at a refresh that serves several steps, if the diagonal or `NARROW` directions suffice."""
    n, d, units, blocks, update_every, *_ = shape
    known, searches, size = rates(device), reads_freely(device), n if 2 * n <= d else d
    product, turn = 2.0 * units * n * size, 2.0 * units * size * d
    whole = searches and full_basis(n, size, blocks, update_every, known)
    work = STARTED[searches] * known.operation + float(n) * d * size + product + turn
    work += known.eigh * size**3 + blocks * n * size if whole else 0.0
    work += ORTHONORMAL * n**2 * d if searches and 2 * n <= d else 0.0
    spare = turn if whole else 2 * product + turn
    corners = [c for c in _CORNERS if c < min(n, d) and (whole or c <= NARROW)]
    for corner in corners if searches else corners[-1:]:
        prepare, use = _corner_cost(corner, n, blocks, known)
        if searches and prepare / update_every + use + 2.0 * units * d * corner >= spare:
            break
        work += prepare + 2.0 * units * n * d + products_cost(n, corner, known)
    return work
