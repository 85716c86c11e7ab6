"""The tables and the picture of `equal_seconds.py`, from its finished runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipped import below
from models import Model
from rivals import LABELS, METHODS, rates
from timed_run import Spec, final_value

from dagfisher.app import table
from dagfisher.plots import FAINT, GUIDE, INK, line_styles

Runs = Mapping[Spec, dict[str, Any]]
Seconds = Callable[[Model], float]


@dataclass(frozen=True)
class Outcome:
    """The final runs of one method on one model, one for each seed."""

    method: str
    specs: list[Spec]
    records: list[dict[str, Any]]

    @property
    def values(self) -> list[float]:
        """The figures on test at the end, −∞ where a run diverged."""
        return [final_value(record) for record in self.records]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    def shown(self, digits: int) -> str:
        """The mean and the standard deviation over the seeds, or how many diverged."""
        lost = sum(value == -math.inf for value in self.values)
        if lost:
            return f"{lost} of {len(self.values)} diverged"
        spread = f" ± {statistics.stdev(self.values):.{digits}f}" if len(self.values) > 1 else ""
        return f"{self.mean:.{digits}f}{spread}"

    def seconds_to(self, target: float) -> float | None:
        """Processor seconds until the figure on test, the mean over the seeds, is as high as that; None: never."""
        points = list(zip(*(record["curve"] for record in self.records), strict=False))
        lost = any(record["diverged"] is not None for record in self.records)
        return None if lost else crossing([_mean(each) for each in points], target)


def _mean(points: Sequence[Sequence[Any]]) -> tuple[float, float, None, float | None]:
    """The mean of points of several curves; valid is left out."""
    values = [point[3] for point in points]
    seconds, epochs = (statistics.fmean(point[i] for point in points) for i in (0, 1))
    return seconds, epochs, None, None if None in values else statistics.fmean(values)


def crossing(curve: Sequence[Sequence[Any]], target: float) -> float | None:
    """When the figure on test first reaches the target, on straight lines between the points."""
    before: tuple[float, float] | None = None
    for seconds, _, _, value in curve:
        if value is None:
            continue
        if value >= target:
            if before is None:
                return float(seconds)
            share = (target - before[1]) / (value - before[1])
            return float(before[0] + share * (seconds - before[0]))
        before = (seconds, value)
    return None


def outcomes(runs: Runs, model: Model, seconds: float) -> dict[str, Outcome]:
    """The outcome of every method that has final runs with that budget; of several settings the last in the file."""
    found = {}
    for method in METHODS:
        final = [s for s in runs if (s.model, s.method, s.stage, s.budget) == (model.name, method, "final", seconds)]
        if final:
            last = final[-1]
            alike = [s for s in final if (s.rate, s.batch_setting, s.settings) == _setting(last)]
            alike.sort(key=lambda spec: spec.seed)
            found[method] = Outcome(method, alike, [runs[spec] for spec in alike])
    return found


def _setting(spec: Spec) -> tuple[Any, ...]:
    return spec.rate, spec.batch_setting, spec.settings


def tables(runs: Runs, models: Sequence[Model], seconds: Seconds) -> str:
    """Natural against the best rival for every model, and against each rival."""
    short, long = [], []
    for model in models:
        budget, digits = seconds(model), 5 if model.kind == "regression" else 2
        found = outcomes(runs, model, budget)
        natural = found.get("natural")
        naturals = shorter(runs, natural)
        rivals = [outcome for method, outcome in found.items() if method != "natural"]
        for rival in sorted(rivals, key=lambda outcome: -outcome.mean):
            row = [rival_setting(model, rival), rival.shown(digits), *needed(naturals, rival, budget)]
            long.append([model.label, *row])
        best = max(rivals, key=lambda outcome: outcome.mean, default=None)
        own = "–" if natural is None else natural.shown(digits)
        theirs = ["–"] * 4 if best is None else [rival_setting(model, best), best.shown(digits)]
        if best is not None:
            theirs += needed(naturals, best, budget)
        short.append([model.label, f"{budget:g}", own, *theirs])
    head = ["model", "T, s", "natural after T", "best rival", "its value after T", "natural is there after, s", "/ T"]
    each = ["model", "rival (* rate at an end of its four)", "value after T", "natural is there after, s", "/ T"]
    return "\n\n".join([table(head, short), table(each, long)])


def rival_setting(model: Model, rival: Outcome) -> str:
    """The rival with its setting, marked if its learning rate is the first or the last of the four."""
    spec, four = rival.specs[0], rates(model, rival.method)
    return f"{LABELS[rival.method]}, {spec.setting}" + ("*" if spec.rate in (four[0], four[-1]) else "")


def shorter(runs: Runs, natural: Outcome | None) -> list[Outcome]:
    """The outcome, and those of the same settings with smaller budgets, whose learning rates fall sooner."""
    if natural is None:
        return []
    first = natural.specs[0]
    budgets: dict[float, list[Spec]] = {}
    for spec in runs:
        if (spec.model, spec.method, spec.stage, *_setting(spec)) == (
            first.model,
            "natural",
            "final",
            *_setting(first),
        ):
            budgets.setdefault(spec.budget, []).append(spec)
    return [Outcome("natural", specs, [runs[spec] for spec in specs]) for specs in budgets.values()]


def needed(naturals: list[Outcome], rival: Outcome, budget: float) -> list[str]:
    """The seconds that natural needs for the final value of the rival at the soonest, and their share of the budget."""
    if not naturals or rival.mean == -math.inf:
        return ["–", "–"]
    first = soonest(naturals, rival)
    found = None if first is None else first.seconds_to(rival.mean)
    return ["not reached", "> 1"] if found is None else [f"{found:.2f}", f"{found / budget:.2f}"]


def soonest(naturals: list[Outcome], rival: Outcome) -> Outcome | None:
    """Which of them has the final value of the rival first, of those with all seeds; None: none has it."""
    times = [
        (seconds, outcome)
        for outcome in naturals
        if len(outcome.specs) == len(naturals[0].specs) and (seconds := outcome.seconds_to(rival.mean)) is not None
    ]
    return min(times, key=lambda each: each[0])[1] if times else None


def draw(runs: Runs, models: Sequence[Model], seconds: Seconds, path: Path) -> None:
    """One panel for every model: the figure on test against processor seconds, mean and range over the seeds.

    A panel has the range of the best two methods from a fifth of the seconds on. The words under it say what is cut.
    """
    from matplotlib.figure import Figure

    found = {model.name: outcomes(runs, model, seconds(model)) for model in models}
    shown = [model for model in models if found[model.name]]
    if not shown:
        return
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    for axes, model in zip(grid, shown, strict=False):
        levels, diverged = [], []
        for outcome in found[model.name].values():
            levels += plot(axes, outcome)
            if -math.inf in outcome.values:
                diverged.append(f"{LABELS[outcome.method]}: {outcome.shown(0)} (not shown)")
        axes.set_title(model.label, fontsize=10, color=INK, loc="left")
        axes.set_xlim(0, seconds(model))
        if levels:
            top, low = max(level[1] for level in levels), sorted(level[0] for level in levels)[-min(2, len(levels))]
            axes.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low) or None)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        axes.set_ylabel(model.quantity.partition(" above")[0], fontsize=8, color=INK)
        axes.set_xlabel(below(axes, diverged), fontsize=7.5, color=GUIDE)
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.supxlabel("processor seconds of training, one thread", fontsize=10, color=INK)
    ordered = [LABELS[method] for method in METHODS if LABELS[method] in handles]
    figure.legend([handles[label] for label in ordered], ordered, loc="outside upper center", ncols=5, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def plot(axes: Any, outcome: Outcome, label: str | None = None, dashes: str = "-") -> list[tuple[float, float]]:
    """Draw one method; gives its figure after a fifth of the budget and at the end, to find the panel's range."""
    kept = [record["curve"] for record in outcome.records if record["diverged"] is None]
    if not kept:
        return []
    points = list(zip(*kept, strict=True))
    seconds = [statistics.fmean(point[0] for point in each) for each in points]
    values = [[point[3] for point in each] for each in points]
    means = [statistics.fmean(each) for each in values]
    colour = line_styles([LABELS[method] for method in METHODS])[METHODS.index(outcome.method)]["color"]
    width = 2.2 if outcome.method == "natural" else 1.5
    axes.plot(seconds, means, dashes, color=colour, linewidth=width, label=label or LABELS[outcome.method])
    area = axes.fill_between(
        seconds, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15, linewidth=0
    )
    area.set_gid(label or LABELS[outcome.method])
    return [(means[-(-len(means) // 5)], means[-1])]
