"""Pictures as PNG files and matplotlib figures: learning curves against epochs and seconds, and squares of images.

This room knows curves and images, not where they come from. It needs matplotlib, which is imported when a picture is
drawn.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._files import replacing
from .errors import MissingExtraError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT = "#222222", "#dddddd"
TILE_GAP = 6


class Curve(NamedTuple):
    """One line of the learning curves; its points have epochs, seconds and values, as many of each."""

    label: str
    epochs: Sequence[float]
    seconds: Sequence[float]
    """Of training."""
    values: Sequence[float]


class Panel(NamedTuple):
    """A square of images and its title."""

    title: str
    images: Tensor
    """(n, pixels), from 0 (white) to 1 (black)."""


def draw_curves(curves: Sequence[Curve], path: Path | None, *, title: str, quantity: str) -> Any:
    """A picture of the curves against epochs, and against seconds of training, side by side; its matplotlib figure.

    Args:
        curves: the lines, in the order of the legend.
        path: the PNG file to write, whose folder is made if need be; None: none is written.
        title: of the picture.
        quantity: what the values are, with their unit.
    """
    figure = blank(10, 4.5)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, name in ((left, "epochs"), (right, "seconds of training")):
        for i, curve in enumerate(curves):
            along = curve.epochs if axes is left else curve.seconds
            axes.plot(along, curve.values, label=curve.label, **_style(i, len(curve.values)))
        axes.set_xlabel(name, color=INK)
        axes.set_xlim(0, 1.03 * max((x for line in axes.lines for x in line.get_xdata()), default=1))
        tidy(axes)
    left.set_ylabel(quantity, color=INK)
    left.set_ylim(*_limits([curve.values for curve in curves]))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    handles, labels = left.get_legend_handles_labels()
    if len(curves) <= 4:
        right.legend(handles, labels, loc="lower right", frameon=False)
    else:
        figure.legend(handles, labels, loc="outside right center", frameon=False)
    return _written(figure, path)


def draw_places(
    lines: Mapping[str, Sequence[float]], places: Sequence[str], path: Path | None, *, title: str, quantity: str
) -> Any:
    """A picture of lines that have a value at each of some named places, like layers; its matplotlib figure.

    Args:
        lines: the values by the label of their line, as many as there are places; solid, then dashed and dotted.
        places: their names, from left to right.
        path: the PNG file to write, whose folder is made if need be; None: none is written.
        title: of the picture.
        quantity: what the values are, with their unit.
    """
    figure = blank(max(5.5, 1.1 * len(places)), 4.2)
    axes = figure.subplots()
    for i, (label, values) in enumerate(lines.items()):
        style = {**_style(i, len(places)), "linestyle": ("-", "--", ":")[i % 3]}
        axes.plot(range(len(places)), values, label=label, **style)
    axes.set_xticks(range(len(places)), places)
    axes.set_ylabel(quantity, color=INK)
    axes.set_ylim(bottom=0)
    tidy(axes)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return _written(figure, path)


def draw_panels(panels: Sequence[Sequence[Panel]], shape: tuple[int, int], path: Path | None, *, title: str) -> Any:
    """A picture of panels in rows and columns, each a square of images; its matplotlib figure.

    Args:
        panels: rows of panels; they may differ in length.
        shape: (rows, columns) of every image.
        path: the PNG file to write, whose folder is made if need be; None: none is written.
        title: of the picture.
    """
    columns = max(len(row) for row in panels)
    figure = blank(3.5 * columns + 0.2, 3.7 * len(panels) + 0.4)
    grid = figure.subplots(len(panels), columns, squeeze=False)
    for axes_row, row in zip(grid, panels, strict=True):
        for axes in axes_row:
            axes.set_axis_off()
        for axes, panel in zip(axes_row, row, strict=False):
            axes.imshow(tile(panel.images, shape), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(panel.title, fontsize=11, color=INK)
            axes.set_anchor("N")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    return _written(figure, path)


def tile(images: Tensor, shape: tuple[int, int]) -> Any:
    """Images, enlarged by a whole number, as one array: a square as far as they fill it, on a faint ground.

    Args:
        images: (n, pixels), from 0 to 1.
        shape: (rows, columns) of every image.

    Returns:
        A float32 NumPy array (height, width).
    """
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
    """Raise a `MissingExtraError` if pictures cannot be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed; install it with pip install 'dagfisher[examples]'."
        ) from None


def blank(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches, which belongs to no window; a notebook shows it."""
    require_matplotlib()
    return _figure_class()(figsize=(width, height), layout="constrained", facecolor="white")


@functools.cache
def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure that notebooks show, also where pyplot was never imported."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=90)
            return file.getvalue()

    return ShownFigure


def tidy(axes: Any) -> None:
    """Give axes the grid, the colours and the frame that all pictures have."""
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)


def _written(figure: Any, path: Path | None) -> Any:
    if path is not None:
        with replacing(path) as file:
            figure.savefig(file, format="png", dpi=150)
    return figure
