"""The conjugate solver keeps its tolerance, leaves out only what does not matter, and needs little memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    Case,
    blocks_of,
    cases,
    random_parents,
    random_sample_weights,
    relative_error,
    residual,
    solve_rows,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dagfisher.solvers import Conjugate, RowProblem


def case_of(
    n: int, d: int, units: int, seed: int, *, sample_weights: str = "uneven", saturation: float = 6.0, size: float = 1.0
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    logits = saturation * torch.randn(n, units, generator=generator, dtype=torch.float64)
    q = torch.sigmoid(logits) * torch.sigmoid(-logits)
    weights = q * random_sample_weights(sample_weights, n, generator).unsqueeze(1)
    first, second = torch.randn(2, units, d, generator=generator, dtype=torch.float64)
    return Case(size * random_parents("real", n, d, generator), weights, 0.05, first, second, seed)


def relative_residual(case: Case, solution: Tensor) -> float:
    return residual(case.parents, case.weights, case.damping, case.first, solution)


# Tolerance


@given(case=cases(least_damping=1e-4), tolerance=st.floats(-6, -0.5), update_every=st.sampled_from([1, 10, 1000]))
def test_the_residual_is_within_the_tolerance(case: Case, tolerance: float, update_every: int) -> None:
    """‖g − (αI + F)x‖ ≤ tolerance ‖g‖, with the rows that were left out back in F."""
    _, found = Conjugate.begin(case.problem(torch.float64, 10**tolerance, update_every))
    assert relative_residual(case, found) <= 10**tolerance


@pytest.mark.parametrize("update_every", [1, 10, 1000])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("sample_weights", ["equal", "uneven", "concentrated"])
@pytest.mark.parametrize(("n", "d"), [(150, 100), (90, 120)])
def test_the_residual_is_within_the_tolerance_for_larger_layers(
    n: int, d: int, sample_weights: str, tolerance: float, update_every: int
) -> None:
    case = case_of(n, d, 12, seed=n, sample_weights=sample_weights)
    _, found = Conjugate.begin(case.problem(torch.float64, tolerance, update_every))
    assert relative_residual(case, found) <= tolerance


@pytest.mark.parametrize("seed", range(12))
def test_a_residual_that_grows_before_it_falls_is_followed_to_the_end(seed: int) -> None:
    """Large parents and little damping: conjugate gradients may get worse for dozens of iterations on their way."""
    case = case_of(80, 90, 20, seed, sample_weights="equal", saturation=20.0, size=10.0)
    case.damping = 5e-3
    _, found = Conjugate.begin(case.problem(torch.float64, 1e-4))
    assert relative_residual(case, found) <= 1e-4


def test_a_smaller_tolerance_takes_more_iterations() -> None:
    case = case_of(150, 100, 12, seed=0)
    counts = [Conjugate.begin(case.problem(torch.float64, t))[0].iterations for t in (1e-1, 1e-3, 1e-6, 1e-9)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_the_iterations_found_are_kept_for_later_gradients() -> None:
    case = case_of(150, 100, 12, seed=0)
    solver, _ = Conjugate.begin(case.problem(torch.float64, 1e-3, 1000))
    case.first, before = case.second, case.first
    assert relative_residual(case, solver.solve(case.second)) <= 1e-2
    case.first = before
    assert relative_residual(case, solver.solve(before)) <= 1e-3


# Rows that are left out


def test_rows_that_cannot_matter_are_left_out() -> None:
    """Importance weights on a few samples: the others go, and the tolerance is still kept."""
    case = case_of(200, 40, 6, seed=3, sample_weights="concentrated")
    solver, found = Conjugate.begin(case.problem(torch.float64, 1e-2))
    assert solver.rows.shape[0] < 100
    assert relative_residual(case, found) <= 1e-2


@given(case=cases(), tolerance=st.floats(-4, -0.5))
def test_what_is_left_out_is_bounded(case: Case, tolerance: float) -> None:
    """The blocks kept differ from the true ones by less than tolerance · α in norm."""
    solver, _ = Conjugate.begin(case.problem(torch.float64, 10**tolerance))
    full = torch.from_numpy(blocks_of(case.parents, case.weights, case.damping))
    lost = torch.linalg.matrix_norm(full - solver.blocks(), ord=2)
    assert float(lost.max()) <= 10**tolerance * case.damping * (1 + 1e-9) + 1e-13


def test_a_tight_tolerance_leaves_out_only_rows_of_no_weight() -> None:
    case = case_of(30, 10, 4, seed=1)
    case.weights[:7] = 0
    solver, found = Conjugate.begin(case.problem(torch.float64, 0.0))
    assert solver.rows.shape[0] == 23
    expected = solve_rows(blocks_of(case.parents, case.weights, case.damping), case.first)
    assert relative_error(found, expected) < 1e-10


# Bases


def test_every_kind_of_basis_and_preconditioner_is_exact() -> None:
    """A whole eigenbasis, its leading corner or all of it solved exactly, and a partial one."""
    seen = set()
    for n, d, units, update_every in [(60, 40, 8, 1), (150, 130, 4, 1), (150, 130, 4, 1000), (400, 130, 60, 60)]:
        case = case_of(n, d, units, seed=n + d)
        solver, fresh = Conjugate.begin(case.problem(torch.float64, 1e-14, update_every))
        expected = blocks_of(case.parents, case.weights, case.damping)
        assert relative_error(fresh, solve_rows(expected, case.first)) < 1e-10
        assert relative_error(solver.solve(case.second), solve_rows(expected, case.second)) < 1e-10
        corner = 0 if solver.leading is None else solver.leading.shape[1]
        whole = corner == solver.rows.shape[1]
        seen.add("all" if whole else "partial" if solver.directions is not None else "corner" if corner else "diagonal")
    assert seen >= {"partial", "diagonal", "all"}


def test_with_every_direction_solved_exactly_nothing_is_left_to_iterate() -> None:
    case = case_of(60, 40, 8, seed=6)
    solver, found = Conjugate.begin(case.problem(torch.float64, 1e-6, 10**6))
    assert solver.leading is not None
    assert solver.leading.shape == (8, 40, 40)
    assert solver.iterations == 0
    assert relative_residual(case, found) <= 1e-6


def test_in_the_shared_basis_one_block_for_all_units_is_diagonal() -> None:
    """With weights shared by all units the eigenbasis solves every unit in one iteration."""
    case = case_of(50, 20, 1, seed=2)
    gradient = torch.randn(9, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    solver, found = Conjugate.begin(RowProblem(case.parents, case.weights, 0.1, gradient, 1e-12))
    assert solver.iterations <= 1
    assert relative_error(found, solve_rows(blocks_of(case.parents, case.weights, 0.1), gradient)) < 1e-10


def test_the_basis_is_orthonormal_and_spans_the_rows() -> None:
    for n, d in ((20, 50), (50, 20)):
        case = case_of(n, d, 5, seed=4)
        solver, _ = Conjugate.begin(case.problem(torch.float64, 1e-12))
        assert solver.basis is not None
        identity = torch.eye(min(n, d), dtype=torch.float64)
        torch.testing.assert_close(solver.basis.T @ solver.basis, identity, rtol=0, atol=1e-12)
        torch.testing.assert_close(solver.rows @ solver.basis.T, case.parents, rtol=0, atol=1e-11)


def test_a_gradient_of_zero_has_a_natural_gradient_of_zero() -> None:
    case = case_of(30, 20, 4, seed=5)
    case.first.zero_()
    for update_every in (1, 1000):
        _, found = Conjugate.begin(case.problem(torch.float64, 1e-2, update_every))
        assert torch.equal(found, torch.zeros_like(found))


# Memory


class LargestResult(TorchDispatchMode):
    """Notes the largest number of elements that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and not getattr(func, "is_view", False):
                self.largest = max(self.largest, tensor.numel())
        return result


@pytest.mark.parametrize(("n", "d", "units"), [(120, 100, 90), (60, 150, 90), (200, 40, 100)])
def test_nothing_of_size_units_times_n_squared_or_d_squared_exists(n: int, d: int, units: int) -> None:
    """A fresh solve holds nothing larger than the data: n·d, n·l, l·d or d² numbers."""
    problem = case_of(n, d, units, seed=0).problem(torch.float32, 1e-2)
    with LargestResult() as seen:
        solver, _ = Conjugate.begin(problem)
        solver.solve(problem.gradient)
    assert 0 < seen.largest <= max(n, d) * max(n, d, units)
    assert seen.largest < units * min(n, d) ** 2 / 4
    assert solver.nbytes() <= 4 * (n * (units + d) + 2 * d * d + 2 * units * d)


def test_the_dense_solver_would_be_noticed() -> None:
    """The measure above sees the matrices that the conjugate solver avoids."""
    from dagfisher.solvers import Dense, Woodbury

    problem = case_of(120, 100, 90, seed=0).problem(torch.float32)
    for solver, size in ((Dense, 90 * 100**2), (Woodbury, 90 * 120**2)):
        with LargestResult() as seen:
            solver.begin(problem)
        assert seen.largest >= size


@pytest.mark.parametrize("update_every", [10, 1000])
@pytest.mark.parametrize("outside", [False, True])
def test_a_refresh_on_a_gradient_that_says_nothing_still_serves_the_next_ones(update_every: int, outside: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    parents = torch.randn(90, 120, generator=generator, dtype=torch.float64)
    weights = torch.rand(90, 12, generator=generator, dtype=torch.float64) / 90
    gradient = torch.zeros(12, 120, dtype=torch.float64)
    if outside:
        basis = torch.linalg.qr(parents.T, mode="complete").Q[:, 90:]
        gradient = torch.randn(12, 30, generator=generator, dtype=torch.float64) @ basis.T
    solver, first = Conjugate.begin(RowProblem(parents, weights, 0.01, gradient, 1e-2, update_every))
    torch.testing.assert_close(first, gradient / 0.01, rtol=1e-8, atol=1e-10)
    later = torch.randn(12, 90, generator=generator, dtype=torch.float64) @ parents
    assert residual(parents, weights, 0.01, later, solver.solve(later)) < 3e-2


# A basis that LAPACK does not find


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("update_every", [1, 1000])
def test_an_eigenproblem_that_does_not_converge_is_solved_in_float64(
    update_every: int, says_so: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As float32 did not for nearly singular Gram matrices with denormal numbers: an error, or NaN in two columns."""
    real, refused = torch.linalg.eigh, []

    def eigh(matrix: Tensor) -> Any:
        if matrix.dtype == torch.float32:
            refused.append(matrix.shape)
            if says_so:
                raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")
            found = real(matrix)
            found.eigenvectors[:, :2] = torch.nan
            return found
        return real(matrix)

    case = case_of(300, 100, 12, seed=1)
    usual = Conjugate.begin(case.problem(torch.float32, 1e-3, update_every))[1]
    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    solver, found = Conjugate.begin(case.problem(torch.float32, 1e-3, update_every))
    assert refused and found.dtype == torch.float32
    torch.testing.assert_close(found, usual, rtol=0, atol=5e-3 * float(usual.abs().max()))
    assert relative_residual(case, found.double()) < 2e-3
    assert relative_residual(case, solver.solve(case.first.float()).double()) < 2e-3
