"""The tables and the picture of `published.py`, from its finished runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from published_jobs import EXPERIMENTS, Experiment

from dagfisher.app import table
from dagfisher.plots import COLOURS, FAINT, INK

Records = Mapping[str, dict[str, Any]]


def by_row(records: Records, experiment: str) -> dict[str, list[dict[str, Any]]]:
    """The records of an experiment by row, of several lengths the longest, in the order of the file."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records.values():
        if record["experiment"] == experiment:
            found.setdefault(record["row"], []).append(record)
    longest = {row: max(each["epochs"] for each in own) for row, own in found.items()}
    return {row: [each for each in own if each["epochs"] == longest[row]] for row, own in found.items()}


def overview(records: Records, hours: float = 2.0, *, rows: bool = False) -> str:
    """The experiments, what each asks, and how many of its runs are done; with the names of its rows if wanted."""
    lines = []
    for experiment in EXPERIMENTS:
        jobs = experiment.jobs(hours)
        done = sum(record["experiment"] == experiment.name for record in records.values())
        names = list(dict.fromkeys(job.row for job in jobs))
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append([experiment.name, experiment.asks, f"{done} of {len(jobs)}", *([shown] if rows else [])])
    return table(["experiment", "asks", "runs done", *(["rows"] if rows else [])], lines, left=4)


def spread(values: Iterable[float], digits: int = 2) -> str:
    """The mean, with the standard deviation over seeds where there are several."""
    numbers = list(values)
    more = f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.{digits}f}{more}"


def _row(row: str, own: list[dict[str, Any]]) -> list[str]:
    last = [record["rows"][-1] for record in own]
    finals = [record["final"] for record in own if "final" in record]
    judged = "–"
    if len(finals) == len(own):
        judged = f"{spread(each['log_p'] for each in finals)} ({finals[0]['images']:,} × {finals[0]['samples']:,})"
    given = own[0]["published"]
    return [
        row,
        f"{len(own)}",
        f"{own[0]['epochs']}",
        f"{statistics.fmean(record['seconds'] for record in own):.0f}",
        spread(each["log_p"] for each in last),
        judged,
        "–" if given is None else f"{given[0]:.2f} ({given[1]})",
        " → ".join(f"{own[0]['rows'][i]['weights']:.1f}" for i in (0, -1)),
    ]


def _angles(own: dict[str, list[dict[str, Any]]]) -> str:
    """Degrees by age, where they were measured."""
    rows = {row: records for row, records in own.items() if "angles" in records[0]}
    if not rows:
        return ""
    ages = list(next(iter(rows.values()))[0]["angles"])
    lines = [
        [row, *(f"{statistics.fmean(record['angles'][age] for record in records):.0f}" for age in ages)]
        for row, records in rows.items()
    ]
    return table(["trained with", *(f"after {age} steps, °" for age in ages)], lines)


def _map(own: dict[str, list[dict[str, Any]]]) -> str:
    """Dampings down, rates across."""
    cells = {tuple(row.split()): records[0]["rows"][-1]["log_p"] for row, records in own.items()}
    rates, dampings = (sorted({pair[i] for pair in cells}, key=float) for i in (0, 1))
    lines = [[d, *(f"{cells[r, d]:.2f}" if (r, d) in cells else "–" for r in rates)] for d in dampings]
    return table(["damping", *(f"rate {rate}" for rate in rates)], lines)


def tables(records: Records) -> dict[str, str]:
    """The overview, which has no title, and a table for each experiment that has runs, by its title."""
    parts = {"": overview(records)}
    for experiment in EXPERIMENTS:
        own = by_row(records, experiment.name)
        if not own:
            continue
        if experiment.name.startswith("map-"):
            parts[experiment.title] = _map(own)
            continue
        heads = ["row", "seeds", "epochs", "seconds", "last epoch, 1,000 × 100", "finally", "published"]
        lines = [_row(row, each) for row, each in own.items()]
        parts[experiment.title] = table([*heads, "norm of the weights"], lines)
        if angles := _angles(own):
            parts[f"{experiment.name}: degrees between natural gradients of a kept and of a fresh Fisher"] = angles
    return parts


def draw(records: Records, path: Path) -> None:
    """A panel for each experiment with runs: the test figure against epochs; damping × rate as a heat map."""
    from matplotlib.figure import Figure

    shown = [each for each in EXPERIMENTS if by_row(records, each.name)]
    if not shown:
        return
    columns = min(2, len(shown))
    figure = Figure(figsize=(6 * columns, 4 * -(-len(shown) // columns)), layout="constrained")
    grid = figure.subplots(-(-len(shown) // columns), columns, squeeze=False).flatten()
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    for axes, experiment in zip(grid, shown, strict=False):
        own = by_row(records, experiment.name)
        if experiment.name.startswith("map-"):
            _heat(figure, axes, own)
        else:
            _curves(axes, experiment, own)
        axes.set_title(experiment.name, fontsize=10, color=INK, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _curves(axes: Any, experiment: Experiment, own: dict[str, list[dict[str, Any]]]) -> None:
    levels = []
    for i, (row, each) in enumerate(own.items()):
        points = list(zip(*(record["rows"] for record in each), strict=True))
        values = [statistics.fmean(point["log_p"] for point in point_of) for point_of in points]
        epochs = [point_of[0]["epoch"] for point_of in points]
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(epochs, values, label=row, color=colour, linewidth=1.6, marker="o" if len(epochs) < 4 else None)
        levels += values[len(values) // 5 :]
        if each[0]["published"] is not None:
            axes.axhline(each[0]["published"][0], color=colour, linewidth=0.8, linestyle=":")
    published = [each[0]["published"][0] for each in own.values() if each[0]["published"] is not None]
    axes.set_ylim(min(levels) - 0.3, max([*levels, *published]) + 0.3)
    axes.set_xlabel("epochs (dotted: published)" if published else "epochs", fontsize=9, color=INK)
    axes.set_ylabel("test log-likelihood (nats)", fontsize=9, color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _heat(figure: Any, axes: Any, own: dict[str, list[dict[str, Any]]]) -> None:
    cells = {tuple(row.split()): records[0]["rows"][-1]["log_p"] for row, records in own.items()}
    rates, dampings = (sorted({pair[i] for pair in cells}, key=float) for i in (0, 1))
    values = [[cells.get((rate, damping), float("nan")) for rate in rates] for damping in dampings]
    best = max(cells.values())
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis", vmin=best - 6, vmax=best)
    axes.set_xticks(range(len(rates)), rates)
    axes.set_yticks(range(len(dampings)), dampings)
    axes.set_xlabel("learning rate", fontsize=9, color=INK)
    axes.set_ylabel("damping", fontsize=9, color=INK)
    figure.colorbar(image, ax=axes, label="test log-likelihood (nats); darkest: 6 or more below the best", extend="min")
