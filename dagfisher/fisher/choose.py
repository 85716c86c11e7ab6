"""Which solver "auto" takes for a problem, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from .._text import table
from ..errors import SettingError
from ..solvers import SOLVERS, BlockShape, Cost, Problem, RowProblem, Solver, solver_names
from ..solvers.problems import Kind
from ..solvers.rates import rates

MEMORY_LIMIT = 2**28
"""Numbers that a solver chosen by "auto" may keep per layer (1 GiB in float32)."""


@dataclass(frozen=True)
class Choice:
    """The solver that "auto" takes, and what each of them would cost; print it for an explanation."""

    name: str
    """Of the solver."""
    reason: str
    """Why this one."""
    costs: dict[str, Cost]
    """Of every solver that was considered, in multiply-adds per step and numbers kept."""

    def __str__(self) -> str:
        if not self.costs:
            return f"{self.name}: {self.reason}"
        lines = [[name, f"{cost.step:.2e}", f"{cost.numbers:.2e}"] for name, cost in self.costs.items()]
        return f"{self.name}: {self.reason}\n{table(['solver', 'multiply-adds a step', 'numbers kept'], lines)}"


def choose_solver(
    rows: int,
    parents: int,
    units: int,
    *,
    shared: bool = False,
    masked: bool = False,
    classes: int = 1,
    damping: float = 0.1,
    update_every: int = 1,
    tolerance: float = 0.02,
    device: torch.device | str = "cpu",
) -> Choice:
    """The solver that "auto" takes for a layer of this shape: the least expected cost per step that fits in memory.

    Args:
        rows: distinct rows of parents that a refresh sees: samples, times output positions for a convolution; 0 if only
            Gram matrices are kept.
        parents: of a unit, the constant 1 included if the bias is trained.
        units: of the layer.
        shared: whether all units have the same block, as those of a Gaussian log standard deviation have.
        masked: whether each unit has parents of its own, given by a mask.
        classes: units of a variable whose logits are coupled; 1: none are.
        damping: α.
        update_every: K, for how many steps a Fisher is kept.
        tolerance: the relative residual that an iterative solver may leave.
        device: where the layer is; the constants of the cost model depend on its type.

    Returns:
        The choice, with the costs of all solvers that were considered.
    """
    kind: Kind = "masked" if masked else "coupled" if classes > 1 else "plain"
    blocks = 1 if shared and kind == "plain" else units
    shape = BlockShape(rows, parents, units, blocks, max(1, int(update_every)), kind, classes, float(tolerance))
    choice = choose(shape, damping, torch.device(device))
    return replace(choice, costs=dict(choice.costs))  # the remembered one stays as it is


def choose(shape: BlockShape, damping: float, device: torch.device) -> Choice:
    """The solver that "auto" takes for blocks of this shape.

    Args:
        shape: of the blocks.
        damping: α; with 0, only solvers that need no damping are considered.
        device: whose costs count.
    """
    return _choice(shape, damping > 0, device, tuple(solver.cost for solver in SOLVERS.values()), rates(device))


@lru_cache(maxsize=1024)
def _choice(shape: BlockShape, damped: bool, device: torch.device, *known: Any) -> Choice:
    """As `choose`; remembered as long as what is `known` of costs is the same."""
    candidates = {name: solver for name, solver in SOLVERS.items() if _can(solver, shape, damped)}
    costs = {name: cost for name, solver in candidates.items() if (cost := solver.cost(shape, device)) is not None}
    fitting = {name: cost for name, cost in costs.items() if cost.numbers <= MEMORY_LIMIT}
    if fitting:
        name = min(fitting, key=lambda each: fitting[each].step)
        reason = "the least expected cost per step"
        if len(fitting) < len(costs):
            reason += f", of those that keep at most {MEMORY_LIMIT:.1e} numbers"
        if not damped:
            reason += ", of those that need no damping"
        if not shape.rows:
            reason += ", of those that need no rows"
        return Choice(name, reason, costs)
    name = min(costs, key=lambda each: costs[each].numbers)
    return Choice(name, "the least memory; none keeps its numbers within the limit", costs)


def _can(solver: type[Solver], shape: BlockShape, damped: bool) -> bool:
    """Whether it solves blocks of this shape, and not an approximation of them."""
    rows = shape.rows > 0 or not solver.needs_rows
    return solver.exact and shape.kind in solver.kinds and rows and (damped or not solver.needs_damping)


def solver_for(problem: Problem, setting: str) -> type[Solver]:
    """The solver that a setting names, or that "auto" chooses for this problem; an error if it cannot solve it."""
    if setting == "auto":
        return SOLVERS[choose(problem.shape, problem.damping, problem.gradient.device).name]
    if setting not in solver_names():
        raise SettingError(f"there is no solver {setting!r}; choose one of auto, {', '.join(solver_names())}.")
    kind, family = problem.shape.kind, [s for s in SOLVERS.values() if setting in (s.name, s.variant_of)]
    fitting = [s for s in family if kind in s.kinds]
    if not fitting:
        can = {s.variant_of or s.name for s in SOLVERS.values() if kind in s.kinds}
        raise SettingError(
            f"the {setting} solver cannot solve {kind} blocks; choose one of auto, {', '.join(sorted(can))}."
        )
    solver = fitting[0]
    if problem.damping == 0 and solver.needs_damping:
        raise SettingError(f"the {setting} solver needs damping > 0; set damping, or use solver='dense'.")
    assert isinstance(problem, RowProblem) or not solver.needs_rows, "the step keeps rows for such a solver"
    return solver
