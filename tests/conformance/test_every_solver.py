"""Every registered solver solves the blocks it says it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from dagfisher.solvers import SOLVERS, BlockShape, Cost, Dense, Solver
from dagfisher.testing import check_solver


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_it_keeps_the_contract(solver: type[Solver], seed: int) -> None:
    check_solver(solver, seed=seed)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_it_keeps_the_contract_where_questions_make_the_host_wait(solver: type[Solver], seed: int) -> None:
    check_solver(solver, seed=seed)


@dataclass
class Halved(Dense):
    """Half of the solution."""

    def solve(self, gradient: Tensor) -> Tensor:
        return super().solve(gradient) / 2


@dataclass
class Free(Dense):
    """A cost of nothing."""

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        return Cost(0.0, 0.0)


@dataclass
class Greedy(Dense):
    """Keeps what no checkpoint can hold."""

    note: Any = None
    name: ClassVar[str] = "greedy"

    @classmethod
    def begin(cls, problem: Any) -> tuple[Greedy, Tensor]:
        made, solution = Dense.begin(problem)
        return cls(made.inverses, {"a": "dict"}), solution


@dataclass
class InPlace(Dense):
    """Writes into the gradient that it is given."""

    def solve(self, gradient: Tensor) -> Tensor:
        return gradient.copy_(super().solve(gradient))


@pytest.mark.parametrize(
    ("solver", "words"),
    [(Halved, "does not solve"), (Free, "its cost is"), (Greedy, "checkpoint"), (InPlace, "changes the problem's")],
)
def test_a_mistake_is_found_and_named(solver: type[Solver], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_solver(solver)
