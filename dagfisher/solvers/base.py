"""The one contract of all solvers, the problems they are given, and the names that the optimizer knows.

A solver is a class of frozen knowledge: `begin` prepares it from a problem, `solve` applies it any number of times.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import SettingError


class BlockShape(NamedTuple):
    """The sizes that a solver's cost depends on."""

    rows: int
    """n, the distinct rows of parents; 0 if there are none, only blocks."""
    parents: int
    """d, the constant 1 included."""
    units: int
    """l, the rows of the gradient."""
    blocks: int
    """How many different blocks there are: `units`, or 1 if all units share one."""
    update_every: int
    """K, for how many steps what is prepared will be used."""


class Cost(NamedTuple):
    """What a solver costs, in multiply-adds of a large matrix product on the device."""

    step: float
    """Per step: preparing, divided by K, and applying."""
    numbers: float
    """Numbers that are kept in memory."""


@dataclass
class Problem:
    """The damped blocks αI + F_j of one run of units, and the gradient that a solver may calibrate itself on.

    Two kinds: `RowProblem` has the rows that F_j is made of; `GramProblem` has the matrices F_j and nothing else.
    """

    damping: float
    """α."""
    gradient: Tensor
    """(units × d)."""
    tolerance: float
    """The relative residual that an iterative solver may leave."""
    update_every: int
    """For how many steps what is prepared will be used."""

    @property
    def shape(self) -> BlockShape:
        """The sizes that a solver's cost depends on."""
        raise NotImplementedError

    def damped_blocks(self) -> Tensor:
        """αI + F_j as dense matrices, (units or 1 × d × d)."""
        raise NotImplementedError

    def damped_diagonal(self) -> Tensor:
        """α + diag F_j, (units or 1 × d)."""
        raise NotImplementedError


class RowProblem(Problem):
    """F_j = Uᵀ Q_j U from the rows of U."""

    def __init__(
        self,
        parents: Tensor,
        weights: Tensor,
        damping: float,
        gradient: Tensor,
        tolerance: float = 1e-2,
        update_every: int = 1,
    ) -> None:
        super().__init__(damping, gradient, tolerance, update_every)
        self.parents = parents
        """U, (n × d), distinct rows."""
        self.weights = weights
        """w_k q_jk, (n × units), or (n × 1) where all units share one block."""

    @property
    def blocks(self) -> int:
        """How many different blocks there are."""
        return int(self.weights.shape[1])

    @property
    def shape(self) -> BlockShape:
        n, d = self.parents.shape
        return BlockShape(n, d, len(self.gradient), self.blocks, self.update_every)

    def damped_blocks(self) -> Tensor:
        return gram_blocks(self.parents, self.weights, self.damping)

    def damped_diagonal(self) -> Tensor:
        return (self.weights.T @ self.parents.square()).add_(self.damping)


class GramProblem(Problem):
    """F_j as they are, without the rows that they came from."""

    def __init__(
        self, grams: Tensor, damping: float, gradient: Tensor, tolerance: float = 1e-2, update_every: int = 1
    ) -> None:
        super().__init__(damping, gradient, tolerance, update_every)
        self.grams = grams
        """F_j, (units or 1 × d × d)."""

    @property
    def shape(self) -> BlockShape:
        return BlockShape(0, self.grams.shape[1], len(self.gradient), self.grams.shape[0], self.update_every)

    def damped_blocks(self) -> Tensor:
        identity = torch.eye(self.grams.shape[1], dtype=self.grams.dtype, device=self.grams.device)
        return self.grams + self.damping * identity

    def damped_diagonal(self) -> Tensor:
        return self.grams.diagonal(dim1=1, dim2=2) + self.damping


@dataclass
class Solver:
    """(αI + F_j)⁻¹ times a vector for every unit j; subclass it and `register_solver` to add one.

    What a solver keeps are its dataclass fields and nothing else: tensors, numbers and None, so that a checkpoint can
    hold them. `dagfisher.testing.check_solver` holds a solver to this contract. Order of life: `begin` (or `prepare`)
    once per refresh, then `solve` at every step until the next one::

        solver, first = Dense.begin(RowProblem(parents, weights, damping, gradient))
        second = solver.solve(other_gradient)
    """

    name: ClassVar[str]
    """As the optimizer's `solver` setting takes it."""
    exact: ClassVar[bool] = True
    """Whether it solves the blocks, exactly or to the tolerance, rather than an approximation of them."""
    needs_rows: ClassVar[bool] = True
    """Whether it can only be prepared from a `RowProblem`."""
    needs_damping: ClassVar[bool] = True
    """Whether a damping of 0 is an error."""

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost | None:
        """What to expect of a problem of this shape; None: never chosen by "auto"."""
        return None

    @classmethod
    def prepare(cls, problem: Any) -> Self:
        """The solver of this problem: do once what is worth keeping for `update_every` solves."""
        return cls.begin(problem)[0]

    @classmethod
    def begin(cls, problem: Any) -> tuple[Self, Tensor]:
        """The solver, and the solution for the problem's own gradient, (units × d); may synchronise with the host."""
        solver = cls.prepare(problem)
        return solver, solver.solve(problem.gradient)

    def solve(self, gradient: Tensor) -> Tensor:
        """Row j of the result is (αI + F_j)⁻¹ times row j of the gradient, (units × d); never waits for the device."""
        raise NotImplementedError

    def blocks(self) -> Tensor:
        """The matrices αI + F_j that `solve` inverts, (units or 1 × d × d); for inspection."""
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


SOLVERS: dict[str, type[Solver]] = {}
"""The solvers by name."""


def register_solver(solver: type[Solver]) -> type[Solver]:
    """Let the optimizer's `solver` setting name this solver, and "auto" choose it if its `cost` says so.

    Returns the class, so that it can be used as a decorator.
    """
    if solver.name == "auto" or SOLVERS.get(solver.name, solver) is not solver:
        raise SettingError(f"there is a solver {solver.name!r} already; choose another name.")
    SOLVERS[solver.name] = solver
    return solver


_SMALL = 64
"""Up to so many parents, blocks are built as matrix products with all products of two parents."""
_CHUNK = 2**22
"""Numbers of such products in memory at once."""


def gram_blocks(parents: Tensor, weights: Tensor, damping: float) -> Tensor:
    """αI + Uᵀ Q_j U as dense matrices, (blocks × d × d)."""
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
