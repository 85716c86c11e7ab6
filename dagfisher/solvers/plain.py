"""Conjugate gradients without a preconditioner: nothing is prepared, for what serves one step at a loose tolerance.

With fewer rows than parents, every vector on the way is a multiple of the gradient and a sum of rows, x = a g + C U.
Then a, C and the products x Uᵀ are carried along in its place: one iteration is one product with U Uᵀ, (n × n).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Solver
from .blocks import gram_blocks
from .descent import attempt, iterate
from .problems import RowProblem
from .rates import Rates

LOOSE = 0.1
"""The tolerance from which on a few iterations without a preconditioner are enough."""
OPERATIONS = 10
"""Operations of one iteration."""


@dataclass
class Plain(Solver):
    """Keeps rows and weights, O(n(l + d)) numbers; what `Conjugate` takes where it is enough."""

    rows: Tensor
    """U, (n × d)."""
    weights: Tensor
    """(blocks × n)."""
    damping: float
    iterations: int

    name: ClassVar[str] = "conjugate, plain"
    variant_of: ClassVar[str | None] = "conjugate"
    by_unit: ClassVar[dict[str, int] | None] = {"weights": 0}

    @classmethod
    def begin(cls, problem: RowProblem) -> tuple[Plain, Tensor]:
        solver = cls(problem.parents, problem.weights.T.contiguous(), problem.damping, 0)
        descent = solver.descent(problem.gradient)
        found = attempt(descent, max(problem.tolerance, torch.finfo(problem.gradient.dtype).eps), problem.total)
        assert found is not None
        solver.iterations = found
        return solver, descent.solution

    def solve(self, gradient: Tensor) -> Tensor:
        return iterate(self.descent(gradient), self.iterations)

    def applying(self, gradient: Tensor) -> float:
        n, d = self.rows.shape
        return self.iterations * products(n, d, len(gradient))

    def blocks(self) -> Tensor:
        return gram_blocks(self.rows, self.weights.T, self.damping)

    def descent(self, gradient: Tensor) -> PlainDescent:
        """Conjugate gradients in the coordinates that are fewer."""
        fewer = self.rows.shape[0] < self.rows.shape[1]
        return AmongRows(self, gradient) if fewer else AmongParents(self, gradient)


def products(n: int, d: int, units: int) -> float:
    """Multiply-adds of one iteration's products of matrices."""
    return float(units) * n**2 if n < d else 2.0 * units * n * d


def iteration_cost(n: int, d: int, units: int, known: Rates) -> float:
    """Of one iteration, in multiply-adds."""
    return products(n, d, units) + OPERATIONS * known.operation


def squares(rows: Tensor) -> Tensor:
    """The squared length of every row, (l × 1)."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return lengths.square_()


class PlainDescent:
    """Residual r, direction p and solution x of every unit, and how they go on, whatever their coordinates are."""

    def __init__(self, solver: Plain, gradient: Tensor) -> None:
        self._rows, self._weights, self._alpha = solver.rows, solver.weights, solver.damping
        self._square_r = self._square_p = self._before = squares(gradient)
        self._tiny = torch.finfo(gradient.dtype).tiny

    @property
    @abstractmethod
    def solution(self) -> Tensor:
        """x, (l × d)."""

    def left(self) -> Tensor:
        """The squared length of the residual over all units, a scalar."""
        return self._square_r.sum()

    def descend(self, *, last: bool = False) -> None:
        """Go along the direction; the last time, the residual is not needed any more."""
        seen = self._seen()
        weighted = seen * self._weights
        form = (seen * weighted).sum(1, keepdim=True).add_(self._square_p, alpha=self._alpha)
        length = self._square_r / form.clamp_min_(self._tiny)
        self._advance(length)
        if not last:
            self._before, self._square_r = self._square_r, self._fall(length, seen, weighted)

    def turn(self) -> None:
        """Find the next direction."""
        ratio = self._square_r / self._before.clamp_min(self._tiny)
        self._turn(ratio)
        self._square_p = torch.addcmul(self._square_r, ratio * ratio, self._square_p)

    @abstractmethod
    def _seen(self) -> Tensor:
        """p Uᵀ, (l × n)."""

    @abstractmethod
    def _advance(self, length: Tensor) -> None:
        """x + length · p."""

    @abstractmethod
    def _fall(self, length: Tensor, seen: Tensor, weighted: Tensor) -> Tensor:
        """r − length · (αp + weighted U), whose square is given, (l × 1)."""

    @abstractmethod
    def _turn(self, ratio: Tensor) -> None:
        """p becomes r + ratio · p."""


class AmongParents(PlainDescent):
    """Vectors as they are, (l × d)."""

    def __init__(self, solver: Plain, gradient: Tensor) -> None:
        super().__init__(solver, gradient)
        self._r = self._p = gradient
        self._x: Tensor | None = None

    @property
    def solution(self) -> Tensor:
        return torch.zeros_like(self._p) if self._x is None else self._x

    def _seen(self) -> Tensor:
        return self._p @ self._rows.T

    def _advance(self, length: Tensor) -> None:
        self._x = length * self._p if self._x is None else self._x.addcmul_(length, self._p)

    def _fall(self, length: Tensor, seen: Tensor, weighted: Tensor) -> Tensor:
        image = torch.addmm(self._p, weighted, self._rows, beta=self._alpha)
        self._r = torch.addcmul(self._r, length, image, value=-1)
        return squares(self._r)

    def _turn(self, ratio: Tensor) -> None:
        self._p = torch.addcmul(self._r, ratio, self._p)


class AmongRows(PlainDescent):
    """Vectors as a g + C U: a, (l × 1), C, (l × n), and the products with U, (l × n)."""

    def __init__(self, solver: Plain, gradient: Tensor) -> None:
        super().__init__(solver, gradient)
        self._gradient, self._square = gradient, self._square_r
        self._among = self._rows @ self._rows.T
        self._seen_g = self._seen_r = self._seen_p = gradient @ self._rows.T
        self._a_r = self._a_p = torch.ones_like(self._square_r)
        self._a_x = torch.zeros_like(self._a_r)
        self._c_r = self._c_p = self._c_x = torch.zeros_like(self._seen_r)

    @property
    def solution(self) -> Tensor:
        return (self._gradient * self._a_x).addmm_(self._c_x, self._rows)

    def _seen(self) -> Tensor:
        return self._seen_p

    def _advance(self, length: Tensor) -> None:
        self._a_x = torch.addcmul(self._a_x, length, self._a_p)
        self._c_x = torch.addcmul(self._c_x, length, self._c_p)

    def _fall(self, length: Tensor, seen: Tensor, weighted: Tensor) -> Tensor:
        self._a_r = torch.addcmul(self._a_r, length, self._a_p, value=-self._alpha)
        image = torch.addmm(seen, weighted, self._among, beta=self._alpha)
        self._seen_r = torch.addcmul(self._seen_r, length, image, value=-1)
        self._c_r = torch.addcmul(self._c_r, length, weighted.add_(self._c_p, alpha=self._alpha), value=-1)
        # r·r = a r·g + C·(r Uᵀ), and r·g in the same way.
        both = torch.addcmul(self._seen_r, self._a_r, self._seen_g).mul_(self._c_r).sum(1, keepdim=True)
        return both.addcmul_(self._a_r * self._a_r, self._square).clamp_min_(0)

    def _turn(self, ratio: Tensor) -> None:
        self._a_p = torch.addcmul(self._a_r, ratio, self._a_p)
        self._c_p = torch.addcmul(self._c_r, ratio, self._c_p)
        self._seen_p = torch.addcmul(self._seen_r, ratio, self._seen_p)
