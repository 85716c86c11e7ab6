"""Whether results still describe the code that they measure.

A result belongs to the commit that its records name, or else to the commit that brought its file. It is stale if code
that it measures does something else in the current commit, if it is older than a number of days, or if a commit that it
names is not in the history of the current one, so that nobody can tell. Comments, docstrings and the layout of lines do
nothing.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from registry import ROOT, UNRELATED

AGE = 365.0
"""Days after which results are stale whatever has changed."""


@dataclass(frozen=True)
class State:
    """When results were measured, and what has happened since."""

    commit: str | None
    date: str | None
    changed: tuple[str, ...]
    """The files of the measured code that do something else now."""
    old: bool
    lost: tuple[str, ...] = ()
    """Commits that records name and the history does not have."""

    @property
    def stale(self) -> bool:
        """They may not describe the code as it is."""
        return bool(self.changed or self.lost) or self.old

    def __str__(self) -> str:
        unknown = f"{' and '.join(self.lost)}, not in this history" if self.lost else ""
        if self.commit is None:
            return unknown or "not measured at a known commit"
        count = len(self.changed)
        since = [f"{count} file{'s' * (count > 1)} of its code changed since"] if self.changed else []
        since += ["it is old"] if self.old else []
        since += [f"some of it measured at {unknown}"] if self.lost else []
        return f"{self.commit}, {self.date}" + (f"; stale: {' and '.join(since)}" if since else "")


def git(root: Path, *command: str) -> str | None:
    """What git says; None if it fails or there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *command], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commits_named(path: Path) -> set[str]:
    """The commits that the records of a file name, without the plus of uncommitted changes."""
    return set(re.findall(r'"commit": ?"([0-9a-f]{7,40})\+?"', path.read_text(encoding="utf-8")))


def state(path: Path, measures: Iterable[str], age: float = AGE, root: Path = ROOT) -> State:
    """When the results in a file were measured (of several commits the first), and what has happened since."""
    if git(root, "rev-parse", "HEAD") is None:
        return State(None, None, (), False)
    named = commits_named(path)
    lost = tuple(sorted(each for each in named if git(root, "merge-base", "--is-ancestor", each, "HEAD") is None))
    known = named.difference(lost)
    if not named:
        known = set(filter(None, [git(root, "log", "-1", "--format=%h", "--", str(path))]))
    times = {commit: int(git(root, "show", "-s", "--format=%ct", commit) or 0) for commit in known}
    if not times:
        return State(None, None, (), False, lost)
    first = min(times, key=lambda commit: times[commit])
    date = time.strftime("%Y-%m-%d", time.gmtime(times[first]))
    old = time.time() - times[first] > 86_400 * age
    return State(first[:9], date, changed(first, tuple(measures), root), old, lost)


def changed(commit: str, measures: tuple[str, ...], root: Path = ROOT) -> tuple[str, ...]:
    """The measured files that do something else in the current commit than in that one."""
    then, now = (_files(at, measures, root) for at in (commit, "HEAD"))
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return tuple(name for name in differing if _meaning(then.get(name), root) != _meaning(now.get(name), root))


def _files(commit: str, measures: tuple[str, ...], root: Path) -> dict[str, str]:
    """The blobs of the measured files in a commit, by their paths; of folders without what no figure depends on."""
    found = {}
    for line in (git(root, "ls-tree", "-r", commit, "--", *measures) or "").splitlines():
        blob, name = line.split(maxsplit=2)[2].split("\t")
        if name in measures or name not in UNRELATED:
            found[name] = blob
    return found


@functools.cache
def _meaning(blob: str | None, root: Path) -> str | None:
    """What a file does, as text: for Python its syntax tree without docstrings; None where there is no file."""
    text = None if blob is None else git(root, "cat-file", "blob", blob)
    return text if text is None else meaning(text)


def meaning(text: str) -> str:
    """The syntax tree of Python code without its docstrings, as text; other text as it is."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [part for part in node.body if not _is_docstring(part)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_docstring(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
