"""The tables and the picture of `published.py`, from its finished runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clipped import below
from published_jobs import EXPERIMENTS

from dagfisher.app import table
from dagfisher.plots import COLOURS, FAINT, INK

Records = Mapping[str, dict[str, Any]]


def by_row(records: Records, experiment: str) -> dict[str, list[dict[str, Any]]]:
    """The records of an experiment by row, and by length where a row has several, in the order of the file."""
    own = [record for record in records.values() if record["experiment"] == experiment]
    lengths: dict[str, set[int]] = {}
    for record in own:
        lengths.setdefault(record["row"], set()).add(record["epochs"])
    found: dict[str, list[dict[str, Any]]] = {}
    for record in own:
        several = len(lengths[record["row"]]) > 1
        found.setdefault(record["row"] + f", {record['epochs']} epochs" * several, []).append(record)
    return found


def overview(records: Records, hours: float = 2.0, *, rows: bool = False) -> str:
    """The experiments, those with runs first, what each asks and what is done; with the names of rows if wanted."""
    lines = []
    for experiment in EXPERIMENTS:
        jobs = experiment.jobs(hours)
        done = sum(record["experiment"] == experiment.name for record in records.values())
        names = list(dict.fromkeys(job.row for job in jobs))
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append([experiment.name, experiment.asks, f"{done} of {len(jobs)}", *([shown] if rows else [])])
    lines.sort(key=lambda line: line[2].startswith("0 "))
    return table(["experiment", "asks", "runs done", *(["rows"] if rows else [])], lines, left=4)


def spread(values: Iterable[float], digits: int = 2) -> str:
    """The mean, with the standard deviation over seeds where there are several."""
    numbers = list(values)
    more = f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.{digits}f}{more}"


def sound(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that did not diverge."""
    return [record for record in records if record.get("diverged") is None]


def _row(row: str, every: list[dict[str, Any]]) -> list[str]:
    own = sound(every)
    lost = f"{len(every) - len(own)} of {len(every)} diverged" if len(own) < len(every) else ""
    if not own:
        given = every[0]["published"]
        return [row, f"{len(every)}", f"{every[0]['epochs']}", "–", lost, "–", _published(given), "–", "–"]
    last = [record["rows"][-1] for record in own]
    finals = [record["final"] for record in own if "final" in record]
    judged = "–"
    if len(finals) == len(own):
        judged = f"{spread(each['log_p'] for each in finals)} ({finals[0]['images']:,} × {finals[0]['samples']:,})"
    return [
        row,
        f"{len(every)}",
        f"{own[0]['epochs']}",
        f"{statistics.fmean(record['seconds'] for record in own):.0f}",
        "; ".join(filter(None, [spread(each["log_p"] for each in last), lost])),
        judged,
        _published(own[0]["published"]),
        *(" → ".join(f"{own[0]['rows'][i][name]:.3g}" for i in (0, -1)) for name in ("weights", "gradients")),
    ]


def _published(given: Sequence[Any] | None) -> str:
    return "–" if given is None else f"{given[0]:.2f} ({given[1]})"


def _cells(own: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, ...], float]:
    """The last figure by rate and damping; not a number where a run diverged."""
    return {
        tuple(row.split()): records[0]["rows"][-1]["log_p"] if sound(records) else math.nan
        for row, records in own.items()
    }


def _angles(own: dict[str, list[dict[str, Any]]]) -> str:
    """Degrees by age, where they were measured."""
    rows = {row: sound(records) for row, records in own.items() if sound(records) and "angles" in sound(records)[0]}
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
    cells = _cells(own)
    rates, dampings = (sorted({pair[i] for pair in cells}, key=float) for i in (0, 1))
    shown = {pair: "diverged" if math.isnan(value) else f"{value:.2f}" for pair, value in cells.items()}
    lines = [[d, *(shown.get((r, d), "–") for r in rates)] for d in dampings]
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
        heads = ["row", "seeds", "epochs", "seconds", "last epoch", "finally", "published"]
        lines = [_row(row, each) for row, each in own.items()]
        parts[experiment.title] = table([*heads, "norm of the weights", "of the gradients"], lines)
        if angles := _angles(own):
            parts[f"{experiment.name}: degrees between natural gradients of a kept and of a fresh Fisher"] = angles
    return parts


def draw(records: Records, path: Path) -> None:
    """Three panels for each experiment with runs, against epochs: the test figure, the norms of weights and gradients.

    Of damping × rate there is one, a heat map.
    """
    from matplotlib.figure import Figure

    shown = [each for each in EXPERIMENTS if by_row(records, each.name)]
    if not shown:
        return
    figure = Figure(figsize=(13, 3.6 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), 3, squeeze=False, width_ratios=(2, 1, 1))
    for row, experiment in zip(grid, shown, strict=True):
        own = by_row(records, experiment.name)
        if experiment.name.startswith("map-"):
            _heat(figure, row[0], own)
            for axes in row[1:]:
                axes.set_axis_off()
        else:
            _curves(row[0], own)
            _norms(row[1], own, "weights")
            _norms(row[2], own, "gradients")
        row[0].set_title(experiment.name, fontsize=10, color=INK, loc="left")
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(which="both", colors=INK, labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _plot(axes: Any, own: dict[str, list[dict[str, Any]]], quantity: str) -> list[float]:
    """Draw the mean over the seeds of each row against epochs; gives the values after the first fifth."""
    late = []
    for i, (row, every) in enumerate(own.items()):
        if not (each := sound(every)):
            continue
        points = list(zip(*(record["rows"] for record in each), strict=True))
        values = [statistics.fmean(point[quantity] for point in point_of) for point_of in points]
        epochs = [point_of[0]["epoch"] for point_of in points]
        marker = "o" if len(epochs) < 4 else None
        round_of, place = divmod(i, len(COLOURS))
        style = ("-", "--", ":", "-.")[round_of % 4]
        axes.plot(epochs, values, style, label=row, linewidth=1.6, marker=marker, color=COLOURS[place])
        late += values[len(values) // 5 :]
    axes.grid(color=FAINT, linewidth=0.8)
    return late


def _norms(axes: Any, own: dict[str, list[dict[str, Any]]], quantity: str) -> None:
    _plot(axes, own, quantity)
    axes.set_yscale("log")
    axes.set_xlabel("epochs", fontsize=9, color=INK)
    axes.set_ylabel(f"norm of the {quantity}", fontsize=9, color=INK)


def _curves(axes: Any, own: dict[str, list[dict[str, Any]]]) -> None:
    levels = _plot(axes, own, "log_p")
    for i, each in enumerate(own.values()):
        if each[0]["published"] is not None:
            axes.axhline(each[0]["published"][0], color=COLOURS[i % len(COLOURS)], linewidth=0.8, linestyle=":")
    published = [each[0]["published"][0] for each in own.values() if each[0]["published"] is not None]
    if levels:
        axes.set_ylim(min(levels) - 0.3, max([*levels, *published]) + 0.3)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))  # beside the curves
    words = "epochs (dotted: published)" if published else "epochs"
    axes.set_xlabel("\n".join(filter(None, [words, below(axes)])), fontsize=9, color=INK)
    axes.set_ylabel("test log-likelihood (nats)", fontsize=9, color=INK)


def _heat(figure: Any, axes: Any, own: dict[str, list[dict[str, Any]]]) -> None:
    cells = _cells(own)
    rates, dampings = (sorted({pair[i] for pair in cells}, key=float) for i in (0, 1))
    values = [[cells.get((rate, damping), float("nan")) for rate in rates] for damping in dampings]
    best = max((value for value in cells.values() if not math.isnan(value)), default=0.0)
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis", vmin=best - 6, vmax=best)
    axes.set_xticks(range(len(rates)), rates)
    axes.set_yticks(range(len(dampings)), dampings)
    axes.set_xlabel("learning rate", fontsize=9, color=INK)
    axes.set_ylabel("damping", fontsize=9, color=INK)
    bar = figure.colorbar(image, ax=axes, extend="min")
    bar.set_label("test log-likelihood (nats)\ndarkest: 6 or more below the best", fontsize=8, color=INK)
    bar.ax.tick_params(colors=INK, labelsize=8)
