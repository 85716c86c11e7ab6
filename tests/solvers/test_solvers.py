"""Every solver multiplies by the same inverses: (αI + Uᵀ Q_j U)⁻¹, whatever the shape of the problem."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from reference import (
    Case,
    attainable,
    blocks_of,
    cases,
    random_parents,
    random_sample_weights,
    relative_error,
    solve_rows,
)
from torch import Tensor

from dagfisher.solvers import SOLVERS, RowProblem, solver_names
from dagfisher.solvers.blocks import gram_blocks

EXACT = ("dense", "woodbury", "conjugate")
TIGHT = 1e-16


def larger_case(n: int, d: int, units: int, seed: int, damping: float = 0.05) -> Case:
    """A layer as it occurs in training: binary parents, saturated and active units, uneven importance weights."""
    generator = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(n, units, generator=generator, dtype=torch.float64)
    q = torch.sigmoid(logits) * torch.sigmoid(-logits)
    weights = q * random_sample_weights("uneven", n, generator).unsqueeze(1)
    first, second = torch.randn(2, units, d, generator=generator, dtype=torch.float64)
    return Case(random_parents("-1,1", n, d, generator), weights, damping, first, second, seed)


ONE = Case(
    torch.ones(1, 1, dtype=torch.float64),
    torch.full((1, 1), 0.25, dtype=torch.float64),
    0.1,
    torch.ones(1, 1, dtype=torch.float64),
    -torch.ones(1, 1, dtype=torch.float64),
    0,
)
NOTHING_SEEN = Case(
    torch.ones(3, 2, dtype=torch.float64),
    torch.zeros(3, 2, dtype=torch.float64),
    0.1,
    torch.ones(2, 2, dtype=torch.float64),
    -torch.ones(2, 2, dtype=torch.float64),
    0,
)


@pytest.mark.parametrize("update_every", [1, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", EXACT)
@given(case=cases())
@example(case=ONE)
@example(case=NOTHING_SEEN)
def test_solvers_agree_with_a_dense_solve(name: str, dtype: torch.dtype, update_every: int, case: Case) -> None:
    """Fresh and reused; one sample, one unit, n < d, n > d, repeated rows, saturated units, shared weights."""
    problem = case.problem(dtype, TIGHT, update_every)
    solver, fresh = SOLVERS[name].begin(problem)
    blocks = blocks_of(case.parents, case.weights, case.damping)
    bound = attainable(case.parents, case.weights, case.damping, dtype, name)
    assert relative_error(fresh, solve_rows(blocks, case.first)) < bound
    reused = solver.solve(case.second.to(dtype))
    assert relative_error(reused, solve_rows(blocks, case.second)) < bound
    assert fresh.dtype == reused.dtype == dtype


SHAPES = [(1, 90, 3), (90, 1, 3), (40, 90, 5), (90, 40, 5), (80, 100, 4), (100, 80, 4), (150, 130, 40), (70, 70, 1)]


@pytest.mark.parametrize("update_every", [1, 1000])
@pytest.mark.parametrize(("n", "d", "units"), SHAPES)
@pytest.mark.parametrize("name", EXACT)
def test_solvers_agree_on_larger_layers(name: str, n: int, d: int, units: int, update_every: int) -> None:
    case = larger_case(n, d, units, seed=n + d)
    solver, fresh = SOLVERS[name].begin(case.problem(torch.float64, TIGHT, update_every))
    blocks = blocks_of(case.parents, case.weights, case.damping)
    assert relative_error(fresh, solve_rows(blocks, case.first)) < 1e-10
    assert relative_error(solver.solve(case.second), solve_rows(blocks, case.second)) < 1e-10


@pytest.mark.parametrize(("n", "d", "units"), SHAPES)
@pytest.mark.parametrize("name", EXACT)
def test_solvers_agree_on_larger_layers_in_float32(name: str, n: int, d: int, units: int) -> None:
    case = larger_case(n, d, units, seed=n + d, damping=0.2)
    solver, fresh = SOLVERS[name].begin(case.problem(torch.float32, TIGHT, 1000))
    blocks = blocks_of(case.parents, case.weights, case.damping)
    bound = attainable(case.parents, case.weights, case.damping, torch.float32, name)
    assert relative_error(fresh, solve_rows(blocks, case.first)) < bound
    assert relative_error(solver.solve(case.second.float()), solve_rows(blocks, case.second)) < bound


@given(case=cases())
def test_the_diagonal_solver_inverts_the_diagonal(case: Case) -> None:
    _, found = SOLVERS["diagonal"].begin(case.problem())
    expected = case.first / (case.damping + case.weights.T @ case.parents.square())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", solver_names())
@given(case=cases())
def test_what_a_solver_shows_is_what_it_inverts(name: str, case: Case) -> None:
    """`blocks()` times a solution is the gradient."""
    solver, found = SOLVERS[name].begin(case.problem(tolerance=TIGHT))
    blocks = solver.blocks()
    assert blocks.shape == (case.weights.shape[1], case.parents.shape[1], case.parents.shape[1])
    back = torch.einsum("jde,je->jd", blocks.expand(len(found), -1, -1), found)
    assert relative_error(back, case.first) < 1e-9
    if name != "diagonal":
        expected = torch.from_numpy(blocks_of(case.parents, case.weights, case.damping))
        torch.testing.assert_close(blocks, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("name", solver_names())
@given(case=cases())
def test_a_solver_is_linear(name: str, case: Case) -> None:
    if name == "conjugate":
        return  # conjugate gradients are linear only in the limit of the tolerance, which the tests above take
    solver = SOLVERS[name].prepare(case.problem())
    together = solver.solve(2 * case.first - case.second)
    apart = 2 * solver.solve(case.first) - solver.solve(case.second)
    torch.testing.assert_close(together, apart, rtol=1e-8, atol=1e-8 * float(apart.abs().max()))


@pytest.mark.parametrize("name", solver_names())
@given(case=cases())
def test_a_solver_is_rebuilt_from_its_state(name: str, case: Case) -> None:
    """What it keeps are plain tensors and numbers, and they are all it needs: the same bits come out."""
    solver = SOLVERS[name].prepare(case.problem(tolerance=1e-3, update_every=1000))
    state = solver.state()
    assert all(value is None or isinstance(value, (Tensor, float, int)) for value in state.values())
    copied = {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
    again = SOLVERS[name](**copied).to(torch.device("cpu"))
    assert torch.equal(again.solve(case.second), solver.solve(case.second))
    assert solver.nbytes() == sum(v.numel() * 8 for v in state.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("name", solver_names())
@given(case=cases())
def test_solving_leaves_problem_and_gradient_alone(name: str, case: Case) -> None:
    problem = case.problem(tolerance=1e-3, update_every=1000)
    before = [t.clone() for t in (problem.parents, problem.weights, problem.gradient, case.second)]
    solver, _ = SOLVERS[name].begin(problem)
    first = solver.solve(case.second)
    first.zero_()
    assert not torch.equal(solver.solve(case.second), first)
    for tensor, kept in zip((problem.parents, problem.weights, problem.gradient, case.second), before, strict=True):
        assert torch.equal(tensor, kept)


@pytest.mark.parametrize("name", EXACT)
def test_no_damping_is_too_small_for_a_unit_that_was_never_active(name: str) -> None:
    """q = 0 for one unit: its block is αI, and nothing is divided by q."""
    case = larger_case(20, 30, 3, seed=1)
    case.weights[:, 1] = 0
    _, found = SOLVERS[name].begin(case.problem(torch.float64, TIGHT))
    torch.testing.assert_close(found[1], case.first[1] / case.damping, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [3, 70])
def test_gram_blocks_are_the_definition(d: int) -> None:
    case = larger_case(15, d, 4, seed=2)
    expected = torch.from_numpy(blocks_of(case.parents, case.weights, 0.3))
    torch.testing.assert_close(gram_blocks(case.parents, case.weights, 0.3), expected, rtol=1e-12, atol=1e-14)


def test_problem_counts_its_blocks() -> None:
    case = larger_case(5, 3, 4, seed=0)
    assert case.problem().blocks == 4
    assert RowProblem(case.parents, case.weights[:, :1], 0.1, case.first).blocks == 1
