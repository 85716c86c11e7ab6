"""The narrow form of the conjugate solver: some directions exactly, the rest by a mean, and no iterations."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import SAMPLE_WEIGHTS, blocks_of, random_sample_weights, residual
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dagfisher.optim.settings import BY_ITSELF
from dagfisher.solvers import SOLVERS, Conjugate, RowProblem
from dagfisher.solvers.reductions import DROP_SHARE

F64 = torch.float64


def problem(
    n: int,
    d: int,
    units: int,
    *,
    rank: int = 20,
    noise: float = 0.3,
    weights: str = "uneven",
    shared: bool = False,
    spread: float = 2.0,
    damping: float = 0.1,
    tolerance: float = BY_ITSELF["tolerance"],
    update_every: int = 50,
    seed: int = 0,
    dtype: torch.dtype = F64,
) -> RowProblem:
    """Correlated parents, as those of a layer that sees another one, with the gradient of some loss."""
    draws = torch.Generator().manual_seed(seed)
    factors = torch.randn(n, rank, generator=draws, dtype=F64) @ torch.randn(rank, d, generator=draws, dtype=F64)
    parents = factors / rank**0.5 + noise * torch.randn(n, d, generator=draws, dtype=F64)
    parents[:, -1] = 1
    logits = spread * torch.randn(n, 1 if shared else units, generator=draws, dtype=F64)
    q = torch.sigmoid(logits) * torch.sigmoid(-logits) * random_sample_weights(weights, n, draws).unsqueeze(1)
    gradient = torch.randn(units, n, generator=draws, dtype=F64) @ parents / n
    parts = (parents, q, gradient)
    parents, q, gradient = (t.to(dtype) for t in parts)
    return RowProblem(parents, q, damping, gradient, tolerance, update_every)


def is_narrow(solver: Conjugate) -> bool:
    return solver.iterations == 0 and solver.directions is not None and solver.leading is not None


def left(of: RowProblem, gradient: Tensor, solution: Tensor) -> float:
    return residual(of.parents, of.weights, of.damping, gradient, solution)


CASES: dict[str, dict[str, Any]] = {
    "more rows than parents": {"n": 400, "d": 300, "units": 30},
    "fewer rows than parents": {"n": 150, "d": 300, "units": 30},
    "as many": {"n": 250, "d": 250, "units": 30},
    "one block": {"n": 400, "d": 300, "units": 30, "shared": True},
    "equal weights": {"n": 400, "d": 300, "units": 30, "weights": "equal"},
    "few units and many uses": {"n": 400, "d": 300, "units": 4, "update_every": 300},
    "few uses": {"n": 200, "d": 100, "units": 3, "update_every": 10},
    "float32": {"n": 400, "d": 300, "units": 30, "dtype": torch.float32},
}
"""Where a narrow solver suffices at the tolerance that is the default."""
OTHERS: dict[str, dict[str, Any]] = {
    "concentrated weights": {"n": 400, "d": 300, "units": 30, "weights": "concentrated"},
    "a whole basis": {"n": 300, "d": 100, "units": 60},
    "a whole basis, fewer rows": {"n": 90, "d": 140, "units": 60},
    "parents without order": {"n": 400, "d": 300, "units": 30, "rank": 60, "noise": 1.0},
}
"""Where it may be another form."""
ALL = {**CASES, **OTHERS}


@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_the_residual_is_within_the_tolerance(case: dict[str, Any]) -> None:
    for tolerance in (0.5, BY_ITSELF["tolerance"], 0.05):
        for damping in (1e-3, 0.1, 10.0):
            of = problem(**case, tolerance=tolerance, damping=damping)
            solver, found = Conjugate.begin(of)
            assert left(of, of.gradient, found) <= tolerance
            torch.testing.assert_close(
                solver.solve(of.gradient), found, rtol=1e-5, atol=1e-6 * float(found.abs().max())
            )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_loose_tolerances_with_many_uses_are_narrow(case: dict[str, Any]) -> None:
    """Otherwise the other tests here say less than they seem to."""
    solver, _ = Conjugate.begin(problem(**case, tolerance=0.3))
    assert is_narrow(solver) and solver.basis is None
    assert not is_narrow(Conjugate.begin(problem(**{**case, "update_every": 1}, tolerance=0.3))[0])
    assert not is_narrow(Conjugate.begin(problem(**{**case, "update_every": 2}, tolerance=1e-6))[0])


@given(
    n=st.integers(66, 220),
    d=st.integers(66, 160),
    units=st.integers(1, 40),
    rank=st.sampled_from([3, 20, 60]),
    noise=st.sampled_from([0.01, 0.3, 1.0]),
    weights=st.sampled_from(SAMPLE_WEIGHTS),
    shared=st.booleans(),
    damping=st.floats(-3, 1),
    tolerance=st.floats(-3, -0.2),
    update_every=st.sampled_from([2, 10, 50, 1000]),
    seed=st.integers(0, 2**20),
)
def test_any_layer_is_solved_within_the_tolerance(
    n: int, d: int, units: int, damping: float, tolerance: float, **more: Any
) -> None:
    of = problem(n, d, units, damping=10**damping, tolerance=10**tolerance, **more)
    solver, found = Conjugate.begin(of)
    assert left(of, of.gradient, found) <= 10**tolerance
    # What is kept is the matrix itself, but for rows that cannot matter.
    full = torch.from_numpy(blocks_of(of.parents, of.weights, of.damping))
    lost = torch.linalg.matrix_norm(full - solver.blocks(), ord=2)
    assert float(lost.max()) <= DROP_SHARE * 10**tolerance * of.damping * (1 + 1e-9) + 1e-12
    again = Conjugate(**solver.state())
    other = torch.randn(units, d, generator=torch.Generator().manual_seed(1), dtype=F64)
    assert torch.equal(again.solve(other), solver.solve(other))


@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_gradients_of_the_same_kind_that_come_later_are_solved_about_as_well(case: dict[str, Any]) -> None:
    of = problem(**case)
    solver, _ = Conjugate.begin(of)
    draws = torch.Generator().manual_seed(9)
    for _ in range(3):
        later = torch.randn(len(of.gradient), len(of.parents), generator=draws).to(of.parents) @ of.parents
        assert left(of, later, solver.solve(later)) <= 1.5 * of.tolerance


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_narrow_inverse_is_symmetric_and_positive(case: dict[str, Any]) -> None:
    """So that x·g is never negative, which the damping and the trust region rely on."""
    of = problem(**{**case, "dtype": F64}, tolerance=0.3)
    solver, _ = Conjugate.begin(of)
    assert is_narrow(solver)
    a, b = torch.randn(2, *of.gradient.shape, generator=torch.Generator().manual_seed(2), dtype=F64)
    one, two = (solver.solve(a) * b).sum(1), (solver.solve(b) * a).sum(1)
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)
    assert bool(((solver.solve(a) * a).sum(1) > 0).all())
    torch.testing.assert_close(solver.solve(a + 2 * b), solver.solve(a) + 2 * solver.solve(b), rtol=1e-9, atol=1e-10)


def test_along_its_directions_a_narrow_solver_is_exact_and_outside_it_takes_the_mean() -> None:
    """Corners of the blocks are inverted; all that is outside is divided by the mean of the rest of the trace."""
    of = problem(400, 300, 30, weights="equal", spread=0.5, tolerance=0.3)
    solver, _ = Conjugate.begin(of)
    assert is_narrow(solver) and solver.directions is not None
    assert len(solver.rows) == len(of.parents)  # none is left out
    basis = solver.directions
    size = basis.shape[1]
    torch.testing.assert_close(basis.T @ basis, torch.eye(size, dtype=F64), rtol=0, atol=1e-10)
    blocks = torch.from_numpy(blocks_of(of.parents, of.weights, of.damping))
    corners = torch.einsum("dr,jde,es->jrs", basis, blocks, basis)
    gradient = torch.randn(30, size, generator=torch.Generator().manual_seed(3), dtype=F64)
    expected = torch.linalg.solve(corners, gradient.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(solver.solve(gradient @ basis.T), expected @ basis.T, rtol=1e-8, atol=1e-9)
    outside = torch.randn(30, 300, generator=torch.Generator().manual_seed(4), dtype=F64)
    outside -= (outside @ basis) @ basis.T
    trace = blocks.diagonal(dim1=1, dim2=2).sum(1) - corners.diagonal(dim1=1, dim2=2).sum(1)
    mean = (trace / (300 - size)).unsqueeze(1)
    torch.testing.assert_close(solver.solve(outside), outside / mean, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_a_checkpoint_holds_all_of_it(case: dict[str, Any]) -> None:
    of = problem(**case)
    solver, _ = Conjugate.begin(of)
    file = io.BytesIO()
    torch.save(solver.state(), file)
    file.seek(0)
    again = SOLVERS["conjugate"](**torch.load(file, weights_only=True))
    assert torch.equal(again.solve(of.gradient), solver.solve(of.gradient))
    assert torch.equal(again.blocks(), solver.blocks())
    assert again.nbytes() == solver.nbytes()


@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_the_blocks_that_are_shown_are_the_damped_ones(case: dict[str, Any]) -> None:
    """With weights so even that no row is left out, exactly."""
    of = problem(**{**case, "weights": "equal"}, spread=0.5)
    solver, _ = Conjugate.begin(of)
    expected = torch.from_numpy(blocks_of(of.parents, of.weights, of.damping))
    assert len(solver.rows) == len(of.parents)
    torch.testing.assert_close(solver.blocks().double(), expected, rtol=1e-5, atol=1e-6 if case.get("dtype") else 1e-11)


@pytest.mark.parametrize("outside", [False, True])
def test_a_gradient_that_says_nothing_still_prepares_for_later_ones(outside: bool) -> None:
    of = problem(150, 300, 30)
    gradient = torch.zeros_like(of.gradient)
    if outside:
        basis = torch.linalg.qr(of.parents.T, mode="complete").Q[:, 150:]
        gradient = torch.randn(30, 150, generator=torch.Generator().manual_seed(5), dtype=F64) @ basis.T
    silent = RowProblem(of.parents, of.weights, of.damping, gradient, of.tolerance, of.update_every)
    solver, found = Conjugate.begin(silent)
    assert bool(found.isfinite().all())
    assert outside or not found.any()
    assert left(of, of.gradient, solver.solve(of.gradient)) <= 1.5 * of.tolerance


class NoReading(TorchDispatchMode):
    """Raises if the host reads a number from the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "item", "nonzero", "is_nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_solving_reads_nothing_from_the_device_and_leaves_the_gradient(case: dict[str, Any]) -> None:
    of = problem(**case)
    solver, _ = Conjugate.begin(of)
    before = of.gradient.clone()
    with NoReading():
        solver.solve(of.gradient)
    assert torch.equal(of.gradient, before)
