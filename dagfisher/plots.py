"""Pictures as PNG files and matplotlib figures: learning curves against epochs and seconds, and squares of images.

This room knows curves and images, not where they come from. It needs matplotlib, which is imported when a picture is
drawn.
"""

from __future__ import annotations

import functools
import io
import math
import re
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
DASHES = ("-", "--", "-.", ":")
METHODS = (
    (re.compile(r"natural|\bd?n(ws|rws|bihm|reinforce|vimco)\b", re.IGNORECASE), COLOURS[0]),
    (re.compile(r"\badam\b", re.IGNORECASE), COLOURS[2]),
    (re.compile(r"\bsoap\b", re.IGNORECASE), COLOURS[3]),
    (re.compile(r"\bmuon\b", re.IGNORECASE), COLOURS[4]),
    (re.compile(r"plain|\b(sgd|ws|rws|bihm|reinforce|vimco)\b", re.IGNORECASE), COLOURS[1]),
)
"""Words of a label and the colour of the method they mean, the same in all pictures; the first that fits counts."""
NATURAL, PLAIN, ADAM = COLOURS[:3]
INK, GUIDE, FAINT = "#222222", "#666666", "#dddddd"
"""Of words and axes, of lines that curves are compared with, and of the grid."""
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


def draw_curves(
    curves: Sequence[Curve], path: Path | None, *, title: str, quantity: str, method: str | None = None
) -> Any:
    """A picture of the curves against epochs, and against seconds of training, side by side; its matplotlib figure.

    Args:
        curves: the lines, in the order of the legend.
        path: the PNG file to write, whose folder is made if need be; None: none is written.
        title: of the picture.
        quantity: what the values are, with their unit.
        method: whose curves all of them are, where the labels do not say it; they have its colour.
    """
    figure = blank(10, 4.5)
    left, right = figure.subplots(1, 2, sharey=True)
    styles = line_styles([method or curve.label for curve in curves])
    for axes, name in ((left, "epochs"), (right, "seconds of training")):
        for curve, style in zip(curves, styles, strict=True):
            along = curve.epochs if axes is left else curve.seconds
            marked = style if len(curve.values) <= 60 else {**style, "marker": None}
            axes.plot(along, curve.values, label=curve.label, **marked)
        axes.set_xlabel(name, color=INK)
        axes.set_xlim(0, 1.03 * max((x for line in axes.lines for x in line.get_xdata()), default=1))
        tidy(axes)
    left.set_ylabel(quantity, color=INK)
    low, high = _limits([curve.values for curve in curves])
    left.set_ylim(low, high)
    lowest = min((value for curve in curves for value in curve.values), default=math.inf)
    if low is not None and lowest < low:
        text = f"not shown: beginnings, from {lowest:.4g}".replace("-", "−")
        figure.text(0.995, 0.985, text, ha="right", va="top", fontsize=9, color=GUIDE)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    handles, labels = left.get_legend_handles_labels()
    columns = min(len(curves), 5 if max((len(label) for label in labels), default=0) < 16 else 3)
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, columns), frameon=False)
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
    colours = (COLOURS[0], GUIDE, COLOURS[5], COLOURS[6])
    for i, (label, values) in enumerate(lines.items()):
        style = {"color": colours[i % len(colours)], "linewidth": 2, "linestyle": ("-", "--", ":")[i % 3]}
        axes.plot(range(len(places)), values, label=label, marker=MARKERS[i % len(MARKERS)], markersize=4.5, **style)
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


def line_styles(labels: Sequence[str]) -> list[dict[str, Any]]:
    """The colour, dashes and marker of each line of a picture, as arguments of matplotlib's ``plot``.

    A method has the same colour in all pictures: the natural gradient is blue, plain descent red, Adam green. Dashes
    tell the lines of one method apart. Lines whose labels name no method have the colours that are left. If all labels
    name the same method, the lines have shades of its colour; if none names one, they have different colours.

    Args:
        labels: those of the lines, for example ``["natural, lr 1", "Adam, lr 0.3"]``.

    Returns:
        One dictionary for each label.
    """
    known = [next((colour for words, colour in METHODS if words.search(label)), None) for label in labels]
    left = [COLOURS[i] for i in (6, 4, 3, 2, 1, 5, 0) if COLOURS[i] not in known]
    if not any(known):
        left = list(COLOURS)
    plain = [colour or left[known[:i].count(None) % len(left)] for i, colour in enumerate(known)]
    alike = known[0] if len(set(known)) == 1 and len(known) > 1 else None
    styles: list[dict[str, Any]] = []
    for i, colour in enumerate(plain):
        shown = colour if alike is None else _shade(alike, 0.8 * i / (len(plain) - 1) - 0.3)
        dashes = DASHES[plain[:i].count(colour) % len(DASHES)]
        marker = MARKERS[i % len(MARKERS)]
        styles.append({"color": shown, "linewidth": 2, "linestyle": dashes, "marker": marker, "markersize": 4.5})
    return styles


def _shade(colour: str, light: float) -> str:
    """The colour, mixed with white, or with black if `light` is negative."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + abs(light) * ((255 if light > 0 else 0) - part)):02X}" for part in parts)


def depth_colours(count: int) -> list[str]:
    """Colours for things that have an order, like layers from the bottom to the top: from dark to light."""
    import matplotlib

    palette = matplotlib.colormaps["viridis"]
    return [matplotlib.colors.to_hex(palette(0.87 * i / max(count - 1, 1))) for i in range(count)]


def _limits(lines: Sequence[Sequence[float]]) -> tuple[float | None, float | None]:
    """A range that shows the curves from their first fifth on; one much steeper than most is cut, but not its end."""
    lines = [line for line in lines if line]
    top = max((value for line in lines for value in line), default=None)
    starts = sorted(min(line[len(line) // 5 :]) for line in lines)
    if top is None or starts[0] == top:
        return None, None
    near = top - 5 * (top - starts[len(starts) // 2])
    low = max(starts[0], min(near, *(line[-1] for line in lines)))
    low = low if low < top else starts[0]
    return low - 0.05 * (top - low), top + 0.05 * (top - low)


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
