"""The command `train`."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

from .._processes import is_first, is_restarted, launched
from .._settings import settings_of
from .._text import counted
from ..datasets import DataError
from ..errors import MissingExtraError, SettingError
from ..helmholtz.folders import remember_preset
from ..helmholtz.presets import preset_named
from ..helmholtz.runs import CHECKPOINT, Run, holds_run
from ..helmholtz.settings import Settings
from .console import fallen, program, require_tensorboard, watch
from .exits import BAD_INPUT, INTERRUPTED, explain
from .progress import show, told_elsewhere, warn


def train(options: argparse.Namespace) -> int:
    """Train a run, a new one or one that is resumed; the exit code."""
    names = [setting.name for setting in settings_of(Settings)]
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if options.config is not None:
        given = {**_read_config(options.config), **given}
    if options.preset is not None:
        given = _with_preset(options.preset, given, options.resume)
    if options.tensorboard:
        require_tensorboard()
    out: Path = options.out
    processes = launched()
    if options.resume or processes.together(lambda: _begun(out)):
        run = Run.resume(out, **given)
    else:
        run = Run.create(out, processes.together(lambda: Settings.resolve(**given)))
        if options.preset is not None:
            processes.only_first(lambda: remember_preset(out, options.preset))
    if run.finished:
        show(f"{out} has done its {counted(run.settings.epochs, 'epoch')}; give more --epochs to go on.")
        return 0
    if run.settings.without_effect is not None and is_first():
        warn(run.settings.without_effect)
    again = f"{program()} train --resume --out {shlex.quote(str(out))}"
    try:
        finished = watch(run, tensorboard=options.tensorboard)
    except BrokenPipeError:
        raise
    except OSError as error:
        if not (out / CHECKPOINT).exists() or told_elsewhere(error):
            raise
        warn(f"{explain(error)}; the last checkpoint is whole, and the run continues from it with: {again}")
        return BAD_INPUT
    if not finished:
        show(f"stopped after step {run.steps} (epoch {run.steps / run.batches:.2f}); continue with: {again}")
        return INTERRUPTED
    if (worse := fallen(run)) is not None:
        show(f"{out} is done, but {worse}")
    else:
        show(f"{out} is done; for its final figure: {program()} evaluate {shlex.quote(str(out))} --samples 10000")
    return 0


def _with_preset(name: str, given: dict[str, Any], resumed: bool) -> dict[str, Any]:
    """What is given over the settings of a preset; a run that is resumed keeps its own number of epochs."""
    preset = preset_named(name)
    values = preset.completed(given)
    if (left := preset.left_out(given)) and is_first():
        warn(f"{given['algorithm']} is a plain algorithm, so these settings of {name} are left out: {', '.join(left)}.")
    if resumed and "epochs" not in given:
        del values["epochs"]
    return values


def _begun(out: Path) -> bool:
    """Whether torchrun has started this training again, after a process failed, and there is something to resume."""
    if not holds_run(out):
        return False
    if is_restarted():
        return True
    raise SettingError(f"{out} already holds a run; add --resume to continue it, or give another --out.")


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
    except (SettingError, DataError) as error:
        raise SettingError(f"{path}: {error}") from None
