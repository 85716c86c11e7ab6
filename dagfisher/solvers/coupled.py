"""Variables whose units are coupled, as the logits of a categorical variable are: two ways to solve their blocks.

Conjugate gradients: one product with the blocks of every variable is two matrix products, A = X Uᵀ and Y = αX + B U,
with B = w ∘ π ∘ (A − Σ_c π_c A_c) between them. In the eigenbasis of the Gram matrix of U, which all variables share,
the preconditioner solves the C×C matrices of each direction exactly and leaves out what lies between directions.

Woodbury: αI + F is A − GᵀG, with A the blocks αI + Uᵀ diag(w ∘ π_c) U of single units and G = √w ∘ [π_1 U … π_C U]. Its
inverse is A⁻¹ + A⁻¹Gᵀ (I − G A⁻¹ Gᵀ)⁻¹ G A⁻¹: exact, and no iterations, for a Fisher that is kept for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._reading import Asking
from .base import AskingSolver, Cost
from .blocks import gram_blocks
from .dense import left_multiply
from .descent import Descent, calibrate, guide, iterate
from .plain import OPERATIONS
from .problems import BlockShape, CoupledProblem, Kind
from .rates import rates
from .reductions import weighted_gram
from .spd import eigenvectors, inverting


@dataclass
class CoupledConjugate(AskingSolver):
    """Keeps rows, probabilities, basis and preconditioner: O(n(l + d) + l·d·C) numbers."""

    rows: Tensor
    """(n × m): the rows in the coordinates of the basis."""
    probability: Tensor
    """π, (variables × classes × n)."""
    shares: Tensor
    """w, (n)."""
    basis: Tensor
    """(d × m), orthonormal columns; outside it every block is αI."""
    inverses: Tensor
    """(variables × classes × classes × m): the inverses of the blocks of each direction."""
    damping: float
    iterations: int

    name: ClassVar[str] = "conjugate, coupled"
    variant_of: ClassVar[str | None] = "conjugate"
    kinds: ClassVar[tuple[Kind, ...]] = ("coupled",)
    by_unit: ClassVar[dict[str, int] | None] = {"probability": 0, "inverses": 0}

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        n, d, units, _, update_every, _, classes, _ = shape
        known, size = rates(device), min(n, d)
        iteration = 2.0 * units * n * size + known.stored * units * size * classes + 2 * OPERATIONS * known.operation
        prepare = float(n) * d * size + known.eigh * size**3 + units * size * (n + known.small_inverse * classes**2)
        step = (prepare + 80 * known.operation) / update_every + 4 * iteration + 2.0 * units * d * size
        return Cost(step, n * (units + d) + d * size + units * size * classes)

    @classmethod
    def asking(cls, problem: CoupledProblem) -> Asking[tuple[CoupledConjugate, Tensor]]:
        rows, alpha, classes = problem.parents, problem.damping, problem.classes
        gram = weighted_gram(rows, problem.weights)
        basis = eigenvectors(gram).flip(1)
        if rows.shape[0] < rows.shape[1]:  # the row space has at most n dimensions
            basis = torch.linalg.qr(rows.T).Q
            inside = rows @ basis
            basis = basis @ eigenvectors(weighted_gram(inside, problem.weights)).flip(1)
        rows = rows @ basis
        probability = problem.probability.T.reshape(-1, classes, len(rows)).contiguous()
        inverses = yield from _direction_inverses(rows, probability, problem.shares, alpha)
        solver = cls(rows, probability, problem.shares, basis.contiguous(), inverses, alpha, 0)
        gradient = problem.gradient
        inside, length = gradient @ basis, gradient.norm()
        tells = (inside.norm() > 1e-3 * length) & (length > 0)
        on, _ = yield from guide(inside, tells, lambda: problem.typical(rows))
        goal = max(problem.tolerance, torch.finfo(gradient.dtype).eps)
        length = torch.where(tells, length, on.norm())
        solver.iterations, _ = yield from calibrate(solver, solver._grouped(on), length, goal, problem.length)
        return solver, solver.solve(gradient)

    def _grouped(self, rows: Tensor) -> Tensor:
        """One row for each variable."""
        return rows.reshape(len(self.probability), -1)

    def solve(self, gradient: Tensor) -> Tensor:
        inside = gradient @ self.basis
        solution = iterate(Descent(self, self._grouped(inside)), self.iterations).reshape(inside.shape)
        if self.basis.shape[0] == self.basis.shape[1]:
            return solution @ self.basis.T
        solution = solution.sub_(inside, alpha=1 / self.damping)
        return torch.addmm(gradient, solution, self.basis.T, beta=1 / self.damping)

    def product(self, x: Tensor) -> Tensor:
        """(αI + F_v) x_v for every variable, (variables × classes · m)."""
        variables, classes, n = self.probability.shape
        flat = x.reshape(variables * classes, -1)
        seen = (flat @ self.rows.T).reshape(variables, classes, n)
        seen = seen.sub_((seen * self.probability).sum(1, keepdim=True)).mul_(self.probability).mul_(self.shares)
        return torch.addmm(flat, seen.reshape(-1, n), self.rows, beta=self.damping).reshape(x.shape)

    def precondition(self, residual: Tensor) -> Tensor:
        """The inverse of what couples the classes in each direction."""
        variables, classes, _ = self.probability.shape
        across = residual.reshape(variables, classes, 1, -1)
        if self.inverses.numel() <= _AT_ONCE:
            return (self.inverses * across).sum(1).reshape(residual.shape)
        solved = self.inverses[:, 0] * across[:, 0]
        for c in range(1, classes):
            solved.addcmul_(self.inverses[:, c], across[:, c])
        return solved.reshape(residual.shape)

    def blocks(self) -> Tensor:
        return _coupled_blocks(self.rows @ self.basis.T, self.probability, self.shares, self.damping)


@dataclass
class CoupledWoodbury(AskingSolver):
    """Keeps A⁻¹ and the inverse of I − G A⁻¹ Gᵀ: units × d × d and variables × n × n numbers."""

    rows: Tensor
    """U, (n × d)."""
    probability: Tensor
    """π, (variables × classes × n)."""
    shares: Tensor
    """w, (n)."""
    inverses: Tensor
    """A⁻¹, (units × d × d)."""
    cores: Tensor
    """(variables × n × n): √w (I − G A⁻¹ Gᵀ)⁻¹ √w."""
    damping: float

    name: ClassVar[str] = "woodbury, coupled"
    variant_of: ClassVar[str | None] = "woodbury"
    kinds: ClassVar[tuple[Kind, ...]] = ("coupled",)
    by_unit: ClassVar[dict[str, int] | None] = {"probability": 0, "inverses": 0, "cores": 0}

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        n, d, units, _, update_every, _, classes, _ = shape
        known, variables = rates(device), units // classes
        prepare = units * (2.0 * n * d**2 + n**2 * d + known.small_inverse * d**3)
        prepare += variables * known.small_inverse * n**3 + (40 + 10 * units) * known.operation
        kept = units * d**2 + variables * n**2
        solve = known.stored * (kept + units * d**2) + 2.0 * units * n * d + OPERATIONS * known.operation
        return Cost(prepare / update_every + solve, kept + n * (units + d))

    @classmethod
    def asking(cls, problem: CoupledProblem) -> Asking[tuple[CoupledWoodbury, Tensor]]:
        rows, shares, classes = problem.parents, problem.shares, problem.classes
        singles = gram_blocks(rows, shares.unsqueeze(1) * problem.probability, problem.damping)
        inverses = yield from inverting(singles, jitter=True)
        probability = problem.probability.T.reshape(-1, classes, len(rows)).contiguous()
        root = shares.sqrt()
        inner = torch.eye(len(rows), dtype=rows.dtype, device=rows.device).repeat(len(probability), 1, 1)
        for unit, inverse in enumerate(inverses):
            weighted = (probability[unit // classes, unit % classes] * root).unsqueeze(1) * rows
            inner[unit // classes].addmm_(weighted @ inverse, weighted.T, alpha=-1)
        cores = (yield from inverting(inner, jitter=True)).mul_(root.unsqueeze(1)).mul_(root)
        solver = cls(rows, probability, shares, inverses, cores, problem.damping)
        return solver, solver.solve(problem.gradient)

    def solve(self, gradient: Tensor) -> Tensor:
        variables, classes, n = self.probability.shape
        # F is zero along what is common to the units of a variable; there A − GᵀG would cancel.
        common = gradient.reshape(variables, classes, -1).mean(1, keepdim=True)
        own = (gradient.reshape(variables, classes, -1) - common).reshape(gradient.shape)
        first = left_multiply(own, self.inverses)
        seen = ((first @ self.rows.T).reshape(self.probability.shape) * self.probability).sum(1)
        back = left_multiply(seen, self.cores).unsqueeze(1) * self.probability
        second = left_multiply(back.reshape(-1, n) @ self.rows, self.inverses)
        solution = second.add_(first).reshape(variables, classes, -1)
        return (
            solution.sub_(solution.mean(1, keepdim=True)).add_(common, alpha=1 / self.damping).reshape(gradient.shape)
        )

    def blocks(self) -> Tensor:
        return _coupled_blocks(self.rows, self.probability, self.shares, self.damping)


def _coupled_blocks(rows: Tensor, probability: Tensor, shares: Tensor, damping: float) -> Tensor:
    """αI + F_v of every variable, (variables × C·d × C·d); π is (variables × C × n)."""
    units = probability.permute(2, 0, 1).flatten(1)
    gradient = rows.new_zeros(units.shape[1], rows.shape[1])
    return CoupledProblem(rows, units, shares, probability.shape[1], damping, gradient).damped_blocks()


_AT_ONCE = 2**20
"""Numbers that a product with the inverses may write before it sums them."""


def _direction_inverses(rows: Tensor, probability: Tensor, shares: Tensor, damping: float) -> Asking[Tensor]:
    """(αI + Σ_k w_k r_ki² (diag π_k − π_k π_kᵀ))⁻¹ for every variable and direction i, (variables × C × C × m)."""
    weighted = rows.square() * shares.unsqueeze(1)  # (n × m)
    found = []
    for each in probability:  # (C × n)
        classes = len(each)
        products = (each.unsqueeze(0) * each.unsqueeze(1)).reshape(classes * classes, -1)
        blocks = -(products @ weighted).T.reshape(-1, classes, classes)
        blocks.diagonal(dim1=1, dim2=2).add_((each @ weighted).T).add_(damping)
        found.append(blocks)
    inverses = yield from inverting(torch.stack(found).flatten(0, 1), jitter=True)
    return inverses.reshape(len(found), -1, *inverses.shape[1:]).movedim(1, 3).contiguous()
