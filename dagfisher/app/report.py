"""The command `report`: one HTML file about some runs that needs no network, or the same page while they train."""

from __future__ import annotations

import argparse
import base64
import csv
import html
import io
import itertools
import math
import shlex
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from .._files import replacing
from .._text import with_error
from ..datasets import DataError
from ..errors import DagFisherError, SettingError
from ..families import Bernoulli
from ..helmholtz.machine import HelmholtzMachine
from ..helmholtz.metrics import Row, read_rows
from ..helmholtz.pictures import display
from ..helmholtz.runs import CHECKPOINT, Run, holds_run, read_settings
from ..helmholtz.settings import Settings
from ..inspect import spectrum
from ..optim import DAGNaturalGradient
from ..plots import COLOURS, require_matplotlib, tile
from .console import program
from .progress import show
from .sweep import grid_of, place, runs_of

CHAPTERS = 8
"""At most so many runs have pictures and tables of their own."""
IMAGES = 16
"""In each picture of reconstructions."""
CURVES: dict[str, Callable[[Row], float | None]] = {
    "test log-likelihood (nats)": lambda row: row.test_log_likelihood,
    "exact KL from the data (nats)": lambda row: row.kl,
    "learning rate": lambda row: row.lr,
    "damping α": lambda row: row.damping,
    "effective samples": lambda row: row.effective_samples,
    "KL of a step (nats)": lambda row: row.divergence,
    "steps shortened to": lambda row: row.factor,
}
STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #ddd }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #16181c; --faint: #3a3d44 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 70rem; padding: 0 1rem 3rem }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1rem }
figure { margin: 0 } figcaption { font-weight: 600 } svg, img { width: 100%; height: auto }
img { background: #fff } img.tiles { image-rendering: pixelated; max-width: 24rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap }
th:first-child, td:first-child { text-align: left } code, pre { white-space: pre-wrap; overflow-wrap: anywhere }
svg text { fill: var(--ink); font-size: 11px }
.key { display: inline-block; width: 1em; height: .6em; margin-right: .4em }
"""


def report(options: argparse.Namespace) -> int:
    """Write the page, or serve it until Ctrl-C; the exit code."""
    require_matplotlib()
    folders = options.runs
    if not expanded(folders):
        raise SettingError(f"none of {', '.join(map(str, folders))} is a run folder or holds a sweep.")
    if options.live:
        with server(folders, options.port) as serving:
            show(f"http://127.0.0.1:{serving.server_port}/ follows {', '.join(map(str, folders))}; Ctrl-C ends it.")
            serving.serve_forever()
    with replacing(options.out) as file:
        file.write(page(folders).encode())
    show(f"{options.out}")
    return 0


def server(folders: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server on this computer alone that makes the page anew for each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/"
            body = page(folders, refresh=10).encode() if found else b"not found"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing about requests."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def page(folders: Sequence[Path], *, refresh: int | None = None) -> str:
    """The page as HTML.

    Args:
        folders: of runs or sweeps; others are passed over.
        refresh: seconds after which a browser asks for the page again; None: never.
    """
    runs = [(folder, read_settings(folder), read_rows(folder)) for folder in expanded(folders)]
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">'
    parts = [_overview(runs), *(_heat_map(folder, grid) for folder in folders if (grid := grid_of(folder)))]
    parts.append(f'<div class="grid">{"".join(_curves(runs))}</div>')
    shown = _best(runs)
    parts += [_of_run(folder, settings, rows) for folder, settings, rows in shown]
    if len(shown) < len(runs):
        parts.append(
            f"<p>Of {len(runs)} runs, the {len(shown)} that are best on the validation images have a chapter.</p>"
        )
    title = html.escape(", ".join(folder.name for folder in folders))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{again}'
    icon = '<link rel="icon" href="data:,">'
    head += f"{icon}<title>dagfisher: {title}</title><style>{STYLE}</style>"
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body><h1>{title}</h1>{"".join(parts)}</body></html>\n'


def expanded(folders: Sequence[Path]) -> list[Path]:
    """The run folders among these, and those of the sweeps among them, each once."""
    found = [run for folder in folders for run in ([folder] if holds_run(folder) else runs_of(folder))]
    return list(dict.fromkeys(found))


def _best(runs: Sequence[tuple[Path, Settings, list[Row]]]) -> list[tuple[Path, Settings, list[Row]]]:
    """The runs that are shown in full, in their order: the best of them, so that the page stays small."""
    order = sorted(runs, key=lambda run: -run[2][-1].valid_log_likelihood if run[2] else math.inf)
    return [run for run in runs if run in order[:CHAPTERS]]


def _heat_map(folder: Path, grid: dict[str, list[str]]) -> str:
    """The validation log-likelihoods of a sweep: the first setting down, the second across, the best of the others."""
    down, *others = grid
    across = others[0] if others else None
    best: dict[tuple[str, str], float] = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        if rows := read_rows(place(folder, chosen)):
            key = chosen[down], chosen[across] if across else ""
            best[key] = max(best.get(key, -math.inf), rows[-1].valid_log_likelihood)
    if not best:
        return ""
    top, span = max(best.values()), (max(best.values()) - min(best.values())) or 1.0

    def cell(a: str, b: str) -> str:
        if (a, b) not in best:
            return "<td>–</td>"
        value = best[a, b]
        shade = f"background: rgba(0, 158, 115, {0.65 * (1 - (top - value) / span):.2f})"
        shown = f"{value:.2f}"
        return f'<td style="{shade}">{f"<b>{shown}</b>" if value == top else shown}</td>'

    columns = grid[across] if across else [""]
    corner = f"{down} ↓, {across} →" if across else down
    head = "".join(f"<th>{html.escape(text)}</th>" for text in [corner, *columns])
    lines = "".join(f"<tr><td>{html.escape(a)}</td>{''.join(cell(a, b) for b in columns)}</tr>" for a in grid[down])
    rest = f", the best over {', '.join(others[1:])}" if others[1:] else ""
    return (
        f"<h2>{html.escape(str(folder))}: a sweep</h2><p>Log-likelihood of the validation images in nats{rest}.</p>"
        f'<div class="scroll"><table class="heat"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _overview(runs: Sequence[tuple[Path, Settings, list[Row]]]) -> str:
    header = ["run", "algorithm", "data", "epochs", "steps", "seconds", "test log-likelihood", "valid"]
    lines = []
    for i, (folder, settings, rows) in enumerate(runs):
        key = f'<span class="key" style="background:{COLOURS[i % len(COLOURS)]}"></span>'
        cells = [f"{key}{html.escape(str(folder))}", display(settings.algorithm)]
        if rows:
            last = rows[-1]
            cells += [last.data, f"{last.epoch:.4g}", f"{last.steps}", f"{last.seconds:.1f}"]
            cells += [with_error(last.test_log_likelihood, last.test_standard_error)]
            cells += [with_error(last.valid_log_likelihood, last.valid_standard_error)]
        lines.append(cells + [""] * (len(header) - len(cells)))
    return _table(header, lines)


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _curves(runs: Sequence[tuple[Path, Settings, list[Row]]]) -> list[str]:
    found = []
    for i, (quantity, value) in enumerate(CURVES.items()):
        for along in ("epochs", "seconds") if i == 0 else ("epochs",):
            lines = []
            for _, _, rows in runs:
                x = [row.epoch if along == "epochs" else row.seconds for row in rows]
                lines.append([(a, y) for a, row in zip(x, rows, strict=True) if (y := value(row)) is not None])
            if any(lines):
                label = f"{html.escape(quantity)} against {along}"
                found.append(f"<figure><figcaption>{label}</figcaption>{_svg(lines, label)}</figure>")
    return found


def _svg(lines: Sequence[Sequence[tuple[float, float]]], label: str) -> str:
    """Lines in a frame, as SVG that takes its ink from the page."""
    points = [point for line in lines for point in line]
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    margin = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin

    def place(x: float, y: float) -> str:
        return f"{62 + 318 * x / right:.1f},{190 - 175 * (y - low) / (high - low):.1f}"

    marks = []
    for k in range(5):
        y, x = low + (high - low) * k / 4, right * k / 4
        height, across = 190 - 175 * k / 4, 62 + 318 * k / 4
        marks.append(f'<path d="M62 {height:.1f}H380" stroke="var(--faint)"/>')
        marks.append(f'<text x="57" y="{height + 4:.1f}" text-anchor="end">{y:.4g}</text>')
        marks.append(f'<text x="{across:.1f}" y="206" text-anchor="middle">{x:.4g}</text>')
    for i, line in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        joined = " ".join(place(x, y) for x, y in line)
        marks.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(line) <= 60:
            ends = (place(x, y).split(",") for x, y in line)
            marks += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for x, y in ends]
    return f'<svg viewBox="0 0 400 212" role="img" aria-label="{label}">{"".join(marks)}</svg>'


def _of_run(folder: Path, settings: Settings, rows: Sequence[Row]) -> str:
    parts = [f"<h2>{html.escape(str(folder))}</h2>"]
    if (folder / CHECKPOINT).exists():
        try:
            run = Run.open(folder)
            parts.append(f'<div class="grid">{"".join(_pictures(run))}</div>')
        except (DagFisherError, DataError, OSError) as error:
            parts.append(f"<p>No pictures: {html.escape(str(error))}</p>")
    probes = folder / "probes.csv"
    if probes.is_file():
        header, *lines = csv.reader(io.StringIO(probes.read_text(encoding="utf-8")))
        parts.append("<h3>Linear probes</h3>" + _table(header, lines))
        if (picture := probes.with_suffix(".png")).is_file():
            parts.append(_figure("errors of linear probes, by layer", picture.read_bytes(), "wide"))
    names = ["epoch", "steps", "seconds", "train_log_likelihood", "valid_log_likelihood", "test_log_likelihood"]
    names += ["effective_samples", "lr", "damping", "divergence", "factor"]
    values = [[_cell(getattr(row, name)) for name in names] for row in rows]
    parts.append("<details open><summary>metrics.csv</summary>" + _table(names, values) + "</details>")
    lines = [[html.escape(name), html.escape(str(value))] for name, value in settings.as_dict().items()]
    parts.append("<details><summary>settings</summary>" + _table(["setting", "value"], lines) + "</details>")
    place = shlex.quote(str(folder))
    commands = [f"train --resume --out {place}", f"evaluate {place} --samples 10000", f"probe {place}"]
    text = "\n".join(f"{program()} {command}" for command in commands)
    return "".join([*parts, f"<h3>Go on</h3><pre>{html.escape(text)}</pre>"])


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value!r}"


def _pictures(run: Run) -> list[str]:
    machine, shape = run.machine, run.description.shape
    found = []

    def add(title: str, images: Tensor) -> None:
        found.append(_figure(title, _png_of(images, shape), "tiles"))

    if len(run.film) > 1:
        title = f"dreams from one noise, while it trained ({len(run.film)} frames)"
        found.append(_figure(title, _animation(list(run.film.values()), shape), "tiles"))
    add("dreams", machine.sample(64, means=True, generator=Generator().manual_seed(0)))
    x = run.data.evaluation("test")[:IMAGES]
    add("test images", x)
    for depth in range(1, len(machine.recognition) + 1):
        again = machine.reconstruct(x, depth=depth, generator=Generator().manual_seed(0))
        add(f"reconstructed from layer {depth}", again)
    if isinstance(machine.prior.family, Bernoulli):
        add("a dream, and with each top unit flipped", traversal(machine))
    optimizer = run.trainer.optimizer
    if isinstance(optimizer, DAGNaturalGradient) and run.trainer.steps:
        file = io.BytesIO()
        spectrum(optimizer).figure().savefig(file, format="png", dpi=75)
        found.append(_figure("eigenvalues of the Fisher blocks, by layer", file.getvalue(), "wide"))
    return found


def traversal(machine: HelmholtzMachine, seed: int = 0) -> Tensor:
    """A dream, and for each top unit the dream with that unit flipped, from the same noise, (1 + units, pixels)."""
    family = machine.prior.family
    assert isinstance(family, Bernoulli)
    top = machine.draw_top(1, Generator().manual_seed(seed)).states
    states = top.repeat(1 + top.shape[1], 1)
    both = float(family.from_bits(torch.tensor([0.0, 1.0])).sum())
    for j in range(top.shape[1]):
        states[j + 1, j] = both - states[j + 1, j]
    rows = [machine.sample_from(row[None], means=True, generator=Generator().manual_seed(seed)) for row in states]
    return torch.cat(rows)


def _png_of(images: Tensor, shape: tuple[int, int]) -> bytes:
    from matplotlib import image

    file = io.BytesIO()
    image.imsave(file, tile(images, shape)[::3, ::3], cmap="Greys", vmin=0, vmax=1, format="png")
    return file.getvalue()


def _animation(frames: Sequence[Tensor], shape: tuple[int, int]) -> bytes:
    """Frames of images, each (n, pixels) of grey values to 255, as a PNG that moves; the last one stays longest."""
    from PIL import Image

    first, *later = [
        Image.fromarray((255 * (1 - tile(x / 255, shape)[::3, ::3])).round().astype("uint8")) for x in frames
    ]
    file = io.BytesIO()
    length = [max(80, 6000 // len(frames))] * len(later) + [2500]
    first.save(file, format="PNG", save_all=True, append_images=later, duration=length, loop=0)
    return file.getvalue()


def _figure(title: str, png: bytes, kind: str) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    title = html.escape(title)
    return f'<figure><figcaption>{title}</figcaption><img class="{kind}" alt="{title}" src="{source}"></figure>'
