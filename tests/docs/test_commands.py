"""Every command that the README and the documentation show exists, with the flags and names that it is shown with."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagfisher.app import cli

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
TEXTS += sorted((ROOT / "docs").rglob("*.rst"))
PROGRAMS = sorted([*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")])
FIRST = ("dagfisher", "python", "make", "pip", "torchrun", "sphinx-build")
STANDS_FOR = {"…", "..."}
"""Words that stand for what the reader puts there."""


def shown(text: str) -> Iterator[str]:
    """The commands in literal blocks, and those between backquotes that are more than one word."""
    starts = tuple(f"{word} " for word in FIRST)
    for line in text.splitlines():
        command = line.strip().removeprefix("$ ")
        if command.startswith(starts) and line.startswith("   "):
            yield command
    for quoted in re.findall(r"``([^`]+)``", re.sub(r"\s+", " ", text)):
        if quoted.startswith(starts):
            yield quoted


def as_rest(markdown: str) -> str:
    """The commands of a Markdown text, written as reStructuredText."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fences if not language]
    outside = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    quoted = [f"`{quoted}`" for quoted in re.findall(r"`[^`\n]+`", outside)]
    return "\n".join([textwrap.indent("\n".join(blocks), "   "), *quoted])


def commands(path: Path) -> list[str]:
    """The commands of a page, or of the docstring of a program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    return list(shown(as_rest(text) if path.suffix == ".md" else text))


PAGES = [path for path in [*TEXTS, *PROGRAMS] if commands(path)]


def words_of(command: str) -> list[str]:
    """The words up to a comment, a pipe or a second command."""
    plain = re.split(r"\s+#|\s+\||&&|\s+— |;", command)[0]
    return [word for word in shlex.split(plain) if word not in STANDS_FOR]


def program_flags(path: Path) -> set[str]:
    return set(re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", path.read_text(encoding="utf-8"))) | {"--help"}


def flags_in(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def check_dagfisher(words: list[str]) -> None:
    """`dagfisher COMMAND …` parses; of a command without arguments, the text means the name alone."""
    if words[1:2] == ["COMMAND"]:
        return
    given = [*words[1:], "--help"] if len(words) <= 2 else words[1:]
    try:
        cli._parser().parse_args(given)
    except SystemExit as leaving:
        assert not leaving.code, " ".join(words)


def check_python(words: list[str]) -> None:
    rest = words[1:]
    if rest[:2] == ["-m", "dagfisher"]:
        return check_dagfisher(rest[1:])
    if rest[0] == "-m":
        assert rest[1] in {"benchmarks", "pytest", "venv", "pip"}, rest
        return None
    path = ROOT / rest[0]
    assert path.is_file(), rest[0]
    unknown = flags_in(rest) - program_flags(path)
    assert not unknown, f"{rest[0]} has no {unknown}"
    return None


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {word for word in words[1:] if "=" not in word} <= targets, words


def check_pip(words: list[str]) -> None:
    extras = re.findall(r"\[([\w,]+)\]", " ".join(words))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in ",".join(extras).split(",") if extras else []:
        assert re.search(rf"^{extra} = \[", project, flags=re.MULTILINE), extra


def check(command: str) -> None:
    words = words_of(command)
    match words[0]:
        case "dagfisher":
            check_dagfisher(words)
        case "python":
            check_python(words)
        case "make":
            check_make(words)
        case "pip":
            check_pip(words)
        case "torchrun" if "dagfisher" in words:
            check_dagfisher(words[words.index("dagfisher") :])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for command in commands(page):
        check(command)


def test_there_are_commands_of_every_kind_to_check() -> None:
    found = [words_of(command)[0] for page in PAGES for command in commands(page)]
    assert all(found.count(kind) >= 3 for kind in ("dagfisher", "python", "make", "pip", "torchrun"))
    assert len(found) > 150


@pytest.mark.parametrize(
    "wrong",
    [
        "dagfisher train --no-such-flag 3",
        "dagfisher trian",
        "python examples/no_such.py",
        "python examples/wrap_vae.py --no-such-flag",
        "make nothing",
        "pip install '.[no_such]'",
        "torchrun --nproc-per-node 2 -m dagfisher train --no-such-flag 3",
    ],
)
def test_a_command_that_does_not_exist_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(wrong)
