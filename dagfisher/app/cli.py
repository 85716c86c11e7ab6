"""The program `dagfisher`: its commands, their arguments and its exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from .._processes import is_first, is_launched, leave
from .._settings import settings_of
from ..datasets import DataError
from ..errors import DagFisherError
from ..helmholtz.settings import Settings
from .demo import demo
from .exits import BAD_INPUT, INTERRUPTED, explain
from .lists import algorithms, data, presets
from .looking import HIDDEN, compare, complete, evaluate, probe, reconstruct, sample
from .progress import told_elsewhere, warn
from .report import report
from .sweep import sweep
from .training import train


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help.\n" if is_first() else None)


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
        if not told_elsewhere(error):
            warn(" ".join(str(error).split()))
        return BAD_INPUT
    except BrokenPipeError:  # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if not told_elsewhere(error):
            warn(f"{explain(error)}.")
        return BAD_INPUT
    except KeyboardInterrupt:
        warn("interrupted.")
        return INTERRUPTED


def run() -> NoReturn:
    """Run the program in a process of its own, and end the process.

    Where torchrun started it, nothing is taken down after the work but the process group: threads of torch.distributed
    at times abort a process that is on its way out.
    """
    code = main()
    if is_launched():
        leave()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _parser() -> Parser:
    parser = Parser(
        prog="dagfisher",
        description="Train Helmholtz machines with natural gradients, and look at them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dagfisher {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command", parser_class=Parser)

    def command(name: str, function: Any, help: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        made.set_defaults(command=function)
        return made

    parsed = command("train", train, "Train a machine in a run folder.")
    parsed.add_argument("--out", required=True, type=Path, help="the run folder")
    parsed.add_argument("--resume", action="store_true", help="continue the run in --out; --epochs may be raised")
    parsed.add_argument(
        "--preset", metavar="NAME", help="settings of a published result; --config and flags override it"
    )
    parsed.add_argument("--config", type=Path, metavar="TOML", help="a file of settings; flags override it")
    parsed.add_argument("--tensorboard", action="store_true", help="also write the curves for TensorBoard")
    _add_settings(parsed.add_argument_group("settings, with their defaults in parentheses"))

    parsed = command(
        "sweep",
        sweep,
        "Train a machine for each combination of some settings. The same call continues a sweep that was stopped.",
    )
    parsed.add_argument(
        "--out", required=True, type=Path, help="the folder of the sweep, which has a run folder for each combination"
    )
    parsed.add_argument(
        "--vary",
        required=True,
        action="append",
        nargs="+",
        metavar=("SETTING", "VALUE"),
        help="a setting and the values to try, for example --vary lr 0.1 0.2 --vary damping 0.01 0.1",
    )
    _add_settings(parsed.add_argument_group("settings of all runs, with their defaults in parentheses"))

    parsed = command(
        "evaluate", evaluate, "Estimate the log-likelihood of a run's machine, by default of all test images."
    )
    _add_run(parsed)
    parsed.add_argument("--samples", type=_positive, default=1000, help="samples per example (1000; papers have 10000)")
    parsed.add_argument("--examples", type=_positive, help="how many examples of the split, from its start (all)")
    parsed.add_argument("--split", choices=("train", "valid", "test"), default="test", help="which images (test)")
    parsed.add_argument("--json", action="store_true", help="print JSON")

    parsed = command("sample", sample, "Draw what a run's machine dreams (probabilities of the pixels).")
    _add_run(parsed)
    _add_picture(parsed, "dreams.png")

    parsed = command("reconstruct", reconstruct, "Draw images and what a run's machine makes of them.")
    _add_run(parsed)
    _add_picture(parsed, "reconstructions.png")
    parsed.add_argument("--depth", type=_positive, default=1, help="hidden layers to go up, and down again (1)")
    _add_images(parsed)

    parsed = command(
        "complete", complete, "Draw images of which one half is hidden, and what a run's machine makes of it."
    )
    _add_run(parsed)
    _add_picture(parsed, "completions.png")
    parsed.add_argument("--hide", choices=HIDDEN, default="bottom", help="the half that is not known (bottom)")
    parsed.add_argument("--sweeps", type=_positive, default=100, help="up with q and down with p (100)")
    parsed.add_argument(
        "--candidates", type=_count, default=5, help="draws of q that compete by importance weights; 0: none do (5)"
    )
    _add_images(parsed)

    parsed = command(
        "probe",
        probe,
        "Fit a linear classifier to each layer of a run's machine, to see what it knows of the classes.",
    )
    _add_run(parsed)
    parsed.add_argument("--examples", type=_positive, default=10_000, help="training images to fit to (10000)")
    parsed.add_argument("--penalty", type=_fraction, default=1e-3, help="on the squares of the weights (0.001)")
    parsed.add_argument("--out", type=_png, help="the picture to write (probes.png in the run folder, CSV beside it)")

    parsed = command("compare", compare, "Compare runs in a table and a picture.")
    parsed.add_argument("runs", nargs="+", type=Path, help="run folders; other files and folders are passed over")
    parsed.add_argument("--out", type=_png, required=True, help="the picture to write")

    parsed = command("report", report, "Write one HTML file about runs, or serve it while they train.")
    parsed.add_argument("runs", nargs="+", type=Path, help="folders of runs or sweeps; others are passed over")
    parsed.add_argument("--out", type=Path, default=Path("report.html"), help="the file to write (report.html)")
    parsed.add_argument("--live", action="store_true", help="serve the page on this computer and follow the runs")
    parsed.add_argument("--port", type=_count, default=8765, help="the port of --live (8765)")

    command("data", data, "List the datasets and where each is found.")
    command("algorithms", algorithms, "List the algorithms and their defaults.")
    parsed = command("presets", presets, "List published results, with their settings and figures.")
    parsed.add_argument(
        "part", nargs="?", default="", help="only those with this in name, data or source: mini-mnist, tfd, 5.1"
    )
    show = command("demo", _demo, "Train a machine with RWS and with NRWS on miniMNIST, in less than 3 minutes.")
    show.add_argument("--out", type=Path, default=Path("runs/demo"), help="a new folder (runs/demo)")
    return parser


_VALUES = {"update_every": "STEPS", "warm_up": "STEPS", "eval_every": "STEPS", "checkpoint_every": "SECONDS"}
"""What a help calls the value of a flag whose own name says it badly."""


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
            kind = {"metavar": _VALUES.get(setting.name, setting.name.rpartition("_")[2].upper())}
        group.add_argument(flag, default=argparse.SUPPRESS, help=setting.help + shown, **kind)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (0)")


def _add_picture(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--number", type=_positive, default=64, help="of images (64)")
    parser.add_argument("--out", type=_png, help=f"the picture to write ({name} in the run folder)")


def _add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--colour", choices=("refuse", "grey"), default="refuse", help="of --images (refuse)")
    parser.add_argument("--tile", type=_tile, metavar="28x28", help="of --images: rows x columns on a PNG sheet")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--split", choices=("train", "valid", "test"), default="test", help="of the run's data (test)")
    source.add_argument("--images", type=Path, metavar="PATH", help="images of your own instead of the run's data")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"it must be a number between 0 and 1, not {text!r}")
    return value


def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number of at least 1, not {text!r}")
    return value


def _tile(text: str) -> tuple[int, int]:
    sides = [_positive(side) for side in text.split("x")]
    if len(sides) != 2:
        raise argparse.ArgumentTypeError(f"it must be rows x columns, for example 28x28, not {text!r}")
    return sides[0], sides[1]


def _png(text: str) -> Path:
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"pictures are PNG files; {text!r} must end in .png")
    return Path(text)


def _demo(options: argparse.Namespace) -> int:
    return demo(options.out)
