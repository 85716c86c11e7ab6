"""What `docs/internals.rst` says of the code is true: the rooms, their order, and the functions that a batch meets."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher.fisher import statistics
from dagfisher.helmholtz import HelmholtzMachine, Trainer

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dagfisher"
PAGE = (ROOT / "docs" / "internals.rst").read_text(encoding="utf-8")
ROWS = re.findall(r"^   \* - (``\w+``(?:, ``\w+``)*)$", PAGE, flags=re.MULTILINE)
ROOMS = [re.findall(r"``(\w+)``", row) for row in ROWS]
ROLE = re.compile(r":(func|meth|class|mod):`(?:[^`<]*<)?~?(dagfisher[\w.]*)>?`")


def resolved(name: str) -> Any:
    """What a dotted name means. A function may hide the module of its name, as `dagfisher.declare` does."""
    path = name.split(".")
    for modules in range(1, len(path) + 1):
        try:
            found: Any = importlib.import_module(".".join(path[:modules]))
            for part in path[modules:]:
                found = getattr(found, part)
            return found
        except (AttributeError, ModuleNotFoundError):
            continue
    raise AssertionError(f"there is no {name}")


# Names and rooms


def test_every_name_on_the_page_exists_and_is_what_its_role_says() -> None:
    roles = ROLE.findall(PAGE)
    literals = re.findall(r"``(dagfisher\.[\w.]+)``", PAGE)
    assert len(roles) > 80 and literals
    for role, name in roles:
        found = resolved(name)
        kinds = {"class": inspect.isclass, "mod": inspect.ismodule}
        assert kinds.get(role, callable)(found), name
    for name in literals:
        resolved(name)


def test_the_rooms_are_those_of_the_package() -> None:
    there = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    there |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(room for row in ROOMS for room in row) == sorted(there)


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports from, wherever in the file."""
    package = ["dagfisher", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {f"{alias.name}.".split(".")[1] for alias in node.names if alias.name.startswith("dagfisher")}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module.split(".") if node.module else [])]
            if full == ["dagfisher"]:
                found |= {alias.name for alias in node.names}
            elif full[0] == "dagfisher":
                found.add(full[1])
    return found


def test_a_room_imports_only_from_those_above_it() -> None:
    rank = {room: i for i, row in enumerate(ROOMS) for room in row}
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for other in imported_rooms(path) & set(rank):
            assert rank[other] < rank[room] or other == room or rank[other] == rank[room] == 0, f"{path}: {other}"
            checked += 1
    assert checked > 100


# The four ways


def steps_of(title: str) -> list[str]:
    """The functions and methods in the numbered items of a section, in their order, each where it comes first."""
    section = re.search(rf"^{re.escape(title)}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert section is not None
    items = re.findall(r"^\d+\. .*?(?=^\S|\Z)", section[1], flags=re.DOTALL | re.MULTILINE)
    assert len(items) >= 4
    return [name for item in items for role, name in ROLE.findall(item) if role in ("func", "meth")]


def code_of(name: str) -> CodeType:
    function = inspect.unwrap(resolved(name))
    code: CodeType = getattr(function, "__func__", function).__code__
    return code


def calls(run: Callable[[], None]) -> list[CodeType]:
    """Every function that is called, in the order of the calls."""
    found: list[CodeType] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def bernoulli(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(3, 4)
    dagfisher.declare(layer, "bernoulli")
    opt = dagfisher.DAGNaturalGradient(layer.parameters(), update_every=2)
    for _ in range(2):
        opt.zero_grad()
        binary_cross_entropy_with_logits(layer(torch.rand(10, 3)), torch.ones(10, 4)).backward()
        opt.step()


def convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ACCUMULATE", 2**8)
    layer = nn.Conv2d(2, 3, 3)
    dagfisher.declare(layer, "bernoulli")
    opt = dagfisher.DAGNaturalGradient(layer.parameters())
    layer(torch.rand(10, 2, 8, 8)).sigmoid().sum().backward()
    opt.step()


def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    dagfisher.declare(model[0], "deterministic")
    dagfisher.declare(model[2], "bernoulli")
    opt = dagfisher.DAGNaturalGradient(model.parameters())
    output = model(torch.rand(10, 3))
    opt.sample_fisher()
    output.sigmoid().sum().backward()
    opt.step()


def nrws(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(HelmholtzMachine([9, 6, 4]), "nrws", samples=3, update_every=1)
    for _ in range(2):
        trainer.step(torch.bernoulli(torch.full((5, 9), 0.5)))


WAYS = {
    "A Bernoulli layer": bernoulli,
    "A convolution": convolution,
    "A deterministic layer": deterministic,
    "A step of NRWS": nrws,
}


@pytest.mark.parametrize("title", WAYS)
def test_a_batch_meets_these_functions_in_this_order(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    called = calls(lambda: WAYS[title](monkeypatch))
    at = 0
    for name in steps_of(title):
        code = code_of(name)
        assert code in called, f"{name} is not called"
        assert code in called[at:], f"{name} is not called after what is named before it"
        at = called.index(code, at)
