"""The program `dagfisher`: train, evaluate, sample, reconstruct, compare, data, algorithms, demo."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from .. import __version__, datasets
from .._settings import settings_of
from .._text import table
from ..datasets import DataError
from ..errors import DagFisherError, MissingExtraError, SettingError
from ..helmholtz.algorithms import ALGORITHMS
from ..helmholtz.metrics import read_rows
from ..helmholtz.pictures import display, run_curve
from ..helmholtz.runs import Run, holds_run, read_settings
from ..helmholtz.settings import Settings
from ..plots import Panel, draw_curves, draw_panels
from .console import program, watch
from .demo import demo
from .progress import Bar, warn

BAD_INPUT, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: what follows the program's name; those of the process if not given.

    Returns:
        The exit code, which is 0, 2 for input that cannot be used, 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except (DagFisherError, DataError) as error:
        warn(" ".join(str(error).split()))
        return BAD_INPUT
    except BrokenPipeError:  # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        warn(f"{error.filename or 'a file'}: {error.strerror or error}.")
        return BAD_INPUT
    except KeyboardInterrupt:
        warn("interrupted.")
        return INTERRUPTED


def _parser() -> Parser:
    parser = Parser(prog="dagfisher", description="Helmholtz machines by natural gradients.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"dagfisher {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command", parser_class=Parser)

    def command(name: str, function: Any, help: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        made.set_defaults(command=function)
        return made

    train = command("train", _train, "Train a machine in a run folder.")
    train.add_argument("--out", required=True, type=Path, help="the run folder")
    train.add_argument("--resume", action="store_true", help="continue the run in --out; --epochs may be raised")
    train.add_argument("--config", type=Path, metavar="TOML", help="a file of settings; flags override it")
    train.add_argument("--tensorboard", action="store_true", help="also write the curves for TensorBoard")
    _add_settings(train.add_argument_group("settings, with their defaults in parentheses"))

    evaluate = command("evaluate", _evaluate, "Estimate the log-likelihood of a run's machine.")
    _add_run(evaluate)
    evaluate.add_argument("--samples", type=_positive, default=1000, help="per example (1000; papers report 10000)")
    evaluate.add_argument("--examples", type=_positive, help="how many of the split, from its start (all)")
    evaluate.add_argument("--split", choices=("train", "valid", "test"), default="test", help="(test)")
    evaluate.add_argument("--json", action="store_true", help="print JSON")

    sample = command("sample", _sample, "Draw what a run's machine dreams (probabilities of the pixels).")
    _add_run(sample)
    _add_picture(sample, "dreams.png")

    reconstruct = command("reconstruct", _reconstruct, "Draw images and what a run's machine makes of them.")
    _add_run(reconstruct)
    _add_picture(reconstruct, "reconstructions.png")
    reconstruct.add_argument("--depth", type=_positive, default=1, help="hidden layers to go up, and down again (1)")
    reconstruct.add_argument("--split", choices=("train", "valid", "test"), default="test", help="(test)")

    compare = command("compare", _compare, "Compare runs in a table and a picture.")
    compare.add_argument("runs", nargs="+", type=Path, help="run folders; other files and folders are passed over")
    compare.add_argument("--out", type=_png, required=True, help="the picture to write")

    command("data", _data, "List the datasets and where each is found.")
    command("algorithms", _algorithms, "List the algorithms and their defaults.")
    show = command("demo", _demo, "Train a machine with RWS and with NRWS on miniMNIST, in less than 3 minutes.")
    show.add_argument("--out", type=Path, default=Path("runs/demo"), help="a new folder (runs/demo)")
    return parser


def _add_settings(group: Any) -> None:
    for setting in settings_of(Settings):
        flag = "--" + setting.name.replace("_", "-")
        shown = "" if setting.default is None else f" ({setting.default})"
        if isinstance(setting.default, bool):
            shown = f" ({'on' if setting.default else 'off'})"
            kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        elif setting.name == "adam":
            kind = {"nargs": "?", "const": True, "metavar": "0.9,0.999"}
        else:
            kind = {"metavar": setting.name.rpartition("_")[2].upper()}
        group.add_argument(flag, default=argparse.SUPPRESS, help=setting.help + shown, **kind)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")


def _add_picture(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--number", type=_positive, default=64, help="of images (64)")
    parser.add_argument("--out", type=_png, help=f"the picture to write ({name} in the run folder)")


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number of at least 1, not {text!r}")
    return value


def _png(text: str) -> Path:
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"pictures are PNG files; {text!r} must end in .png")
    return Path(text)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise MissingExtraError(
            "on Python 3.10, TOML files need the package tomli; install it with pip install 'dagfisher[examples]'."
        ) from None
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingError(f"{path} is not a TOML file: {error}.") from None
    try:
        return Settings.convert({name.replace("-", "_"): value for name, value in values.items()})
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None


def _train(options: argparse.Namespace) -> int:
    names = [setting.name for setting in settings_of(Settings)]
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if options.config is not None:
        given = {**_read_config(options.config), **given}
    out: Path = options.out
    if options.resume:
        run = Run.resume(out, **given)
    elif holds_run(out):
        raise SettingError(f"{out} already holds a run; add --resume to continue it, or give another --out.")
    else:
        run = Run.create(out, Settings.resolve(**given))
    if run.finished:
        print(f"{out} has done its {run.settings.epochs} epochs; give more --epochs to go on.")
        return 0
    if not watch(run, tensorboard=options.tensorboard):
        again = f"{program()} train --resume --out {shlex.quote(str(out))}"
        print(f"stopped after step {run.steps} (epoch {run.steps / run.batches:.2f}); continue with: {again}")
        return INTERRUPTED
    print(f"{out} is done; for its final figure: {program()} evaluate {shlex.quote(str(out))} --samples 10000")
    return 0


def _open(options: argparse.Namespace) -> Run:
    run = Run.open(options.run)
    if not run.steps:
        warn(f"{options.run} has no checkpoint yet; this is the machine as it was made.")
    torch.set_num_threads(run.settings.threads)
    return run


def _evaluate(options: argparse.Namespace) -> int:
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
        "standard_error": found.standard_error,
        "effective_samples": float(found.effective_samples.mean()),
    }
    figures = run.settings.chosen_algorithm.figures
    result.update({figure.key: float(figure.value(found).double().mean()) for figure in figures})
    if run.settings.binarisation == "G":
        result["bits_per_dimension"] = run.data.bits_per_dimension(found.mean)
    if (kl := run.exact_kl()) is not None:
        result["kl"] = kl
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    print(
        f"{result['algorithm']} on {result['data']}, {options.split}: {examples:,} examples, "
        f"{options.samples:,} samples each, after {result['epoch']:.4g} epochs"
    )
    print(f"log-likelihood     {found.mean:.4f}")
    print(f"standard error     {found.standard_error:.4f} (over the examples)")
    print(f"effective samples  {result['effective_samples']:.1f} of {options.samples:,} (mean over the examples)")
    for figure in figures:
        print(f"{figure.label:<18} {result[figure.key]:.4f}" + (f" ({figure.note})" if figure.note else ""))
    if result.get("bits_per_dimension") is not None:
        print(f"bits per dimension {result['bits_per_dimension']:.4f} (of 256 levels, dequantised uniformly)")
    if kl is not None:
        print(f"KL(data ‖ machine) {kl:.6f} (exact)")
    return 0


def _sample(options: argparse.Namespace) -> int:
    run = _open(options)
    generator = run.settings.stream(f"dreams {options.seed}")
    dreams = run.machine.sample(options.number, means=True, generator=generator)
    return _picture(options, run, "dreams.png", [Panel("dreams", dreams)])


def _reconstruct(options: argparse.Namespace) -> int:
    run = _open(options)
    if options.depth > len(run.settings.layers):
        raise SettingError(f"depth must be at most {len(run.settings.layers)}, the hidden layers, not {options.depth}.")
    x = run.data.evaluation(options.split)[: options.number]
    generator = run.settings.stream(f"reconstructions {options.seed}")
    made = run.machine.reconstruct(x, depth=options.depth, generator=generator)
    title = f"reconstructions from hidden layer {options.depth}"
    panels = [Panel(f"{options.split} images", x), Panel(title, made)]
    return _picture(options, run, "reconstructions.png", panels)


def _picture(options: argparse.Namespace, run: Run, name: str, panels: list[Panel]) -> int:
    out = options.out or options.run / name
    title = f"{display(run.settings.algorithm)} on {run.data.label}, epoch {run.steps / run.batches:.4g}"
    draw_panels([panels], run.data.shape, out, title=title)
    print(out)
    return 0


def _compare(options: argparse.Namespace) -> int:
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
        figure = f"{last.test_log_likelihood:.2f} ± {last.test_standard_error:.2f}"
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


def _data(options: argparse.Namespace) -> int:
    lines = []
    for entry in datasets.available():
        size = " + ".join(f"{n:,}" for n in entry.sizes)
        lines.append([entry.name, entry.binarisations, "×".join(map(str, entry.shape)), size, entry.where])
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for line in lines:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]))
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    for algorithm in ALGORITHMS.values():
        settings = f"lr {algorithm.lr:g}"
        if algorithm.solver is not None:
            settings += f", damping adapted from {algorithm.damping:g}, update every {algorithm.update_every}"
        print(f"{algorithm.name:<10} {algorithm.summary} ({settings})")
    return 0


def _demo(options: argparse.Namespace) -> int:
    return demo(options.out)
