"""Processes that train together share the units: each prepares and solves some, and all get the solvers of all.

Small layers are given whole to one process or another. A layer that is too large for that, so that the others would
wait for its process, is cut into as many shares as there are processes; they tell each other what they need to choose
alike. What is prepared is then sent, so that each process has the whole inverse Fisher: it can be applied, saved and
inspected anywhere. Between two refreshes the units of a layer are shared again if solving them costs more than sending
the solution.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._processes import Processes
from .._reading import Asking, answered, joint
from ..errors import SingularBlockError
from ..fisher import LayerFisher
from ..fisher.choose import solver_for
from ..fisher.rows import joined_tensors
from ..fisher.segments import CoupledSegment, Segment
from ..solvers import SOLVERS, BlockShape, Problem, Solver
from ..solvers.rates import rates

CUT_MESSAGES = 10
"""Messages between the processes that prepare a layer which is cut, about."""


class Wanted(NamedTuple):
    """The inverse Fisher of one layer that is to be made."""

    segments: list[Segment]
    gradient: Tensor
    damping: float
    solver: str
    tolerance: float
    update_every: int


class Task(NamedTuple):
    """One run of units of one layer, and who prepares which of them."""

    layer: int
    solver: type[Solver]
    problem: Problem
    shares: list[range] | None
    """The units of each process; None: each process prepares all."""


Made = tuple[LayerFisher, Tensor] | SingularBlockError
"""An inverse Fisher and what it makes of the gradient, or why there is none."""


def prepare(wanted: Sequence[Wanted], processes: Processes) -> list[Made]:
    """The inverse Fishers of layers, and what they make of their gradients, the same in every process.

    Args:
        wanted: of each layer; the same in every process.
        processes: that share the units; all of them must call this.
    """
    tasks = _planned(wanted, processes.size)
    own = [share for task in tasks if (share := _own(task, processes)) is not None]
    own.sort(key=lambda each: len(each[1]) == len(each[0].problem.gradient))  # first what processes do together
    found = answered(joint([_attempt(task, units, processes) for task, units in own]))
    mine = {id(task): result for (task, _), result in zip(own, found, strict=True)}
    runs = _exchanged(tasks, [mine.get(id(task)) for task in tasks], processes)
    made: list[Made] = []
    for i, each in enumerate(wanted):
        parts = [run for task, run in zip(tasks, runs, strict=True) if task.layer == i]
        failures = [run for run in parts if isinstance(run, SingularBlockError)]
        if failures:
            made.append(failures[0])
            continue
        solved = [run for run in parts if not isinstance(run, SingularBlockError)]
        sizes, coupled = tuple(s.units for s in each.segments), isinstance(each.segments[0], CoupledSegment)
        fisher = LayerFisher(each.damping, sizes, [solver for solver, _ in solved], coupled)
        made.append((fisher, joined_tensors([solution for _, solution in solved])))
    return made


def applied(given: Sequence[tuple[LayerFisher, Tensor]], processes: Processes) -> list[Tensor]:
    """What inverse Fishers make of gradients, (units × d) each, the same in every process.

    Where solving costs more than sending, each process solves its share of the units, and the solutions are gathered in
    one message for each dtype. Otherwise nothing is sent.

    Args:
        given: the inverse Fisher of each layer, and its gradient.
        processes: that have the same Fishers and gradients; all of them must call this.
    """
    if processes.size == 1:
        return [fisher.solve(gradient) for fisher, gradient in given]
    runs = [(fisher, *run) for fisher, gradient in given for run in fisher.runs(gradient)]
    gains = [0.0 if fisher.coupled else _gain(solver, g, processes.size) for fisher, solver, g in runs]
    if sum(gains) <= (rates(runs[0][2].device).message if runs else 0.0):
        return [fisher.solve(gradient) for fisher, gradient in given]
    solved: list[Tensor] = []
    shared: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i, ((_, solver, g), gain) in enumerate(zip(runs, gains, strict=True)):
        if gain:
            own = processes.share(len(g))
            solver, g = solver.part(own, len(g)), g[own.start : own.stop]
            shared.setdefault((g.dtype, g.device), []).append(i)
        solved.append(solver.solve(g))
    for members in shared.values():
        widths = [runs[i][2].shape[1] for i in members]
        shares = [processes.shares(len(runs[i][2])) for i in members]
        counts = [[len(each[r]) * d for each, d in zip(shares, widths, strict=True)] for r in range(processes.size)]
        flat = torch.cat([solved[i].reshape(-1) for i in members])
        arrived = processes.gather(flat, [sum(each) for each in counts])
        parts = [torch.split(part, each) for part, each in zip(arrived, counts, strict=True)]
        for k, i in enumerate(members):
            solved[i] = torch.cat([part[k] for part in parts]).reshape(-1, widths[k])
    rest = iter(solved)
    return [joined_tensors([next(rest) for _ in fisher.solvers]) for fisher, _ in given]


def _gain(solver: Solver, gradient: Tensor, size: int) -> float:
    """Multiply-adds that processes save if each solves its share of the units and receives the others; 0: none."""
    if solver.by_unit is None or len(gradient) < size:
        return 0.0
    sending = rates(gradient.device).sent * gradient.numel() * gradient.element_size()
    return max(0.0, solver.applying(gradient) - sending) * (1 - 1 / size)


def share_of(solver: Solver, segment: Segment, processes: Processes) -> range:
    """The units of a prepared run that this process applies the solver to."""
    if processes.size == 1:
        return range(segment.units)
    if solver.by_unit is None:
        return range(segment.units if processes.first else 0)
    classes = segment.classes if isinstance(segment, CoupledSegment) else 1
    variables = processes.share(segment.units // classes)
    return range(variables.start * classes, variables.stop * classes)


def _planned(wanted: Sequence[Wanted], size: int) -> list[Task]:
    """Who prepares what, so that the last process is done as early as can be; the same plan in every process."""
    tasks: list[Task] = []
    loads: dict[int, Load] = {}
    for i, each in enumerate(wanted):
        parts = torch.split(each.gradient, [segment.units for segment in each.segments])
        for segment, gradient in zip(each.segments, parts, strict=True):
            problem = segment.problem(each.damping, gradient, each.tolerance, each.update_every)
            solver = solver_for(problem, each.solver)
            if (load := _load(solver, problem, size)) is not None:
                loads[len(tasks)] = load
            tasks.append(Task(i, solver, problem, None))
    for number, rank in balanced(loads, size).items():
        units = len(tasks[number].problem.gradient)
        shares = [range(units) if r == rank else range(0) for r in range(size)]
        if rank is None:
            shares = [range(units * r // size, units * (r + 1) // size) for r in range(size)]
        tasks[number] = tasks[number]._replace(shares=shares)
    return tasks


class Load(NamedTuple):
    """What preparing one run of units costs a process, in multiply-adds."""

    whole: float
    """All of it."""
    share: float = math.inf
    """One of as many shares as there are processes; infinite if it cannot be cut."""


def balanced(loads: Mapping[int, Load], size: int) -> dict[int, int | None]:
    """The process that gets each task, or None where all get a share; the largest tasks are cut, if any.

    Args:
        loads: of the tasks.
        size: how many processes there are.
    """
    order = sorted(loads, key=lambda number: (-loads[number].whole, number))
    cuttable = [number for number in order if loads[number].share < math.inf]
    best, least = {}, math.inf
    for count in range(len(cuttable) + 1):
        cut = cuttable[:count]
        heap = [(sum(loads[number].share for number in cut), rank) for rank in range(size)]
        found: dict[int, int | None] = dict.fromkeys(cut)
        for number in order:  # the largest first, each to the process that has least to do
            if number not in found:
                load, rank = heapq.heappop(heap)
                found[number] = rank
                heapq.heappush(heap, (load + loads[number].whole, rank))
        if max(heap)[0] < least:
            best, least = found, max(heap)[0]
    return best


def _load(solver: type[Solver], problem: Problem, size: int) -> Load | None:
    """What preparing a problem costs; None if the solver does not say."""
    units = len(problem.gradient)
    cut = solver.by_unit is not None and units >= size and problem.part(range(units), lambda own: own) is not None
    return expected(solver, problem.shape, problem.gradient.device, size if cut else 1)


def expected(solver: type[Solver], shape: BlockShape, device: torch.device, size: int) -> Load | None:
    """What preparing blocks of a shape should cost, whole or in so many shares; None if the solver does not say.

    Args:
        solver: that prepares them.
        shape: of all blocks.
        device: whose costs count.
        size: how many shares there are; 1: they cannot be cut.
    """
    whole = _work(solver, shape, device)
    if whole is None or size == 1:
        return None if whole is None else Load(whole)
    units, blocks = (-(-count // size) for count in (shape.units, shape.blocks))
    share = _work(solver, shape._replace(units=units, blocks=blocks), device)
    return Load(whole) if share is None else Load(whole, share + CUT_MESSAGES * rates(device).message)


def _work(solver: type[Solver], shape: BlockShape, device: torch.device) -> float | None:
    """What preparing and a first use cost, or a little more."""
    cost = solver.cost(shape, device)
    if cost is None or cost.begin is not None:
        return None if cost is None else cost.begin
    uses = min(shape.update_every, 2)
    cost = solver.cost(shape._replace(update_every=uses), device)
    return None if cost is None else cost.step * uses


def _own(task: Task, processes: Processes) -> tuple[Task, range] | None:
    """What this process prepares of a task, if anything."""
    units = range(len(task.problem.gradient)) if task.shares is None else task.shares[processes.rank]
    return (task, units) if len(units) else None


def _attempt(task: Task, units: range, processes: Processes) -> Asking[tuple[Solver, Tensor] | SingularBlockError]:
    problem: Problem | None = task.problem
    if len(units) < len(task.problem.gradient):
        problem = task.problem.part(units, _totals(processes))
        assert problem is not None
    try:
        return (yield from task.solver.asking(problem))
    except SingularBlockError as error:
        return error


def _totals(processes: Processes) -> Callable[[Tensor], Tensor]:
    def total(numbers: Tensor) -> Tensor:
        found = numbers.clone()
        processes.sum_([found])
        return found

    return total


def _exchanged(
    tasks: list[Task], mine: list[tuple[Solver, Tensor] | SingularBlockError | None], processes: Processes
) -> list[tuple[Solver, Tensor] | SingularBlockError]:
    """The solver of every run of units and its solution, from the process that has them, or the first failure."""
    told: list[Any] = []
    devices = list(dict.fromkeys(task.problem.gradient.device for task in tasks))
    places = [devices.index(task.problem.gradient.device) for task in tasks]
    tensors: list[list[Tensor]] = [[] for _ in devices]
    for task, place, own in zip(tasks, places, mine, strict=True):
        if isinstance(own, SingularBlockError):
            told.append(str(own))
        elif own is None or task.shares is None:
            told.append(None)
        else:
            fields, sent = _packed(*own, whole=len(task.shares[processes.rank]) == len(task.problem.gradient))
            told.append(fields)
            tensors[place] += sent
    heard = processes.gather_objects(told)
    arrived = []
    for i, device in enumerate(devices):
        here = [[each for each, place in zip(said, places, strict=True) if place == i] for said in heard]
        arrived.append(_gathered(tensors[i], device, here, processes))
    found: list[tuple[Solver, Tensor] | SingularBlockError] = []
    for number, (task, place, own) in enumerate(zip(tasks, places, mine, strict=True)):
        said = [each[number] for each in heard]
        failure = next((text for text in said if isinstance(text, str)), None)
        if failure is not None:
            found.append(SingularBlockError(failure))
        elif task.shares is None:
            assert own is not None
            found.append(own)
        else:
            shared = None if own is None or isinstance(own, SingularBlockError) else own[0]
            parts = [_unpacked(fields, arrived[place][r], shared) for r, fields in enumerate(said) if fields]
            solver = parts[0][0] if len(parts) == 1 else type(parts[0][0]).joined([part for part, _ in parts])
            found.append((solver, joined_tensors([solution for _, solution in parts])))
    return found


Field = tuple[str, Any]
"""The name of a field, and its number, or the shape and dtype of its tensor; "kind" is the name of the solver."""


def _packed(solver: Solver, solution: Tensor, *, whole: bool) -> tuple[list[Field], list[Tensor]]:
    """What others must be told of a solver, and its tensors; those that all processes have made are left out."""
    by_unit = solver.by_unit or {}
    fields: list[Field] = [("kind", solver.name)] if whole else []
    tensors = []
    for name, value in [*solver.state().items(), ("solution", solution)]:
        if isinstance(value, Tensor):
            if whole or name in by_unit or name == "solution":
                fields.append((name, (tuple(value.shape), value.dtype)))
                tensors.append(value)
        elif whole:
            fields.append((name, value))
    return fields, tensors


def _unpacked(
    fields: list[Field], arrived: dict[torch.dtype, list[Tensor]], shared: Solver | None
) -> tuple[Solver, Tensor]:
    values: dict[str, Any] = {}
    for name, value in fields:
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype):
            value = arrived[value[1]].pop(0).reshape(value[0])
        values[name] = value
    solution = values.pop("solution")
    kind = values.pop("kind", None)
    if kind is not None:
        return SOLVERS[kind](**values), solution
    assert shared is not None
    return dataclasses.replace(shared, **values), solution


def _gathered(
    tensors: list[Tensor], device: torch.device, heard: list[list[Any]], processes: Processes
) -> list[dict[torch.dtype, list[Tensor]]]:
    """The tensors of every process by dtype, in the order in which they were told; one message for each dtype.

    All of this process are on one device; it receives there, even if it sends none.
    """
    shapes: list[dict[torch.dtype, list[int]]] = []
    for said in heard:
        own: dict[torch.dtype, list[int]] = {}
        for _, value in (field for fields in said if isinstance(fields, list) for field in fields):
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype):
                own.setdefault(value[1], []).append(torch.Size(value[0]).numel())
        shapes.append(own)
    arrived: list[dict[torch.dtype, list[Tensor]]] = [{} for _ in heard]
    for dtype in sorted({dtype for own in shapes for dtype in own}, key=str):
        mine = [t.reshape(-1) for t in tensors if t.dtype == dtype]
        sizes = [sum(own.get(dtype, [])) for own in shapes]
        flat = torch.cat(mine) if mine else torch.empty(0, dtype=dtype, device=device)
        for rank, part in enumerate(processes.gather(flat, sizes)):
            arrived[rank][dtype] = list(torch.split(part, shapes[rank].get(dtype, [])))
    return arrived
