"""The tables and the picture of `peers.py`, from its finished runs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clipped import below
from models import Model
from peers import BY_NAME, NATURAL, PEERS
from timed_run import Spec, final_value

from dagfisher.app import table
from dagfisher.plots import FAINT, INK, line_styles

Runs = Mapping[Spec, dict[str, Any]]
Finals = dict[str, tuple[Spec, list[dict[str, Any]]]]


def finals(runs: Runs, model: Model) -> Finals:
    """The setting and the final runs of each peer on a model; of several settings or budgets the last in the file."""
    found: Finals = {}
    for peer in PEERS:
        own = [s for s in runs if (s.model, s.method, s.stage) == (model.name, peer.name, "final")]
        if own:
            last = own[-1]
            alike = [s for s in own if _setting(s) == _setting(last)]
            found[peer.name] = last, [runs[s] for s in sorted(alike, key=lambda s: s.seed)]
    return found


def _setting(spec: Spec) -> tuple[Any, ...]:
    return spec.rate, spec.other, spec.batch_setting, spec.settings, spec.budget


def at_epoch(curve: Sequence[Sequence[Any]], epoch: float) -> float:
    """The figure on test at an epoch, on straight lines between the points; that of the end after the last."""
    for before, after in itertools.pairwise(curve):
        if after[1] >= epoch:
            share = (epoch - before[1]) / (after[1] - before[1])
            return float(before[3] + share * (after[3] - before[3]))
    return float(curve[-1][3])


def mean(values: Sequence[float], digits: int) -> str:
    """The mean, with the standard deviation where there are several."""
    if -math.inf in values:
        return f"{sum(value == -math.inf for value in values)} of {len(values)} diverged"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def chosen_setting(model: Model, spec: Spec) -> str:
    """The setting in words, with a star if the learning rate is the first or the last of the grid."""
    edge = BY_NAME[spec.method].rates.get(model.kind, ())
    return spec.setting + ("*" if edge and spec.rate in (edge[0], edge[-1]) else "")


def overview(runs: Runs, models: Sequence[Model]) -> str:
    """The models, and how many of the peers that are tried on each have final runs."""
    lines = []
    for model in models:
        peers = [peer.name for peer in PEERS if peer.name in NATURAL or model.kind in peer.rates]
        lines.append([model.name, model.label, f"{len(finals(runs, model))} of {len(peers)}"])
    return table(["--models", "what it is", "peers done"], lines, left=2)


def tables(runs: Runs, models: Sequence[Model]) -> dict[str, str]:
    """What has been run, which has no title; for each model with runs a table, the best peer first; and all peers."""
    parts = {"": overview(runs, models)}
    for model in models:
        found = finals(runs, model)
        if not found:
            continue
        digits = 5 if model.kind == "regression" else 2
        whole = {name: records for name, (_, records) in found.items() if all(r["diverged"] is None for r in records)}
        epochs = min((r["curve"][-1][1] for records in whole.values() for r in records), default=0.0)
        lines = []
        for name, (spec, records) in found.items():
            values = [final_value(record) for record in records]
            early = [at_epoch(r["curve"], epochs) for r in records] if name in whole else []
            lines.append(
                [
                    BY_NAME[name].label,
                    chosen_setting(model, spec),
                    f"{len(records)}",
                    mean(values, digits),
                    f"{statistics.fmean(early):.{digits}f}" if early else "–",
                    f"{statistics.fmean(r['curve'][-1][1] for r in records):.1f}",
                    f"{statistics.fmean(r.get('ms_per_step', math.nan) for r in records):.1f}",
                    f"{records[0].get('kept_bytes', 0) / 1e6:.1f}",
                ]
            )
        ends = {BY_NAME[name].label: statistics.fmean(map(final_value, own)) for name, (_, own) in found.items()}
        lines.sort(key=lambda line: -ends[line[0]])
        budget = next(iter(found.values()))[0].budget
        head = ["optimizer", "setting", "seeds", f"after {budget:g} s", f"after {epochs:.1f} epochs"]
        parts[model.label] = table([*head, "epochs", "ms a step", "kept, MB"], lines, left=2)
    notes = [[peer.label, peer.note] for peer in PEERS]
    parts["How each is set up"] = table(["peer", "its second setting, and what to keep in mind"], notes, left=2)
    return parts


def draw(runs: Runs, models: Sequence[Model], path: Path) -> None:
    """For each model the figure on test against seconds and against epochs, the mean over the seeds."""
    from matplotlib.figure import Figure

    shown = [model for model in models if finals(runs, model)]
    if not shown:
        return
    figure = Figure(figsize=(11, 3.9 * len(shown) + 0.7), layout="constrained")
    grid = figure.subplots(len(shown), 2, squeeze=False)
    for row, model in zip(grid, shown, strict=True):
        ends = []
        for name, (_, records) in finals(runs, model).items():
            curves = [record["curve"] for record in records if record["diverged"] is None]
            if not curves:
                continue
            points = list(zip(*curves, strict=True))
            values = [statistics.fmean(point[3] for point in each) for each in points]
            ends.append(values[-1])
            for axes, column in zip(row, (0, 1), strict=True):
                across = [statistics.fmean(point[column] for point in each) for each in points]
                axes.plot(across, values, label=BY_NAME[name].label, **style(name))
        top, low = max(ends), statistics.median(ends)
        far = sorted(line.get_xdata()[-1] for line in row[1].lines)
        row[1].set_xlim(0, 1.05 * far[-2 if len(far) > 2 else -1])  # L-BFGS has far more epochs than the others
        for axes in row:
            axes.set_ylim(low - 2.5 * (top - low + 0.01), top + 0.3 * (top - low + 0.01))
            axes.grid(color=FAINT, linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(colors=INK, labelsize=8)
        row[0].set_title(model.label, fontsize=10, color=INK, loc="left")
        row[0].set_ylabel(model.quantity, fontsize=8, color=INK)
        for axes, words in zip(row, ("processor seconds of training, one thread", "epochs"), strict=True):
            axes.set_xlabel("\n".join(filter(None, [words, below(axes)])), fontsize=8, color=INK)
    handles = {
        label: handle for axes in grid[:, 0] for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=7, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def style(name: str) -> dict[str, Any]:
    """The colours of all pictures, natural ones thick; dashes tell those of one colour apart."""
    styles = line_styles([peer.label for peer in PEERS])
    found = styles[[peer.name for peer in PEERS].index(name)]
    return {**found, "linewidth": 2.2 if name in NATURAL else 1.3, "marker": None}
