"""Tables and pictures of the README and the documentation from the files of results, and which of these are stale."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from registry import BENCHMARKS, ROOT, Benchmark, named
from stale import AGE, State, state
from tables import TABLES

from dagfisher.app import table

PAGES = ROOT / "docs" / "results"
MARK = ".. measured:"
"""Begins the lines of an include that depend on later commits; everything else depends on the results alone."""


def includes(benchmark: Benchmark) -> dict[str, str]:
    """The tables of a benchmark for pages, by the names of their files; they depend on its results alone.

    A table with a title goes to the file of the table before it, and so does the picture of a benchmark that has them.
    """
    source = f".. Made by `python -m benchmarks report` from benchmarks/results/{benchmark.results[0]}; do not edit."
    found: dict[str, str] = {}
    for each in TABLES[benchmark.name]():
        if each.title:
            found[list(found)[-1]] += f"\n{each.rst()}\n"
            continue
        suffix = f"-{len(found) + 1}" if found else ""
        found[f"{benchmark.name}{suffix}.inc"] = f"{source}\n\n{each.rst()}\n"
    picture = benchmark.path.with_suffix(".png")
    if benchmark.begins_empty and picture.exists():
        address = picture.relative_to(ROOT).as_posix()
        found[list(found)[-1]] += f"\n.. image:: ../{address}\n   :alt: Curves: {benchmark.shows}.\n"
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


def shown() -> Iterator[Benchmark]:
    """The benchmarks whose tables are on pages: those that have results, and those that begin empty."""
    for benchmark in BENCHMARKS:
        if benchmark.name in TABLES and (benchmark.begins_empty or benchmark.path.exists()):
            yield benchmark


def write(age: float = AGE, pictures: bool = True, folder: Path = PAGES, names: Collection[str] = ()) -> Iterator[Path]:
    """Draw the pictures and write the includes of these benchmarks, by default of all; gives the files.

    If it is all of them, includes that are no longer made are removed. With `equal_seconds` go the tables and the
    picture of the README and the front page, which show its results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set() if names else set(folder.glob("*.inc"))
    for benchmark in shown():
        if names and benchmark.name not in names:
            continue
        if pictures and benchmark.name in PICTURES and benchmark.path.exists():
            PICTURES[benchmark.name]()
            yield benchmark.path.with_suffix(".png")
        end = mark(state(benchmark.path, benchmark.code, age)) if benchmark.path.exists() else ""
        for name, text in includes(benchmark).items():
            (folder / name).write_text(text + end, encoding="utf-8")
            before.discard(folder / name)
            yield folder / name
        if benchmark.name == "equal_seconds":
            yield from importlib.import_module("front_page").write(benchmark.path, pictures)
    for path in before:
        path.unlink()


def listing(age: float = AGE) -> str:
    """A line for each benchmark, with the state of its results."""
    lines = []
    for each in BENCHMARKS:
        hours = f"{each.minutes / 60:.0f} h" if each.minutes >= 60 else f"{each.minutes:g} min"
        found = "no results yet" if not each.path.exists() else str(state(each.path, each.code, age))
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
    "search": _draw_search,
    "solvers": _draw_solvers,
}
"""What draws the picture of a benchmark beside its results."""
