"""From passes to statistics: nothing is lost when passes are joined and equal rows are merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import PARENTS, blocks_of, random_parents
from torch import Tensor

from dagfisher._reading import answered
from dagfisher.errors import NonFiniteError, SampleWeightError, SettingError
from dagfisher.fisher import MEMORY_LIMIT, Columns, Grams, LayerFisher, Rows, choose_solver
from dagfisher.fisher.rows import merge_rows
from dagfisher.fisher.segments import RowSegment
from dagfisher.solvers import BlockShape, Cost, Woodbury

F64 = torch.float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_rows(n: int, parents: int, units: int, seed: int, weights: Tensor | None = None) -> Rows:
    rows = torch.randn(n, parents, generator=generator(seed), dtype=F64)
    q = torch.rand(n, units, generator=generator(seed + 1), dtype=F64)
    sample = torch.ones(n, dtype=F64) if weights is None else weights
    return Rows(rows, (q,), sample, sample.sum())


def blocks(rows: Rows, *, weight: bool = True, bias: bool = True) -> Tensor:
    """The blocks of the one group of units, built from its segment by a loop over samples."""
    answered(rows.require_sound())
    (segment,) = answered(rows.segments(rows.fisher_weights[0].shape[1:], Columns(weight, bias)))
    return torch.from_numpy(blocks_of(segment.parents, segment.weights, 0.0))


# Merging


@given(
    distinct=st.integers(1, 12),
    copies=st.integers(1, 5),
    d=st.integers(1, 9),
    kind=st.sampled_from(PARENTS),
    dtype=st.sampled_from([torch.float32, F64]),
    seed=st.integers(0, 2**20),
)
def test_merging_equal_rows_changes_no_block(
    distinct: int, copies: int, d: int, kind: str, dtype: torch.dtype, seed: int
) -> None:
    some = random_parents(kind, distinct, d, generator(seed)).to(dtype)
    rows = some.repeat(copies, 1)[torch.randperm(distinct * copies, generator=generator(seed))]
    weights = [torch.rand(len(rows), units, generator=generator(seed), dtype=dtype) for units in (3, 1)]
    merged, sums = answered(merge_rows(rows, weights))
    assert len(merged) == len(merged.unique(dim=0))
    assert {tuple(r) for r in merged.tolist()} == {tuple(r) for r in rows.tolist()}
    for q, sum_ in zip(weights, sums, strict=True):
        expected = torch.from_numpy(blocks_of(rows, q, 0.0))
        tolerance = 1e-13 if dtype == F64 else 1e-5
        found = torch.from_numpy(blocks_of(merged, sum_, 0.0))
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_repeated_inputs_count_once() -> None:
    """Each of 32 inputs repeated 10 times, as in a wake phase: 32 rows, not 320."""
    for parents in (torch.rand(32, 50, generator=generator(0)), random_parents("0,1", 32, 50, generator(0)).float()):
        merged, (sums,) = answered(merge_rows(parents.repeat_interleave(10, 0), [torch.full((320, 4), 1 / 320)]))
        assert merged.shape == (32, 50)
        torch.testing.assert_close(sums, torch.full((32, 4), 1 / 32))


def test_distinct_rows_stay_as_they_are() -> None:
    rows, q = torch.randn(20, 6, generator=generator(1)), torch.rand(20, 2, generator=generator(2))
    merged, (sums,) = answered(merge_rows(rows, [q]))
    assert torch.equal(merged, rows)
    assert torch.equal(sums, q)


def test_rows_that_differ_by_little_are_not_merged() -> None:
    rows = torch.ones(2, 40, dtype=F64)
    rows[1, 7] += 1e-15
    merged, _ = answered(merge_rows(rows, [torch.tensor([[0.25], [0.5]], dtype=F64)]))
    assert len(merged) == 2


def test_a_layer_whose_only_parent_is_the_constant_has_one_row() -> None:
    merged, (sums,) = answered(merge_rows(torch.ones(7, 1), [torch.full((7, 3), 0.5)]))
    assert merged.tolist() == [[1.0]]
    assert sums.tolist() == [[3.5] * 3]


# Joining passes


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_several_passes_are_one_pass_over_all_their_samples(sizes: list[int], seed: int) -> None:
    """Micro-batches of any sizes count by their samples, not by their passes."""
    weights = [torch.rand(n, generator=generator(seed + i), dtype=F64) for i, n in enumerate(sizes)]
    passes = [some_rows(n, 3, 2, seed + 10 * i, w) for i, (n, w) in enumerate(zip(sizes, weights, strict=True))]
    whole = Rows(
        torch.cat([r.parents for r in passes]),
        (torch.cat([r.fisher_weights[0] for r in passes]),),
        torch.cat([r.sample_weights for r in passes]),
        sum(r.total for r in passes),
    )
    torch.testing.assert_close(blocks(Rows.joined(passes)), blocks(whole), rtol=1e-13, atol=1e-14)
    grams = Grams.joined([r.to_grams((2,)) for r in passes])
    built = torch.cat([segment.blocks for segment in answered(grams.segments((2,), Columns(True, True)))])
    torch.testing.assert_close(built, blocks(whole), rtol=1e-13, atol=1e-14)


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_only_the_ratios_of_sample_weights_matter(scale: float, seed: int) -> None:
    weights = torch.rand(8, generator=generator(seed), dtype=F64) + 0.01
    plain = some_rows(8, 3, 2, seed, weights)
    scaled = some_rows(8, 3, 2, seed, scale * weights)
    torch.testing.assert_close(blocks(scaled), blocks(plain), rtol=1e-12, atol=1e-14)


def test_a_sample_of_weight_zero_is_not_there() -> None:
    weights = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0], dtype=F64)
    full = some_rows(5, 3, 2, 4, weights)
    kept = weights > 0
    reduced = Rows(full.parents[kept], (full.fisher_weights[0][kept],), weights[kept], weights.sum())
    found, expected = (blocks(r) for r in (full, reduced))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_the_corner_of_the_constant_is_the_mean_fisher_weight() -> None:
    """F of the bias alone is E[q]: the last corner of the whole block, and all of it if the weight is frozen."""
    one = some_rows(6, 3, 2, 5)
    both = blocks(one)
    bias = blocks(one, weight=False)
    weight = blocks(one, bias=False)
    torch.testing.assert_close(both[:, 3, 3], one.fisher_weights[0].mean(0))
    torch.testing.assert_close(bias, both[:, 3:, 3:])
    torch.testing.assert_close(weight, both[:, :3, :3])


@pytest.mark.parametrize("bad", [[0.0, 0.0], [1.0, -1.0], [1.0, torch.inf], [1.0, torch.nan]])
def test_impossible_sample_weights_are_an_error(bad: list[float]) -> None:
    with pytest.raises(SampleWeightError):
        blocks(some_rows(2, 3, 2, 0, torch.tensor(bad, dtype=F64)))


@pytest.mark.parametrize("where", ["rows", "fisher"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_statistics_that_are_not_finite_are_an_error(where: str, bad: float) -> None:
    one = some_rows(4, 3, 2, 0)
    (one.parents if where == "rows" else one.fisher_weights[0])[1, 1] = bad
    with pytest.raises(NonFiniteError):
        blocks(one)


# Choosing


SIZES = [1, 3, 30, 300, 3000]


@pytest.mark.parametrize("update_every", [1, 10, 1000])
def test_a_solver_is_chosen_for_every_shape(update_every: int) -> None:
    for n in SIZES:
        for d in SIZES:
            for units in (1, 40, 1000):
                assert choose_solver(n, d, units, damping=0.1, update_every=update_every).name in (
                    "dense",
                    "woodbury",
                    "conjugate",
                )


def test_few_parents_are_solved_densely_and_few_samples_by_woodbury() -> None:
    assert choose_solver(500, 5, 20, damping=0.1, update_every=1000).name == "dense"
    assert choose_solver(3, 2000, 50, damping=0.1, update_every=1000).name == "woodbury"


def test_the_largest_layer_of_an_mnist_machine_is_solved_iteratively() -> None:
    assert choose_solver(320, 301, 784, damping=0.2, update_every=1).name == "conjugate"


def test_what_is_chosen_for_a_shape_is_remembered_until_a_cost_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cost(shape: BlockShape, device: torch.device) -> Cost:
        asked.append(shape)
        return Cost(1.0, 1.0)

    before = choose_solver(500, 5, 20, update_every=1000)
    monkeypatch.setattr(Woodbury, "cost", cost)
    assert choose_solver(500, 5, 20, update_every=1000).name == "woodbury"
    assert choose_solver(500, 5, 20, update_every=1000).name == "woodbury"
    assert len(asked) == 1
    monkeypatch.undo()
    assert choose_solver(500, 5, 20, update_every=1000) == before


def test_a_choice_is_the_callers_own() -> None:
    choice = choose_solver(500, 5, 20)
    costs = dict(choice.costs)
    choice.costs.clear()
    assert choose_solver(500, 5, 20).costs == costs


@pytest.mark.parametrize("of", [np.array, np.float32, torch.tensor])
def test_a_tolerance_may_be_a_number_of_another_library(of: Callable[[float], Any]) -> None:
    assert choose_solver(320, 11, 15, tolerance=of(0.25)) == choose_solver(320, 11, 15, tolerance=0.25)


def test_what_does_not_fit_in_memory_is_not_chosen() -> None:
    """However long it would be kept: l·d² and l·n² numbers are too many."""
    assert MEMORY_LIMIT < 4000 * 3000**2
    assert choose_solver(3000, 3000, 4000, damping=0.1, update_every=10**6).name == "conjugate"


def test_without_damping_only_the_dense_solver_is_possible() -> None:
    assert choose_solver(300, 300, 500, damping=0.0, update_every=1).name == "dense"


# A layer


def one_layer(solver: str, damping: float = 0.3) -> tuple[LayerFisher, Tensor, list[RowSegment], Tensor]:
    """Two groups: three units with blocks of their own, two units that share one."""
    parents = torch.randn(9, 4, generator=generator(0), dtype=F64)
    weights = (torch.rand(9, 3, generator=generator(1), dtype=F64), torch.rand(9, 1, generator=generator(2), dtype=F64))
    gradient = torch.randn(5, 4, generator=generator(3), dtype=F64)
    segments = [RowSegment(parents, q, units) for q, units in zip(weights, (3, 2), strict=True)]
    settings = {"damping": damping, "solver": solver, "tolerance": 1e-14, "update_every": 5}
    fisher, solved = answered(LayerFisher.preparing(segments, gradient, **settings))
    return fisher, solved, segments, gradient


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate", "auto"])
def test_groups_of_units_are_solved_each_with_its_own_blocks(solver: str) -> None:
    fisher, solved, segments, gradient = one_layer(solver)
    own, shared = (torch.from_numpy(blocks_of(s.parents, s.weights, 0.3)) for s in segments)
    every = torch.cat([own, shared.expand(2, -1, -1)])
    expected = torch.linalg.solve(every, gradient.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(solved, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fisher.solve(gradient), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fisher.blocks(), every / 1.3, rtol=1e-10, atol=1e-12)


def test_a_shared_block_is_kept_once() -> None:
    fisher, *_ = one_layer("dense")
    assert [solver.inverses.shape[0] for solver in fisher.solvers] == [3, 1]
    assert fisher.nbytes() == 8 * (3 + 1) * 4 * 4


def test_parents_that_two_groups_share_are_counted_once() -> None:
    fisher, _, segments, _ = one_layer("woodbury")
    n, d = segments[0].parents.shape
    assert fisher.nbytes() == 8 * (n * d + n * (3 + 1) + (3 + 1) * n * n)


@pytest.mark.parametrize("solver", ["woodbury", "conjugate"])
def test_solvers_that_need_damping_refuse_to_go_without(solver: str) -> None:
    with pytest.raises(SettingError, match=solver):
        one_layer(solver, damping=0.0)
