"""The command `report`: one HTML file about some runs that needs no network, or the same page while they train."""

from __future__ import annotations

import argparse
import csv
import html
import io
import itertools
import math
import shlex
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from .. import __version__
from .._files import replacing
from .._settings import settings_of
from .._text import counted, with_error
from ..datasets import DataError
from ..errors import DagFisherError, SettingError
from ..families import Bernoulli
from ..helmholtz.machine import HelmholtzMachine
from ..helmholtz.metrics import METRICS, Row, read_rows
from ..helmholtz.pictures import display
from ..helmholtz.runs import CHECKPOINT, Run, holds_run, read_settings
from ..helmholtz.settings import Settings
from ..inspect import spectrum
from ..optim import DAGNaturalGradient
from ..plots import require_matplotlib
from .console import program
from .markup import STYLE, animation, chart, exact, figure, key, picture, png_of, strokes, table
from .progress import show
from .sweep import grid_of, place, runs_of

CHAPTERS = 8
"""At most so many runs have pictures and tables of their own."""
IMAGES = 16
"""In each picture of reconstructions."""


class Quantity(NamedTuple):
    """A column of metrics.csv that is drawn."""

    column: str
    title: str
    note: str


CURVES = (
    Quantity("test_log_likelihood", "test log-likelihood (nats)", "higher is better"),
    Quantity("kl", "exact KL from the data (nats)", "lower is better"),
    Quantity("lr", "learning rate", ""),
    Quantity("damping", "damping α", "the geometric mean over the layers"),
    Quantity("effective_samples", "effective samples", "how many of the evaluation's samples count"),
    Quantity("divergence", "KL of a step (nats)", "how far the last step before the row moved the machine"),
    Quantity("factor", "trust region", "the share of that step that was left; 1: not shortened"),
)


def report(options: argparse.Namespace) -> int:
    """Write the page, or serve it until Ctrl-C; the exit code."""
    require_matplotlib()
    folders = options.runs
    if not expanded(folders):
        shown = ", ".join(map(str, folders))
        raise SettingError(f"nothing here is a run folder or the folder of a sweep: {shown}.")
    if options.live:
        with server(folders, options.port) as serving:
            show(f"http://127.0.0.1:{serving.server_port}/ follows {', '.join(map(str, folders))}; Ctrl-C ends it.")
            serving.serve_forever()
    with replacing(options.out) as file:
        file.write(page(folders).encode())
    show(f"{options.out}")
    return 0


def server(folders: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server on this computer alone that makes the page anew whenever the runs have changed."""
    made: dict[Any, bytes] = {}

    def current() -> bytes:
        files = [folder / name for folder in expanded(folders) for name in (METRICS, CHECKPOINT)]
        state = tuple((file, file.stat().st_mtime_ns) for file in files if file.exists())
        if state not in made:
            made.clear()
            made[state] = page(folders, refresh=10).encode()
        return made[state]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/"
            body = current() if found else b"not found"
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
    parts.append(f"<p><small>dagfisher {__version__}</small></p>")
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
    header = ["run", "algorithm", "test log-likelihood", "valid", "seconds", "epochs", "steps", "data"]
    lines = []
    for (folder, settings, rows), stroke in zip(runs, _strokes(runs), strict=True):
        cells = [f"{key(stroke)}{html.escape(str(folder))}", display(settings.algorithm)]
        if rows:
            last = rows[-1]
            cells += [with_error(last.test_log_likelihood, last.test_standard_error)]
            cells += [with_error(last.valid_log_likelihood, last.valid_standard_error)]
            cells += [f"{last.seconds:.1f}", f"{last.epoch:.4g}", f"{last.steps:,}", html.escape(last.data)]
        lines.append(cells + [""] * (len(header) - len(cells)))
    words = "Nats, ± standard error over the images; higher is better. Seconds are those of training alone."
    return f"{table(header, lines)}<p>{words}</p>"


def _strokes(runs: Sequence[tuple[Path, Settings, list[Row]]]) -> list[str]:
    return strokes([settings.algorithm for _, settings, _ in runs])


def _curves(runs: Sequence[tuple[Path, Settings, list[Row]]]) -> list[str]:
    found = []
    for i, (column, title, note) in enumerate(CURVES):
        for along in ("epochs", "seconds") if i == 0 else ("epochs",):
            lines = []
            for _, _, rows in runs:
                x = [row.epoch if along == "epochs" else row.seconds for row in rows]
                values = [getattr(row, column) for row in rows]
                lines.append([(a, y) for a, y in zip(x, values, strict=True) if y is not None])
            if any(lines):
                found.append(figure(title, chart(lines, _strokes(runs), f"{title} against {along}", along), note))
    return found


def _of_run(folder: Path, settings: Settings, rows: Sequence[Row]) -> str:
    parts = [f"<h2>{html.escape(str(folder))}</h2>"]
    if (folder / CHECKPOINT).exists():
        try:
            run = Run.open(folder)
            parts.append(f'<div class="grid">{"".join(_pictures(run))}</div>')
            parts.append(_spectra(run))
        except (DagFisherError, DataError, OSError) as error:
            parts.append(f"<p>No pictures: {html.escape(str(error))}</p>")
    probes = folder / "probes.csv"
    if probes.is_file():
        header, *lines = csv.reader(io.StringIO(probes.read_text(encoding="utf-8")))
        shown = [[exact(float(cell)) if "." in cell else cell for cell in line] for line in lines]
        parts.append("<h3>Linear probes</h3>" + table([name.replace("_", " ") for name in header], shown))
        parts.append("<p>The share of images that a linear classifier of each layer gets wrong; layer 0: pixels.</p>")
        if (drawn := probes.with_suffix(".png")).is_file():
            parts.append(picture("errors of linear probes, by layer", drawn.read_bytes(), kind="plot"))
    values = [[exact(getattr(row, name)) for name in COLUMNS] for row in rows]
    parts.append("<details open><summary>metrics.csv</summary>" + table(COLUMNS, values) + "</details>")
    lines = [[html.escape(name), html.escape(str(value))] for name, value in settings.as_dict().items()]
    parts.append("<details><summary>settings</summary>" + table(["setting", "value"], lines) + "</details>")
    place = shlex.quote(str(folder))
    onward = [f"train --resume --out {place}", f"evaluate {place} --samples 10000", f"probe {place}"]
    for title, commands in (("The same again", [remade(settings, "runs/again")]), ("Go on", onward)):
        text = "\n".join(f"{program()} {command}" for command in commands)
        parts.append(f"<h3>{title}</h3><pre>{html.escape(text)}</pre>")
    return "".join(parts)


COLUMNS = ["epoch", "steps", "seconds", "train_log_likelihood", "valid_log_likelihood", "test_log_likelihood"]
COLUMNS += ["effective_samples", "lr", "damping", "divergence", "factor"]
"""Of metrics.csv, those that the page shows."""


def remade(settings: Settings, out: str) -> str:
    """The command that would start a run with these settings anew: data, algorithm, and what is not their default."""
    chosen = {"data": settings.data, "binarisation": settings.binarisation, "algorithm": settings.algorithm}
    usual, own = (each.as_dict() for each in (Settings.resolve(**chosen, layers=settings.layers), settings))
    words = ["train", "--out", out]
    for setting in settings_of(Settings):
        value, flag = own[setting.name], "--" + setting.name.replace("_", "-")
        if value == usual[setting.name] and setting.name not in (*chosen, "layers"):
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return shlex.join(words)


def _pictures(run: Run) -> list[str]:
    machine, shape = run.machine, run.description.shape
    found = []

    def add(title: str, images: Tensor, note: str = "") -> None:
        found.append(picture(title, png_of(images, shape), note))

    if len(run.film) > 1:
        film = animation(list(run.film.values()), shape)
        found.append(picture("dreams while it trained", film, f"{len(run.film)} frames, all from the same noise"))
    add("dreams now", machine.sample(64, means=True, generator=Generator().manual_seed(0)))
    x = run.data.evaluation("test")[:IMAGES]
    add("test images", x)
    for depth in range(1, len(machine.recognition) + 1):
        again = machine.reconstruct(x, depth=depth, generator=Generator().manual_seed(0))
        add(f"reconstructed from layer {depth}", again, f"{counted(machine.sizes[depth], 'unit')}")
    if isinstance(machine.prior.family, Bernoulli):
        add("top units flipped", traversal(machine), "a dream, then the same with each top unit flipped in turn")
    return found


def _spectra(run: Run) -> str:
    """For each layer, the eigenvalues of its Fisher blocks beside its damping; "" if the run has no Fisher matrices."""
    optimizer = run.trainer.optimizer
    if not isinstance(optimizer, DAGNaturalGradient) or not run.trainer.steps:
        return ""
    found = []
    for layer in spectrum(optimizer).layers:
        file = io.BytesIO()
        layer.figure().savefig(file, format="png", dpi=90)
        note = f"{layer.effective:,.0f} effective of {counted(layer.parameters, 'parameter')}"
        found.append(picture(layer.name, file.getvalue(), note, "plot"))
    words = (
        "Median and range over the units of a layer. The dashed line is the damping: steps are natural in directions "
        "above it, whose number is that of the effective parameters."
    )
    return f'<h3>Eigenvalues of the Fisher blocks</h3><p>{words}</p><div class="grid">{"".join(found)}</div>'


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
