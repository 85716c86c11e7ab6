"""The one contract of all solvers, and the names that the optimizer knows.

A solver is prepared once from a problem (`begin`) and then applied to any number of gradients (`solve`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from .._reading import Asking, answered
from ..errors import SettingError
from .problems import BlockShape, Kind


class Cost(NamedTuple):
    """What a solver costs, in multiply-adds of a large matrix product on the device."""

    step: float
    """Per step: preparing, divided by K, and applying."""
    numbers: float
    """Numbers that are kept in memory."""
    begin: float | None = None
    """Of a refresh: preparing and the first solution; None: not known, and processes guess it from `step`."""


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
    kinds: ClassVar[tuple[Kind, ...]] = ("plain",)
    """The kinds of problems that it can solve."""
    variant_of: ClassVar[str | None] = None
    """The name of the solver that this one takes the place of for its kinds of problems; None: it has a name itself."""
    by_unit: ClassVar[dict[str, int] | None] = None
    """The fields whose entries along this axis belong to units, in their order, so that processes can share the units;
    None: each process prepares all units."""

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost | None:
        """What a problem of this shape is expected to cost; None if "auto" is never to choose this solver.

        Args:
            shape: of the problem.
            device: where it is; `dagfisher.solvers.rates.rates` knows what operations cost on its type.
        """
        return None

    @classmethod
    def prepare(cls, problem: Any) -> Self:
        """The solver of this problem, with all that is worth doing once for `update_every` solves.

        A subclass gives this or `begin`.

        Args:
            problem: a `RowProblem`; or any `Problem`, if the solver needs no rows.
        """
        return cls.begin(problem)[0]

    @classmethod
    def begin(cls, problem: Any) -> tuple[Self, Tensor]:
        """The solver, and the solution for the problem's own gradient, (units × d); it may wait for the device."""
        solver = cls.prepare(problem)
        return solver, solver.solve(problem.gradient)

    @classmethod
    def asking(cls, problem: Any) -> Asking[tuple[Any, Tensor]]:
        """As `begin`, but what it must know it may ask for, so that an accelerator is read once for all layers."""
        yield from ()
        return cls.begin(problem)

    def solve(self, gradient: Tensor) -> Tensor:
        """(αI + F_j)⁻¹ g_j for every unit j; never waits for the device.

        Args:
            gradient: (units × d), g_j in row j; it is not changed.

        Returns:
            (units × d).
        """
        raise NotImplementedError

    def applying(self, gradient: Tensor) -> float:
        """Multiply-adds of `solve` for a gradient of this shape, about; 0: not known, and processes do not share it.

        Args:
            gradient: (units × d).
        """
        return 0.0

    def blocks(self) -> Tensor:
        """The matrices αI + F_j that `solve` inverts, (units or 1 × d × d); for inspection."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The fields, as plain tensors and numbers."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def nbytes(self) -> int:
        """Bytes of tensor memory kept."""
        return sum(v.numel() * v.element_size() for v in self.state().values() if isinstance(v, Tensor))

    def part(self, own: range, units: int) -> Self:
        """The solver of some of its units, of which there are so many."""
        assert self.by_unit is not None
        fields = {}
        for name, axis in self.by_unit.items():
            whole = getattr(self, name)
            # One entry may serve all units, or those of one variable.
            if isinstance(whole, Tensor) and whole.shape[axis] > 1:
                each = units // whole.shape[axis]
                fields[name] = whole.narrow(axis, own.start // each, len(own) // each)
        return dataclasses.replace(self, **fields)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The solver of the units of all parts, which were prepared alike."""
        assert cls.by_unit is not None
        first, fields = parts[0], {}
        for name, axis in cls.by_unit.items():
            if isinstance(getattr(first, name), Tensor):
                fields[name] = torch.cat([getattr(part, name) for part in parts], dim=axis)
        return dataclasses.replace(first, **fields)

    def to(self, device: torch.device) -> Self:
        """The same solver on another device; the dtype stays."""
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.state().items()}
        return type(self)(**moved)


class AskingSolver(Solver):
    """A solver that gives `asking`, and no other way to be prepared."""

    @classmethod
    def begin(cls, problem: Any) -> tuple[Self, Tensor]:
        return answered(cls.asking(problem))

    @classmethod
    def asking(cls, problem: Any) -> Asking[tuple[Any, Tensor]]:
        raise NotImplementedError


SOLVERS: dict[str, type[Solver]] = {}
"""The solvers by name, variants included."""


def solver_names() -> list[str]:
    """The names that the optimizer's `solver` setting takes, besides "auto"."""
    return [name for name, solver in SOLVERS.items() if solver.variant_of is None]


def register_solver(solver: type[Solver]) -> type[Solver]:
    """Let the optimizer's `solver` setting name this solver, and "auto" choose it if its `cost` says so.

    Args:
        solver: with a name that no other solver has.

    Returns:
        The class, so that this can be used as a decorator.
    """
    if solver.name == "auto" or SOLVERS.get(solver.name, solver) is not solver:
        raise SettingError(f"there is a solver {solver.name!r} already; choose another name.")
    SOLVERS[solver.name] = solver
    return solver
