"""Who prepares what."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from dagfisher.optim.spread import Load, balanced

costs = st.floats(1.0, 100.0)
loads = st.lists(st.tuples(costs, st.floats(0.3, 2.0) | st.just(math.inf)), min_size=1, max_size=5)


def busy(tasks: dict[int, Load], plan: dict[int, int | None], size: int) -> float:
    """When the last process is done."""
    each = [
        sum(tasks[i].share if rank is None else tasks[i].whole * (rank == r) for i, rank in plan.items())
        for r in range(size)
    ]
    return max(each)


@given(loads, st.integers(2, 3))
def test_a_plan_is_close_to_the_best_one(given: list[tuple[float, float]], size: int) -> None:
    tasks = {i: Load(whole, whole * part) for i, (whole, part) in enumerate(given)}
    plan = balanced(tasks, size)
    assert set(plan) == set(tasks)
    assert all(rank is not None or tasks[i].share < math.inf for i, rank in plan.items())
    whole = [dict(enumerate(ranks)) for ranks in itertools.product(range(size), repeat=len(tasks))]
    # Graham's bound of the largest first, which cutting can only improve.
    assert busy(tasks, plan, size) <= (4 / 3 - 1 / (3 * size)) * min(busy(tasks, p, size) for p in whole) + 1e-9


def test_what_is_larger_than_all_the_rest_is_cut_and_nothing_else() -> None:
    tasks = {0: Load(100.0, 51.0), 1: Load(10.0, 9.0), 2: Load(10.0, 9.0)}
    assert balanced(tasks, 2) == {0: None, 1: 0, 2: 1}


def test_equal_layers_are_not_cut() -> None:
    assert None not in balanced({i: Load(10.0, 5.1) for i in range(4)}, 2).values()
