"""Who prepares what."""

import itertools
import math
from types import SimpleNamespace
from typing import Any, cast

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dagfisher.optim.spread import Load, Task, _exchanged, _packed, balanced, expected
from dagfisher.solvers import SOLVERS, BlockShape

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


class TwoProcesses:
    """The first of two processes; the other one has prepared the second of two runs, on another device."""

    size, rank = 2, 0

    def __init__(self, fields: list[Any]) -> None:
        self.fields = fields

    def gather_objects(self, own: list[Any]) -> list[list[Any]]:
        return [own, [None, self.fields]]

    def gather(self, own: Tensor, sizes: list[int]) -> list[Tensor]:
        assert own.numel() == sizes[0]
        return [own, own.new_empty(sizes[1])]


def test_what_others_prepared_arrives_on_the_device_of_its_layer() -> None:
    solvers, solutions, tasks = [], [], []
    for number, device in enumerate(["cpu", "meta"]):
        gradient = torch.ones(2, 3, device=device)
        solver, problem = SOLVERS["diagonal"], SimpleNamespace(gradient=gradient)
        shares = [range(2) if rank == number else range(0) for rank in range(2)]
        tasks.append(Task(number, solver, cast("Any", problem), shares))
        solvers.append(solver(torch.ones(2, 3, device=device)))
        solutions.append(2 * gradient)
    fields, _ = _packed(solvers[1], solutions[1], whole=True)
    found = _exchanged(tasks, [(solvers[0], solutions[0]), None], cast("Any", TwoProcesses(fields)))
    for (solver, solution), own, task in zip(found, solvers, tasks, strict=True):
        assert solution.device == task.problem.gradient.device
        assert {name: v.device for name, v in solver.state().items()} == {n: v.device for n, v in own.state().items()}
    assert torch.equal(found[0][1], solutions[0])


MEASURED = {
    ("conjugate", 1000, 301, 784): 111.0,
    ("conjugate", 1000, 301, 200): 55.3,
    ("conjugate", 200, 785, 300): 45.4,
    ("conjugate", 1000, 201, 300): 20.6,
    ("conjugate", 1000, 201, 100): 16.8,
    ("conjugate", 1000, 101, 200): 3.8,
    ("conjugate", 1000, 101, 75): 3.4,
    ("conjugate", 1000, 76, 100): 2.5,
    ("conjugate", 1000, 76, 50): 2.4,
    ("dense", 1000, 51, 75): 10.8,
    ("dense", 1000, 51, 35): 7.1,
    ("dense", 1000, 36, 50): 4.5,
    ("dense", 1000, 36, 30): 3.5,
    ("dense", 1000, 31, 35): 3.2,
}
"""Milliseconds of a refresh of layers of the MNIST machine, one thread: solver, rows, parents and units."""


def test_layers_are_shared_by_what_their_refreshes_take() -> None:
    """What is expected of layers differs from what was measured by a factor that is nearly the same for all."""
    ratios = []
    for (solver, rows, parents, units), milliseconds in MEASURED.items():
        load = expected(SOLVERS[solver], BlockShape(rows, parents, units, units, 50), torch.device("cpu"), 1)
        assert load is not None
        ratios.append(milliseconds / load.whole)
    assert max(ratios) < 1.75 * min(ratios)
