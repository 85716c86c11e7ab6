"""The command `sweep`: one run for each combination of some settings, which can be left and continued."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import replacing
from .._processes import is_first
from .._settings import settings_of
from .._text import table, with_error
from ..errors import NonFiniteError, SettingError
from ..helmholtz.metrics import read_rows
from ..helmholtz.runs import Run, holds_run
from ..helmholtz.settings import Settings
from .console import program, watch
from .exits import INTERRUPTED
from .progress import show, warn

SWEEP = "sweep.json"
"""The file that says what a sweep varies: the values as they were written, by the names of settings."""


def sweep(options: argparse.Namespace) -> int:
    """Train every combination that is not done yet, and print them from the best to the worst; the exit code."""
    out: Path = options.out
    names = [setting.name for setting in settings_of(Settings)]
    fixed = {name: getattr(options, name) for name in names if hasattr(options, name)}
    grid = varied(options.vary)
    if both := [name for name in grid if name in fixed]:
        raise SettingError(f"{both[0]} is varied and given; leave one of the two out.")
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    made = {place(out, chosen): Settings.resolve(**fixed, **chosen) for chosen in combinations}
    idle = [settings.without_effect for settings in made.values()]
    if idle[0] is not None and all(idle) and is_first():
        warn(idle[0])
    with replacing(out / SWEEP) as file:
        file.write(json.dumps(_with_earlier(out, grid), indent=2).encode() + b"\n")
    for number, (folder, settings) in enumerate(made.items(), 1):
        run = Run.resume(folder, **settings.as_dict()) if holds_run(folder) else Run.create(folder, settings)
        if run.finished:
            continue
        show(f"{number} of {len(made)}: {folder.name}")
        try:
            if not watch(run, pictures=False):
                show(f"stopped; the same command continues the sweep in {out}.")
                return INTERRUPTED
        except NonFiniteError as error:
            warn(f"{folder.name}: {error}")
    show(ranking(list(made)))
    show(f"a page with a heat map: {program()} report {shlex.quote(str(out))}")
    return 0


def varied(given: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """The values to try by the names of settings, from lists of a name and its values."""
    found: dict[str, list[str]] = {}
    for name, *values in given:
        name = name.replace("-", "_")
        if name in found or not values or len(set(values)) < len(values):
            raise SettingError(
                f"--vary takes each setting once, followed by its different values, for example --vary {name} 0.1 0.2."
            )
        for value in values:
            Settings.convert({name: value})
        found[name] = values
    return found


def place(out: Path, chosen: Mapping[str, str]) -> Path:
    """The run folder of a combination."""
    name = ",".join(f"{setting}={value}" for setting, value in chosen.items())
    return out / name.replace("/", "_").replace("\\", "_")


def grid_of(folder: Path) -> dict[str, list[str]] | None:
    """What the sweep in a folder varies; None if the folder holds no sweep."""
    try:
        found: Any = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        return {str(name): [str(value) for value in values] for name, values in found.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{folder / SWEEP} cannot be used: {error}") from None


def runs_of(folder: Path) -> list[Path]:
    """The run folders of the sweep in a folder, in the order of its grid."""
    grid = grid_of(folder) or {}
    chosen = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return [run for values in chosen if holds_run(run := place(folder, values))]


def ranking(folders: Sequence[Path]) -> str:
    """A table of runs, the best first, as the validation images judge; those without a row last."""
    judged = [(folder, rows[-1]) for folder in folders if (rows := read_rows(folder))]
    judged.sort(key=lambda pair: -pair[1].valid_log_likelihood)
    lines = []
    for folder, row in judged:
        figures = [with_error(row.valid_log_likelihood, row.valid_standard_error)]
        figures.append(with_error(row.test_log_likelihood, row.test_standard_error))
        lines.append([folder.name, f"{row.epoch:.4g}", f"{row.seconds:.1f}", *figures])
    lines += [[folder.name, "", "", "", ""] for folder in folders if not read_rows(folder)]
    return table(["run", "epochs", "seconds", "valid log-likelihood", "test log-likelihood"], lines)


def _with_earlier(out: Path, grid: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The grid, with the values that an earlier call varied in the same folder."""
    before = grid_of(out)
    if before is None:
        return dict(grid)
    if list(before) != list(grid):
        raise SettingError(f"{out} holds a sweep of {', '.join(before)}; vary these again, or give another --out.")
    return {name: [*before[name], *(v for v in values if v not in before[name])] for name, values in grid.items()}
