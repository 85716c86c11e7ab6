"""Conjugate gradients without a preconditioner, in either coordinates, against dense solves in float64."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, blocks_of, cases, relative_error, solve_rows
from torch import Tensor

from dagfisher import choose_solver
from dagfisher.solvers import Conjugate, Plain, RowProblem, Solver
from dagfisher.solvers.descent import attempt
from dagfisher.solvers.plain import LOOSE, AmongParents, AmongRows
from dagfisher.solvers.reductions import FEW, drop_rows

F64 = torch.float64


def residual(problem: RowProblem, found: Tensor) -> float:
    """‖g − (αI + F)x‖/‖g‖ over all units, with blocks built one by one."""
    blocks = torch.from_numpy(blocks_of(problem.parents, problem.weights, problem.damping))
    image = torch.bmm(blocks.expand(len(found), -1, -1), found.double().unsqueeze(2)).squeeze(2)
    return float((problem.gradient.double() - image).norm() / problem.gradient.norm())


def random_problem(n: int, d: int, units: int, tolerance: float, damping: float = 0.1, seed: int = 0) -> RowProblem:
    generator = torch.Generator().manual_seed(seed)
    parents = torch.randn(n, d, generator=generator)
    weights = torch.rand(n, units, generator=generator) / n
    return RowProblem(parents, weights, damping, torch.randn(units, d, generator=generator), tolerance, 1)


@given(case=cases())
def test_both_coordinates_solve_the_blocks(case: Case) -> None:
    solver = Plain(case.parents, case.weights.T.contiguous(), case.damping, 0)
    wanted = solve_rows(blocks_of(case.parents, case.weights, case.damping), case.first)
    for kind in (AmongParents, AmongRows):
        descent = kind(solver, case.first)
        start = float(descent.left())
        for _ in range(200):
            descent.descend()
            if float(descent.left()) <= 1e-26 * start:
                break
            descent.turn()
        assert relative_error(descent.solution, wanted) < 1e-6


@pytest.mark.parametrize("rows", [7, 40])
def test_the_two_coordinates_take_the_same_steps(rows: int) -> None:
    problem = random_problem(rows, 20, 5, 0.3)
    solver = Plain(problem.parents.double(), problem.weights.T.double().contiguous(), 0.1, 0)
    one, other = (kind(solver, problem.gradient.double()) for kind in (AmongParents, AmongRows))
    for _ in range(4):
        one.descend(), other.descend()
        torch.testing.assert_close(one.solution, other.solution, rtol=1e-10, atol=1e-12)
        assert float(one.left()) == pytest.approx(float(other.left()), rel=1e-9)
        one.turn(), other.turn()


@given(
    n=st.integers(1, 60),
    d=st.integers(1, 60),
    units=st.integers(1, 9),
    tolerance=st.sampled_from([0.1, 0.3, 0.5]),
    seed=st.integers(0, 99),
)
def test_for_one_step_at_a_loose_tolerance_nothing_is_prepared(
    n: int, d: int, units: int, tolerance: float, seed: int
) -> None:
    problem = random_problem(n, d, units, tolerance, seed=seed)
    solver, found = Conjugate.begin(problem)
    assert residual(problem, found) <= tolerance * (1 + 1e-5)
    torch.testing.assert_close(solver.solve(problem.gradient), found, rtol=1e-4, atol=1e-5)


def test_it_is_taken_where_it_is_enough_and_nowhere_else() -> None:
    assert isinstance(Conjugate.begin(random_problem(60, 30, 20, 0.3))[0], Plain)
    assert isinstance(Conjugate.begin(random_problem(60, 30, 20, 0.9 * LOOSE))[0], Conjugate)
    problem = random_problem(60, 30, 20, 0.3)
    problem.update_every = 2
    assert isinstance(Conjugate.begin(problem)[0], Conjugate)


def test_rows_of_a_small_layer_stay_where_they_serve_one_step() -> None:
    """Finding those that do not matter would cost more than multiplying them."""
    small, large = (random_problem(400, 40, units, 0.3) for units in (20, 400))
    for problem in (small, large):
        problem.weights[:300] = 0
    assert drop_rows(small)[0] is small.parents
    assert len(drop_rows(large)[0]) == 100
    small.update_every = 2
    assert len(drop_rows(small)[0]) == 100


def test_for_one_step_at_a_loose_tolerance_tiny_layers_iterate_too() -> None:
    assert choose_solver(320, 11, 15, tolerance=LOOSE).name == "conjugate"
    assert choose_solver(320, 11, 15, tolerance=0.9 * LOOSE).name == "dense"
    assert choose_solver(320, 11, 15, tolerance=LOOSE, update_every=50).name == "dense"


def test_iterations_that_converge_too_slowly_give_way_to_a_basis() -> None:
    """Directions whose curvatures are spread over six decades, which a basis makes harmless."""
    generator = torch.Generator().manual_seed(0)
    parents = torch.randn(200, 90, generator=generator) * torch.logspace(0, -3, 90)
    weights = torch.full((200, 30), 0.25)
    problem = RowProblem(parents, weights, 1e-5, torch.randn(30, 90, generator=generator), 0.1, 1)
    solver, found = Conjugate.begin(problem)
    assert isinstance(solver, Conjugate)
    assert residual(problem, found) <= 0.1
    alone = Plain(parents, weights.T.contiguous(), 1e-5, 0)
    assert attempt(alone.descent(problem.gradient), 0.1, problem.total, spare=2.0) is None
    count = attempt(alone.descent(problem.gradient), 0.1, problem.total)
    assert count is not None and count > 20


def test_a_gradient_of_zero_is_solved_by_zero() -> None:
    for rows in (4, 40):
        problem = random_problem(rows, 9, 3, 0.3)
        problem.gradient.zero_()
        _, found = Conjugate.begin(problem)
        assert not found.any()


class Together:
    """Sums over threads that play processes; every thread must ask in the same order."""

    def __init__(self, size: int) -> None:
        self.barrier, self.numbers = threading.Barrier(size, timeout=60), [torch.zeros(())] * size

    def total(self, rank: int) -> Callable[[Tensor], Tensor]:
        def summed(numbers: Tensor) -> Tensor:
            self.numbers[rank] = numbers.clone()
            self.barrier.wait()
            found = torch.stack(self.numbers).sum(0)
            self.barrier.wait()
            return found

        return summed


@pytest.mark.parametrize(("rows", "units", "kind"), [(30, 9, Plain), (80, 9, Plain), (700, 550, Conjugate)])
def test_processes_that_share_the_units_find_what_one_finds(rows: int, units: int, kind: type[Solver]) -> None:
    problem = random_problem(rows, 50, units, 0.3)
    problem.gradient[: units // 3] *= 100  # a share alone would stop earlier or later
    alone, wanted = Conjugate.begin(problem)
    assert type(alone) is kind
    assert isinstance(alone, Plain) or (alone.directions is not None and alone.directions.shape[1] == FEW)
    together = Together(2)
    shares = [range(units // 3), range(units // 3, units)]
    parts = [problem.part(own, together.total(rank)) for rank, own in enumerate(shares)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(Conjugate.begin, parts))
    assert [type(solver) for solver, _ in found] == [kind, kind]
    assert {solver.iterations for solver, _ in found} == {alone.iterations}
    torch.testing.assert_close(torch.cat([solution for _, solution in found]), wanted, rtol=1e-4, atol=1e-4)
    joined = kind.joined([solver for solver, _ in found])
    torch.testing.assert_close(joined.solve(problem.gradient), wanted, rtol=1e-4, atol=1e-4)
