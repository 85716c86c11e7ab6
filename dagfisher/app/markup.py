"""Pieces of a page in HTML: tables, line charts that take their ink from the page, pictures inside the page."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence

from torch import Tensor

from .._text import html_table
from ..plots import line_styles, tile

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #ddd; --soft: #666 }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #16181c; --faint: #3a3d44; --soft: #9a9da4 }
  polyline, circle, .key path { filter: brightness(1.4) } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 0 1rem 3rem }
h2 { margin-top: 2.5rem; border-top: 1px solid var(--faint); padding-top: 1.5rem; overflow-wrap: anywhere }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.5rem;
  margin: 1.5rem 0; align-items: start }
figure { margin: 0 } figcaption { font-weight: 600; line-height: 1.3; margin-bottom: .4rem }
figcaption small { display: block; font-weight: 400; color: var(--soft) }
svg, img { width: 100%; height: auto; display: block } img { background: #fff; border-radius: 3px }
img.tiles { image-rendering: pixelated; max-width: 24rem } img.plot { max-width: 40rem }
.scroll { overflow-x: auto; background-repeat: no-repeat; background-attachment: local, local, scroll, scroll;
  background-image: linear-gradient(90deg, var(--paper) 40%, transparent), linear-gradient(-90deg, var(--paper) 40%,
  transparent), linear-gradient(90deg, var(--faint), transparent), linear-gradient(-90deg, var(--faint), transparent);
  background-position: left, right, left, right; background-size: 2.5rem 100%, 2.5rem 100%, .8rem 100%, .8rem 100% }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: color-mix(in srgb, var(--faint) 35%, transparent);
  padding: .7rem 1rem; border-radius: 4px; font-size: .85rem }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0 }
svg text { fill: var(--ink); font-size: 12px }
.key { display: inline-block; width: 1.8em; height: .5em; margin-right: .5em }
"""
DASHES = {"-": "", "--": "7 3", "-.": "7 3 2 3", ":": "2 3"}
"""Matplotlib's names of dashes, as SVG has them."""


def strokes(labels: Sequence[str]) -> list[str]:
    """How the line of each run is drawn, as attributes of SVG, in the colours that methods have in all pictures.

    Args:
        labels: the algorithms of the runs.
    """
    found = []
    for style in line_styles(labels):
        ink = "var(--ink)" if style["color"] == "#000000" else style["color"]
        found.append(f'stroke="{ink}" fill="none" stroke-width="2" stroke-dasharray="{DASHES[style["linestyle"]]}"')
    return found


def key(stroke: str) -> str:
    """A short piece of a line, to be put before its name."""
    return f'<svg class="key" viewBox="0 0 28 8"><path d="M0 4H28" {stroke}/></svg>'


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML, which scrolls on a narrow screen."""
    return f'<div class="scroll">{html_table(header, lines)}</div>'


def exact(value: float | None) -> str:
    """A number to six digits; a pointer that rests on it sees all of them."""
    if value is None:
        return ""
    return f'<span title="{value!r}">{value if isinstance(value, int) else format(value, ".6g")}</span>'


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers with equal distances, the first at or below `low`, the last at or above `high`."""
    if low == high:
        low, high = (low - abs(low) / 10, high + abs(high) / 10) if low else (0.0, 1.0)
    raw = (high - low) / 4
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if raw <= m * unit * (1 + 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def chart(lines: Sequence[Sequence[tuple[float, float]]], drawn: Sequence[str], label: str, along: str) -> str:
    """Lines in a frame as SVG.

    Args:
        lines: points (x, y), none of x below 0.
        drawn: the `strokes` of the lines.
        label: what is drawn, for those who cannot see it.
        along: what the horizontal axis counts.
    """
    points = [point for line in lines for point in line]
    down, across = ticks(min(y for _, y in points), max(y for _, y in points)), ticks(0, max(x for x, _ in points))
    right = max(x for x, _ in points) or 1.0

    def height(y: float) -> float:
        return 190 - 178 * (y - down[0]) / (down[-1] - down[0])

    def width(x: float) -> float:
        return 58 + 322 * x / right

    marks = []
    for y in down:
        marks.append(f'<path d="M58 {height(y):.1f}H380" stroke="var(--faint)"/>')
        marks.append(f'<text x="52" y="{height(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in across:
        if x <= right:
            marks.append(f'<text x="{width(x):.1f}" y="207" text-anchor="middle">{x:g}</text>')
    marks.append(f'<text x="380" y="224" text-anchor="end">{along}</text>')
    for line, stroke in zip(lines, drawn, strict=True):
        joined = " ".join(f"{width(x):.1f},{height(y):.1f}" for x, y in line)
        marks.append(f'<polyline points="{joined}" {stroke}/>')
        if len(line) <= 60:
            marks += [f'<circle cx="{width(x):.1f}" cy="{height(y):.1f}" r="1.5" {stroke}/>' for x, y in line]
    return f'<svg viewBox="0 0 400 228" role="img" aria-label="{label}">{"".join(marks)}</svg>'


def figure(title: str, content: str, note: str = "", kind: str = "") -> str:
    """Something to look at, under its title and a note in smaller print."""
    small = f"<small>{html.escape(note)}</small>" if note else ""
    return f'<figure class="{kind}"><figcaption>{html.escape(title)}{small}</figcaption>{content}</figure>'


def picture(title: str, png: bytes, note: str = "", kind: str = "tiles") -> str:
    """A PNG file inside the page; `kind` is "tiles" if its pixels are to stay sharp, "plot" for others."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = f'<img class="{kind}" alt="{html.escape(title)}" src="{source}">'
    return figure(title, image, note, kind)


def png_of(images: Tensor, shape: tuple[int, int]) -> bytes:
    """Images (n, pixels) from 0 to 1 as one PNG file."""
    from matplotlib import image

    file = io.BytesIO()
    image.imsave(file, tile(images, shape)[::3, ::3], cmap="Greys", vmin=0, vmax=1, format="png")
    return file.getvalue()


def animation(frames: Sequence[Tensor], shape: tuple[int, int]) -> bytes:
    """Frames of images, each (n, pixels) of grey values to 255, as a PNG that moves; the last one stays longest."""
    from PIL import Image

    first, *later = [
        Image.fromarray((255 * (1 - tile(x / 255, shape)[::3, ::3])).round().astype("uint8")) for x in frames
    ]
    file = io.BytesIO()
    length = [max(80, 6000 // len(frames))] * len(later) + [2500]
    first.save(file, format="PNG", save_all=True, append_images=later, duration=length, loop=0)
    return file.getvalue()
