"""Pictures: learning curves against epochs and seconds, and images that machines remember and dream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .datasets.atomic import replacing
from .errors import MissingExtraError

if TYPE_CHECKING:
    from .helmholtz.runs import Row, Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT = "#222222", "#dddddd"
GRID_SIDE = 8
TILE_GAP = 6


class Curve(NamedTuple):
    """A line of the learning curves."""

    label: str
    epochs: Sequence[float]
    seconds: Sequence[float]
    values: Sequence[float]


class Panel(NamedTuple):
    """Images, (n, pixels) from 0 to 1, and what they are."""

    title: str
    images: Tensor


def run_curve(label: str, rows: Sequence[Row]) -> Curve:
    """The test log-likelihood of a run."""
    return _curve(label, rows, [row.test_log_likelihood for row in rows])


def draw_curves(curves: Sequence[Curve], path: Path, *, title: str, quantity: str) -> None:
    """Write a picture of the curves against epochs, and against seconds of training, side by side."""
    figure = _figure(10, 4.5)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, name in ((left, "epochs"), (right, "seconds of training")):
        for i, curve in enumerate(curves):
            along = curve.epochs if axes is left else curve.seconds
            axes.plot(along, curve.values, label=curve.label, **_style(i, len(curve.values)))
        axes.set_xlabel(name, color=INK)
        axes.set_xlim(0, 1.03 * max((x for line in axes.lines for x in line.get_xdata()), default=1))
        axes.grid(color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK)
    left.set_ylabel(quantity, color=INK)
    left.set_ylim(*_limits([curve.values for curve in curves]))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    handles, labels = left.get_legend_handles_labels()
    if len(curves) <= 4:
        right.legend(handles, labels, loc="lower right", frameon=False)
    else:
        figure.legend(handles, labels, loc="outside right center", frameon=False)
    _write(figure, path)


def draw_panels(panels: Sequence[Sequence[Panel]], shape: tuple[int, int], path: Path, *, title: str) -> None:
    """Write a picture of panels in rows and columns, each a square of images."""
    columns = max(len(row) for row in panels)
    figure = _figure(3.5 * columns + 0.2, 3.7 * len(panels) + 0.4)
    grid = figure.subplots(len(panels), columns, squeeze=False)
    for axes_row, row in zip(grid, panels, strict=True):
        for axes in axes_row:
            axes.set_axis_off()
        for axes, panel in zip(axes_row, row, strict=False):
            axes.imshow(tile(panel.images, shape), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(panel.title, fontsize=11, color=INK)
            axes.set_anchor("N")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    _write(figure, path)


def tile(images: Tensor, shape: tuple[int, int]) -> Any:
    """Images, enlarged by a whole number, as one array: a square as far as they fill it, on a faint ground."""
    count = len(images)
    columns = max(1, math.ceil(math.sqrt(count)))
    scale = max(1, -(-84 // max(shape)))
    height, width = scale * shape[0] + TILE_GAP, scale * shape[1] + TILE_GAP
    canvas = torch.full((-(-count // columns) * height + TILE_GAP, columns * width + TILE_GAP), 0.15)
    large = images.detach().float().cpu().reshape(count, *shape).repeat_interleave(scale, 1).repeat_interleave(scale, 2)
    for i, image in enumerate(large):
        top, left = i // columns * height + TILE_GAP, i % columns * width + TILE_GAP
        canvas[top : top + height - TILE_GAP, left : left + width - TILE_GAP] = image
    return canvas.numpy()


def display(algorithm: str) -> str:
    """The algorithm's name as papers write it."""
    return algorithm.upper().replace("BIHM", "BiHM")


def run_panels(run: Run) -> list[Panel]:
    """Test images, what the first hidden layer keeps of them, and dreams; the same for the same state of the run."""
    generator = run.settings.stream(f"pictures {run.steps}")
    data = run.data.evaluation("test")[: GRID_SIDE**2]
    reconstructions = run.machine.reconstruct(data, generator=generator)
    dreams = run.machine.sample(len(data), means=True, generator=generator)
    return [
        Panel(f"{run.data.label}, test images", data),
        Panel("reconstructions", reconstructions),
        Panel("dreams", dreams),
    ]


def draw_run(run: Run) -> None:
    """Write curves.png and samples.png of a run."""
    name = f"{display(run.settings.algorithm)} on {run.data.label}"
    rows = run.rows
    curves = [
        _curve("test", rows, [row.test_log_likelihood for row in rows]),
        _curve("valid", rows, [row.valid_log_likelihood for row in rows]),
        _curve("train, while learning", rows, [row.train_log_likelihood for row in rows]),
    ]
    draw_curves(curves, run.folder / "curves.png", title=name, quantity="log-likelihood (nats)")
    draw_panels([run_panels(run)], run.data.shape, run.folder / "samples.png", title=name)


def _curve(label: str, rows: Sequence[Row], values: Sequence[float]) -> Curve:
    return Curve(label, [row.epoch for row in rows], [row.seconds for row in rows], values)


def _style(index: int, points: int) -> dict[str, Any]:
    style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linewidth": 2}
    style["linestyle"] = ("-", "--", "-.")[index // len(COLOURS) % 3]
    return {**style, "marker": MARKERS[index % len(MARKERS)], "markersize": 4.5} if points <= 60 else style


def _limits(lines: Sequence[Sequence[float]]) -> tuple[float | None, float | None]:
    """A range that shows the curves from their first fifth on; what lies far below is cut."""
    top = max((value for line in lines for value in line), default=None)
    late = [value for line in lines for value in line[len(line) // 5 :]]
    if top is None or min(late) == top:
        return None, None
    return min(late) - 0.05 * (top - min(late)), top + 0.05 * (top - min(late))


def require_matplotlib() -> None:
    """Raise a sentence if pictures cannot be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed; install it with pip install 'dagfisher[examples]'."
        ) from None


def _figure(width: float, height: float) -> Any:
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _write(figure: Any, path: Path) -> None:
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=150)
