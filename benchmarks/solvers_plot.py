"""The picture of solvers.py: one trained layer on top, growth with n, d and l below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagfisher.plots import COLOURS, FAINT, INK, MARKERS

ORDER = ("textbook", "dense", "woodbury", "conjugate, K = 1", "conjugate, K = 1000", "diagonal")
STYLE = {name: (COLOURS[i], MARKERS[i]) for name, i in zip(ORDER, (6, 2, 4, 1, 0, 3), strict=True)}
AXES = {"n": "n, samples", "d": "d, parents", "l": "l, units"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(12, 11.5), layout="constrained", facecolor="white")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 2.1), hspace=0.03)
    bars = top.subplots(1, 3, sharey=True)
    _trained(bars, result)
    shape = result["problem"]
    threads = f"{result['threads']} thread" + ("s" if result["threads"] > 1 else "")
    _heading(
        top,
        f"Natural gradients of a trained layer: l = {shape['l']} units, d = {shape['d']} parents, "
        f"n = {shape['n']} samples ({threads}, logarithmic axes)",
    )
    lines = bottom.subplots(2, 3, sharey="row", sharex="col")
    rows, centre = result["sweep"]["rows"], result["sweep"]["centre"]
    for line, (quantity, name) in zip(lines, (("fresh_ms", "fresh, ms"), ("reused_ms", "reused, ms")), strict=True):
        for axes, axis in zip(line, "ndl", strict=True):
            _growth(axes, [r for r in rows if r["place"]["axis"] == axis], quantity)
        line[0].set_ylabel(name, color=INK)
    for upper, lower, axis in zip(*lines, "ndl", strict=True):
        others = ", ".join(f"{k} = {v}" for k, v in centre.items() if k != axis)
        upper.set_title(others, fontsize=10, color=INK)
        lower.set_xlabel(AXES[axis], color=INK)
    _heading(bottom, "Growth of the cost with the sizes of a synthetic layer")
    handles, labels = lines[0, 0].get_legend_handles_labels()
    bottom.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    for axes in (*bars, *lines.flat):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, which="both")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=130)


def _heading(figure: Any, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)


def _trained(line: Any, result: dict[str, Any]) -> None:
    """Bars of the trained layer's times and bytes, one solver per line."""
    rows = [r for name in reversed(ORDER) for r in result["trained_layer"] if r["solver"] == name]
    panels = (
        ("fresh_ms", 1.0, "fresh natural gradient, ms"),
        ("reused_ms", 1.0, "reused natural gradient, ms"),
        ("kept_bytes", 1e-6, "kept, MB"),
    )
    for axes, (quantity, scale, name) in zip(line, panels, strict=True):
        values = [scale * r[quantity] for r in rows]
        colours = [STYLE[r["solver"]][0] for r in rows]
        bars = axes.barh(range(len(rows)), values, color=colours, height=0.62)
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 6)
        axes.bar_label(bars, [_short(v) for v in values], padding=4, fontsize=9, color=INK)
        axes.set_xlabel(name, color=INK)
        axes.grid(axis="x", color=FAINT, linewidth=0.8)
    errors = [max(r["error"], r["later_error"]) for r in rows]
    names = [f"{r['solver']}\nerror {_error(e)}" for r, e in zip(rows, errors, strict=True)]
    line[0].set_yticks(range(len(rows)), names)


def _growth(axes: Any, rows: list[dict[str, Any]], quantity: str) -> None:
    for solver in ORDER:
        colour, marker = STYLE[solver]
        for weights, dashes in (("concentrated", "-"), ("equal", (0, (4, 2)))):
            if weights == "equal" and "conjugate" not in solver:
                continue  # only the conjugate solver's work depends on the weights
            line = [r for r in rows if r["solver"] == solver and r["place"]["weights"] == weights]
            label = f"{solver}, {weights} weights" if "conjugate" in solver else solver
            sizes, values = [r["place"]["size"] for r in line], [r[quantity] for r in line]
            face = colour if weights == "concentrated" else "white"
            axes.plot(sizes, values, color=colour, marker=marker, linestyle=dashes, linewidth=2, label=label,
                      markersize=5.5, markerfacecolor=face)  # fmt: skip
    sizes = sorted({r["place"]["size"] for r in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(s) for s in sizes])
    axes.grid(color=FAINT, linewidth=0.8)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _error(value: float) -> str:
    if value > 0.1:
        return f"{value:.0%}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
