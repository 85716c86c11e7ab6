"""From passes to statistics: nothing is lost when passes are joined and equal rows are merged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import PARENTS, blocks_of, random_parents
from torch import Tensor

from dagfisher.errors import MissingStatisticsError, NonFiniteError, SampleWeightError, ShapeError, SingularBlockError
from dagfisher.fisher import MEMORY_LIMIT, LayerFisher, Statistics, choose, gather, merge_rows
from dagfisher.records import Record

F64 = torch.float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def record(n: int, parents: int, units: int, seed: int, weights: Tensor | None = None) -> Record:
    rows = torch.randn(n, parents, generator=generator(seed), dtype=F64)
    q = torch.rand(n, units, generator=generator(seed + 1), dtype=F64)
    return Record(rows, (q,), torch.ones(n, dtype=F64) if weights is None else weights)


def blocks(statistics: Statistics, group: int = 0) -> Tensor:
    return torch.from_numpy(blocks_of(statistics.parents, statistics.weights[group], 0.0))


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
    merged = merge_rows(rows, weights)
    assert len(merged.parents) == len(merged.parents.unique(dim=0))
    assert {tuple(r) for r in merged.parents.tolist()} == {tuple(r) for r in rows.tolist()}
    for group, q in enumerate(weights):
        expected = torch.from_numpy(blocks_of(rows, q, 0.0))
        tolerance = 1e-13 if dtype == F64 else 1e-5
        found = blocks(merged, group)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_repeated_inputs_count_once() -> None:
    """Each of 32 inputs repeated 10 times, as in a wake phase: 32 rows, not 320."""
    for parents in (torch.rand(32, 50, generator=generator(0)), random_parents("0,1", 32, 50, generator(0)).float()):
        merged = merge_rows(parents.repeat_interleave(10, 0), [torch.full((320, 4), 1 / 320)])
        assert merged.parents.shape == (32, 50)
        torch.testing.assert_close(merged.weights[0], torch.full((32, 4), 1 / 32))


def test_distinct_rows_stay_as_they_are() -> None:
    rows, q = torch.randn(20, 6, generator=generator(1)), torch.rand(20, 2, generator=generator(2))
    merged = merge_rows(rows, [q])
    assert torch.equal(merged.parents, rows)
    assert torch.equal(merged.weights[0], q)


def test_rows_that_differ_by_little_are_not_merged() -> None:
    rows = torch.ones(2, 40, dtype=F64)
    rows[1, 7] += 1e-15
    merged = merge_rows(rows, [torch.tensor([[0.25], [0.5]], dtype=F64)])
    assert len(merged.parents) == 2


def test_a_layer_whose_only_parent_is_the_constant_has_one_row() -> None:
    merged = merge_rows(torch.ones(7, 1), [torch.full((7, 3), 0.5)])
    assert merged.parents.tolist() == [[1.0]]
    assert merged.weights[0].tolist() == [[3.5] * 3]


# Joining passes


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_several_passes_are_one_pass_over_all_their_samples(sizes: list[int], seed: int) -> None:
    """Micro-batches of any sizes count by their samples, not by their passes."""
    weights = [torch.rand(n, generator=generator(seed + i), dtype=F64) for i, n in enumerate(sizes)]
    passes = [record(n, 3, 2, seed + 10 * i, w) for i, (n, w) in enumerate(zip(sizes, weights, strict=True))]
    whole = Record(
        torch.cat([r.rows for r in passes]),
        (torch.cat([r.fisher_weights[0] for r in passes]),),
        torch.cat([r.sample_weights for r in passes]),
    )
    apart, together = (gather(r, [], weight=True, bias=True) for r in (passes, [whole]))
    torch.testing.assert_close(blocks(apart), blocks(together), rtol=1e-13, atol=1e-14)


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_only_the_ratios_of_sample_weights_matter(scale: float, seed: int) -> None:
    weights = torch.rand(8, generator=generator(seed), dtype=F64) + 0.01
    plain = gather([record(8, 3, 2, seed, weights)], [], weight=True, bias=True)
    scaled = gather([record(8, 3, 2, seed, scale * weights)], [], weight=True, bias=True)
    torch.testing.assert_close(blocks(scaled), blocks(plain), rtol=1e-12, atol=1e-14)


def test_a_sample_of_weight_zero_is_not_there() -> None:
    weights = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0], dtype=F64)
    full = record(5, 3, 2, 4, weights)
    kept = weights > 0
    reduced = Record(full.rows[kept], (full.fisher_weights[0][kept],), weights[kept])
    found, expected = (blocks(gather([r], [], weight=True, bias=True)) for r in (full, reduced))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_the_corner_of_the_constant_is_the_mean_fisher_weight() -> None:
    """F of the bias alone is E[q]: the last corner of the whole block, and all of it if the weight is frozen."""
    one = record(6, 3, 2, 5)
    both = blocks(gather([one], [], weight=True, bias=True))
    bias = blocks(gather([one], [], weight=False, bias=True))
    weight = blocks(gather([one], [], weight=True, bias=False))
    torch.testing.assert_close(both[:, 3, 3], one.fisher_weights[0].mean(0))
    torch.testing.assert_close(bias, both[:, 3:, 3:])
    torch.testing.assert_close(weight, both[:, :3, :3])


def test_a_mean_head_takes_its_weights_from_the_scale_head_pass_by_pass() -> None:
    passes = [record(n, 3, 2, n)._replace(fisher_weights=None) for n in (2, 4)]
    precisions = [torch.full((2, 2), 1.0, dtype=F64), torch.full((4, 2), 9.0, dtype=F64)]
    found = gather(passes, precisions, weight=True, bias=False)
    rows = torch.cat([r.rows for r in passes])
    expected = torch.from_numpy(blocks_of(rows, torch.cat(precisions) / 6, 0.0))
    torch.testing.assert_close(blocks(found), expected)


def test_heads_that_do_not_fit_together_are_an_error() -> None:
    passes = [record(3, 3, 2, 0)._replace(fisher_weights=None)]
    with pytest.raises(MissingStatisticsError, match="1 times and its scale head 0 times"):
        gather(passes, [], weight=True, bias=True)
    with pytest.raises(ShapeError, match="3 samples and its scale head on 5"):
        gather(passes, [torch.ones(5, 2, dtype=F64)], weight=True, bias=True)


@pytest.mark.parametrize("bad", [[0.0, 0.0], [1.0, -1.0], [1.0, torch.inf], [1.0, torch.nan]])
def test_impossible_sample_weights_are_an_error(bad: list[float]) -> None:
    with pytest.raises(SampleWeightError):
        gather([record(2, 3, 2, 0, torch.tensor(bad, dtype=F64))], [], weight=True, bias=True)


@pytest.mark.parametrize("where", ["rows", "fisher"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_statistics_that_are_not_finite_are_an_error(where: str, bad: float) -> None:
    one = record(4, 3, 2, 0)
    (one.rows if where == "rows" else one.fisher_weights[0])[1, 1] = bad
    with pytest.raises(NonFiniteError):
        gather([one], [], weight=True, bias=True)


# Choosing


SIZES = [1, 3, 30, 300, 3000]


@pytest.mark.parametrize("update_every", [1, 10, 1000])
def test_a_solver_is_chosen_for_every_shape(update_every: int) -> None:
    for n in SIZES:
        for d in SIZES:
            for units in (1, 40, 1000):
                assert choose(n, d, units, units, 0.1, update_every) in ("dense", "woodbury", "conjugate")


def test_few_parents_are_solved_densely_and_few_samples_by_woodbury() -> None:
    assert choose(500, 5, 20, 20, 0.1, 1000) == "dense"
    assert choose(3, 2000, 50, 50, 0.1, 1000) == "woodbury"


def test_the_largest_layer_of_an_mnist_machine_is_solved_iteratively() -> None:
    assert choose(320, 301, 784, 784, 0.2, 1) == "conjugate"


def test_what_does_not_fit_in_memory_is_not_chosen() -> None:
    """However long it would be kept: l·d² and l·n² numbers are too many."""
    assert MEMORY_LIMIT < 4000 * 3000**2
    assert choose(3000, 3000, 4000, 4000, 0.1, 10**6) == "conjugate"


def test_without_damping_only_the_dense_solver_is_possible() -> None:
    assert choose(300, 300, 500, 500, 0.0, 1) == "dense"


# A layer


def one_layer(solver: str, damping: float = 0.3) -> tuple[LayerFisher, Tensor, Statistics, Tensor]:
    """Two groups: three units with blocks of their own, two units that share one."""
    parents = torch.randn(9, 4, generator=generator(0), dtype=F64)
    weights = (torch.rand(9, 3, generator=generator(1), dtype=F64), torch.rand(9, 1, generator=generator(2), dtype=F64))
    gradient = torch.randn(5, 4, generator=generator(3), dtype=F64)
    statistics = Statistics(parents, weights)
    fisher, natural = LayerFisher.begin(
        statistics, (3, 2), gradient, damping=damping, solver=solver, tolerance=1e-14, update_every=5
    )
    return fisher, natural, statistics, gradient


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate", "auto"])
def test_groups_of_units_are_solved_each_with_its_own_blocks(solver: str) -> None:
    fisher, natural, statistics, gradient = one_layer(solver)
    own, shared = (torch.from_numpy(blocks_of(statistics.parents, q, 0.3)) for q in statistics.weights)
    every = torch.cat([own, shared.expand(2, -1, -1)])
    expected = 1.3 * torch.linalg.solve(every, gradient.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(natural, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fisher.natural(gradient), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fisher.blocks(), every / 1.3, rtol=1e-10, atol=1e-12)


def test_a_shared_block_is_kept_once() -> None:
    fisher, *_ = one_layer("dense")
    assert [solver.inverses.shape[0] for solver in fisher.solvers] == [3, 1]
    assert fisher.nbytes() == 8 * (3 + 1) * 4 * 4


def test_parents_that_two_groups_share_are_counted_once() -> None:
    fisher, _, statistics, _ = one_layer("woodbury")
    n, d = statistics.parents.shape
    assert fisher.nbytes() == 8 * (n * d + n * (3 + 1) + (3 + 1) * n * n)


@pytest.mark.parametrize("solver", ["woodbury", "conjugate"])
def test_solvers_that_need_damping_refuse_to_go_without(solver: str) -> None:
    with pytest.raises(SingularBlockError, match=solver):
        one_layer(solver, damping=0.0)
