"""The commands that look at runs: `evaluate`, `sample`, `reconstruct`, `complete`, `probe`, `compare`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import torch
from torch import Tensor

from .. import datasets, probes
from .._text import counted, table, with_error
from ..datasets import DataError
from ..errors import SettingError
from ..helmholtz.folders import read_preset
from ..helmholtz.metrics import read_rows
from ..helmholtz.pictures import display, run_curve
from ..helmholtz.presets import PRESETS
from ..helmholtz.runs import Run, holds_run, read_settings
from ..plots import Panel, draw_curves, draw_panels
from .progress import Bar, warn


def evaluate(options: argparse.Namespace) -> int:
    """Print the log-likelihood of a run's machine, as text or JSON; the exit code."""
    run = _open(options)
    examples = min(options.examples or sys.maxsize, len(run.data.stored(options.split)))
    with Bar(examples, "evaluating", unit="example") as bar:
        found = run.estimate(
            options.split, examples=examples, samples=options.samples, seed=options.seed, progress=bar.update
        )
    result: dict[str, Any] = {
        "run": str(options.run),
        "data": run.data.label,
        "split": options.split,
        "algorithm": run.settings.algorithm,
        "epoch": run.steps / run.batches,
        "seconds": run.seconds,
        "examples": examples,
        "samples": options.samples,
        "log_likelihood": found.mean,
        "standard_error": None if math.isnan(found.standard_error) else found.standard_error,
        "effective_samples": float(found.effective_samples.mean()),
    }
    figures = run.settings.chosen_algorithm.figures
    result.update({figure.key: float(figure.value(found).double().mean()) for figure in figures})
    if run.settings.binarisation == "G":
        result["bits_per_dimension"] = run.data.bits_per_dimension(found.mean)
    if (kl := run.exact_kl()) is not None:
        result["kl"] = kl
    preset = PRESETS.get(read_preset(options.run) or "") if options.split == "test" else None
    unlike = [] if preset is None else preset.unlike(run.settings, run.description.shape)
    if preset is not None:
        result.update(preset=preset.name, published=preset.published, source=preset.source, published_differs_in=unlike)
    if not run.processes.first:
        return 0
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    print(
        f"{result['algorithm']} on {result['data']}, {options.split}: {counted(examples, 'example')}, "
        f"{counted(options.samples, 'sample')} each, after {counted(result['epoch'], 'epoch')}"
    )
    print(f"log-likelihood     {found.mean:.4f}")
    error = "unknown" if math.isnan(found.standard_error) else f"{found.standard_error:.4f}"
    print(f"standard error     {error} (over the examples)")
    print(f"effective samples  {result['effective_samples']:.1f} of {options.samples:,} (mean over the examples)")
    for figure in figures:
        print(f"{figure.label:<18} {result[figure.key]:.4f}" + (f" ({figure.note})" if figure.note else ""))
    if result.get("bits_per_dimension") is not None:
        print(f"bits per dimension {result['bits_per_dimension']:.4f} (of 256 levels, dequantised uniformly)")
    if kl is not None:
        print(f"KL(data ‖ machine) {kl:.6f} (exact)")
    if preset is not None:
        print(f"{'published':<18} {preset.published} ({preset.source}; 10,000 samples each)")
        if unlike:
            print(f"{'':<18} but this run differs in {', '.join(unlike)}")
    return 0


def sample(options: argparse.Namespace) -> int:
    """Draw a run's dreams; the exit code."""
    run = _open(options)
    generator = run.settings.stream(f"dreams {options.seed}")
    dreams = run.machine.sample(options.number, means=True, generator=generator)
    return _picture(options, run, "dreams.png", [Panel("dreams", dreams)])


def reconstruct(options: argparse.Namespace) -> int:
    """Draw images and their reconstructions; the exit code."""
    run = _open(options)
    if options.depth > len(run.settings.layers):
        raise SettingError(f"depth must be at most {len(run.settings.layers)}, the hidden layers, not {options.depth}.")
    title, x = _images(options, run)
    generator = run.settings.stream(f"reconstructions {options.seed}")
    made = run.machine.reconstruct(x, depth=options.depth, generator=generator)
    panels = [Panel(title, x), Panel(f"reconstructions from hidden layer {options.depth}", made)]
    return _picture(options, run, "reconstructions.png", panels)


HIDDEN = ("bottom", "top", "left", "right", "random")
"""The halves of an image that `complete` can hide."""


def complete(options: argparse.Namespace) -> int:
    """Draw images of which one half is hidden, and what the machine makes of the rest; the exit code."""
    run = _open(options)
    title, x = _images(options, run)
    generator = run.settings.stream(f"completions {options.seed}")
    known = _known(options.hide, run.description.shape, generator).to(x.device)
    found = run.machine.complete(x, known, sweeps=options.sweeps, candidates=options.candidates, generator=generator)
    limit = "p(unknown | known)" if found.exact else "p(unknown | known) if q is the posterior"
    print(f"the limit of many sweeps is {limit}; the hidden state moved in {found.moved:.0%} of the sweeps")
    shown = torch.where(known, x, torch.full_like(x, 0.35))
    panels = [Panel(title, x), Panel(f"known: all but {options.hide}", shown)]
    panels += [Panel("expectation of the hidden half", found.mean), Panel("a draw of it", found.sample)]
    return _picture(options, run, "completions.png", panels)


def probe(options: argparse.Namespace) -> int:
    """Fit a linear probe to every layer of a run's machine; print a table, write probes.csv and a picture."""
    run = _open(options)
    untrained = run.settings.build(run.description).machine  # as it was before its first step
    found = probes.probe_layers(
        run.machine, run.data, examples=options.examples, penalty=options.penalty, untrained=untrained
    )
    lines = [
        [f"layer {row.layer}" if row.layer else "data", str(row.units)]
        + [f"{100 * error:.2f} %" for error in (row.train_error, row.test_error, row.untrained_error)]
        for row in found
    ]
    print(table(["probe of", "units", "training error", "test error", "test error, untrained"], lines))
    out = options.out or options.run / "probes.png"
    probes.write_probes(found, out.with_suffix(".csv"))
    title = f"Linear probes, {display(run.settings.algorithm)} on {run.description.label}"
    probes.draw_probes(found, out, title=f"{title}, epoch {run.steps / run.batches:.4g}")
    print(out)
    return 0


def _known(hide: str, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """True where a pixel is known, (pixels)."""
    rows, columns = (torch.arange(side) for side in shape)
    across, down = columns.expand(shape), rows[:, None].expand(shape)
    halves = {
        "bottom": down < shape[0] // 2,
        "top": down >= shape[0] // 2,
        "left": across >= shape[1] // 2,
        "right": across < shape[1] // 2,
    }
    if hide == "random":
        return torch.rand(shape[0] * shape[1], generator=generator) < 0.5
    return halves[hide].flatten()


def _images(options: argparse.Namespace, run: Run) -> tuple[str, Tensor]:
    """The images to be reconstructed, (n, pixels), and their title: the user's, or those of the run's data."""
    if options.images is None:
        try:
            return f"{options.split} images", run.data.evaluation(options.split)[: options.number]
        except DataError as error:
            raise DataError(f"{str(error).rstrip('.')}; or reconstruct images of your own with --images.") from error
    kind, shape = run.settings.binarisation, run.description.shape
    x, found = datasets.read_images(options.images, kind, colour=options.colour, tile=options.tile)
    if found != shape:
        sizes = ["×".join(map(str, each)) for each in (found, shape)]
        raise DataError(f"{options.images} holds images of {sizes[0]}; the machine of {options.run} knows {sizes[1]}.")
    return options.images.name, x[: options.number].to(run.settings.device)


def _picture(options: argparse.Namespace, run: Run, name: str, panels: list[Panel]) -> int:
    out = options.out or options.run / name
    title = f"{display(run.settings.algorithm)} on {run.description.label}, epoch {run.steps / run.batches:.4g}"
    draw_panels([panels], run.description.shape, out, title=title)
    print(out)
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print a table of runs and draw their curves; the exit code."""
    folders = [folder for folder in options.runs if holds_run(folder)]
    found = [(folder, read_settings(folder), rows) for folder in folders if (rows := read_rows(folder))]
    if not found:
        raise SettingError(f"none of {', '.join(map(str, options.runs))} is a run folder with metrics.")
    labels = sorted({rows[0].data for _, _, rows in found})
    if len(labels) > 1:
        raise SettingError(f"runs on different data cannot be compared: {', '.join(labels)}.")
    lines = []
    for folder, settings, rows in found:
        last = rows[-1]
        scale = f"{settings.eval_examples:,} × {settings.eval_samples:,}"
        figure = with_error(last.test_log_likelihood, last.test_standard_error)
        name, rate = settings.algorithm, f"{settings.lr:g}"
        lines.append([str(folder), name, rate, f"{last.epoch:.4g}", f"{last.seconds:.1f}", scale, figure])
    header = ["run", "algorithm", "lr", "epochs", "seconds", "examples × samples", f"test log-likelihood, {labels[0]}"]
    print(table(header, lines))
    unique = len({settings.algorithm for _, settings, _ in found}) == len(found)
    curves = []
    for folder, settings, rows in found:
        name = display(settings.algorithm)
        curves.append(run_curve(name if unique else f"{name} ({folder.name})", rows))
    draw_curves(curves, options.out, title=labels[0], quantity="test log-likelihood (nats)")
    print(options.out)
    return 0


def _open(options: argparse.Namespace) -> Run:
    run = Run.open(options.run)
    if not run.steps:
        warn(f"{options.run} has no checkpoint yet; this is the machine as it was made.")
    torch.set_num_threads(run.settings.threads)
    return run
