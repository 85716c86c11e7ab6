"""Tables and pictures of the documentation from the files of results, and which of these are stale.

A result belongs to the commit that its records name, or else to the commit that brought its file. It is stale if the
code that it measures has changed in a later commit, or if that commit is older than a number of days.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from registry import BENCHMARKS, ROOT, Benchmark, named
from tables import TABLES

from dagfisher.app import table

AGE = 365.0
"""Days after which results are stale whatever has changed."""
PAGES = ROOT / "docs" / "results"
MARK = ".. measured:"
"""Begins the lines of an include that depend on later commits; everything else depends on the results alone."""


@dataclass(frozen=True)
class State:
    """When results were measured, and what has happened since."""

    commit: str | None
    date: str | None
    changes: int
    old: bool

    @property
    def stale(self) -> bool:
        """They may not describe the code as it is."""
        return self.changes > 0 or self.old

    def __str__(self) -> str:
        if self.commit is None:
            return "not measured at a known commit"
        since = [f"its code has changed in {self.changes} later commits"] if self.changes else []
        since += ["it is old"] if self.old else []
        return f"{self.commit}, {self.date}" + (f"; stale: {' and '.join(since)}" if since else "")


def git(root: Path, *command: str) -> str | None:
    """What git says; None if it fails or there is none."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commits_named(path: Path) -> set[str]:
    """The commits that the records of a file name, without the plus of uncommitted changes."""
    return set(re.findall(r'"commit": ?"([0-9a-f]{7,40})\+?"', path.read_text(encoding="utf-8")))


def state(path: Path, measures: Iterable[str], age: float = AGE, root: Path = ROOT) -> State:
    """When the results in a file were measured (of several commits the first), and what has happened since."""
    times = {}
    for commit in commits_named(path):
        when = git(root, "show", "-s", "--format=%ct", commit)
        if when:
            times[commit] = int(when)
    if not times:
        line = git(root, "log", "-1", "--format=%h %ct", "--", str(path))
        if line:
            commit, when = line.split()
            times[commit] = int(when)
    if not times:
        return State(None, None, 0, False)
    first = min(times, key=lambda commit: times[commit])
    changes = git(root, "rev-list", "--count", f"{first}..HEAD", "--", *measures)
    date = time.strftime("%Y-%m-%d", time.gmtime(times[first]))
    return State(first[:9], date, int(changes or 0), time.time() - times[first] > 86_400 * age)


def includes(benchmark: Benchmark) -> dict[str, str]:
    """The tables of a benchmark for pages, by the names of their files; they depend on its results alone."""
    source = f".. Made by `python -m benchmarks report` from benchmarks/results/{benchmark.results[0]}; do not edit."
    found = {}
    for i, each in enumerate(TABLES[benchmark.name](), 1):
        suffix = f"-{each.name}" if each.name else f"-{i}" if i > 1 else ""
        found[f"{benchmark.name}{suffix}.inc"] = f"{source}\n\n{each.rst()}\n"
    return found


def mark(found: State) -> str:
    """The last lines of an include: a comment, and a sentence for readers if the results are stale."""
    lines = [f"{MARK} {found}"]
    if found.stale:
        lines += ["", f"*Measured at commit {found}.*"]
    return "\n" + "\n".join(lines) + "\n"


def unmarked(text: str) -> str:
    """An include without its mark."""
    return text.partition(f"\n{MARK}")[0]


def measured() -> Iterator[Benchmark]:
    """The benchmarks that have results and tables."""
    for benchmark in BENCHMARKS:
        if benchmark.name in TABLES and benchmark.path.exists():
            yield benchmark


def write(age: float = AGE, pictures: bool = True, folder: Path = PAGES) -> Iterator[Path]:
    """Write every include, and draw every picture; gives the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for benchmark in measured():
        found = mark(state(benchmark.path, benchmark.measures, age))
        for name, text in includes(benchmark).items():
            (folder / name).write_text(text + found, encoding="utf-8")
            yield folder / name
        if pictures and benchmark.name in PICTURES:
            PICTURES[benchmark.name]()
            yield benchmark.path.with_suffix(".png")


def listing(age: float = AGE) -> str:
    """A line for each benchmark, with the state of its results."""
    lines = []
    for each in BENCHMARKS:
        hours = f"{each.minutes / 60:.0f} h" if each.minutes >= 60 else f"{each.minutes:g} min"
        found = "no results yet" if not each.path.exists() else str(state(each.path, each.measures, age))
        lines.append([each.name, each.shows, hours, each.results[0], found])
    return table(["name", "shows", "one core", "results", "measured"], lines, left=5)


def _draw_runs(name: str) -> None:
    module, path = importlib.import_module(name), named(name).path
    module.plot(module.Results(path, json.loads(path.read_text())["settings"]), path.with_suffix(".png"))


def _draw_solvers() -> None:
    path = named("solvers").path
    importlib.import_module("solvers_plot").draw(json.loads(path.read_text()), path.with_suffix(".png"))


def _draw_search() -> None:
    module, path = importlib.import_module("search"), named("search").path
    module.draw(module.read(path), path.with_suffix(".png"))


def _draw_equal_seconds() -> None:
    script, drawer = (importlib.import_module(name) for name in ("equal_seconds", "equal_seconds_report"))
    path = named("equal_seconds").path
    drawer.draw(script.Results(path).runs, script.MODELS, script.Plan().seconds, path.with_suffix(".png"))


def _draw_peers() -> None:
    script, drawer = (importlib.import_module(name) for name in ("peers", "peers_report"))
    path = named("peers").path
    models = [script.named(name) for name in script.SECONDS]
    drawer.draw(script.Results(path).runs, models, path.with_suffix(".png"))


def _draw_published() -> None:
    script, drawer = (importlib.import_module(name) for name in ("published", "published_report"))
    path = named("published").path
    drawer.draw(script.read(path), path.with_suffix(".png"))


PICTURES: dict[str, Callable[[], None]] = {
    "equal_seconds": _draw_equal_seconds,
    "peers": _draw_peers,
    "published": _draw_published,
    "mini_mnist": lambda: _draw_runs("mini_mnist"),
    "mnist": lambda: _draw_runs("mnist"),
    "search": _draw_search,
    "solvers": _draw_solvers,
}
"""What draws the picture of a benchmark beside its results."""
