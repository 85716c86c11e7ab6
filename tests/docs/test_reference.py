"""The reference has a page for every public name, and its tables are made from the code."""

from __future__ import annotations

import importlib
import re
import runpy
import textwrap
from pathlib import Path

import pytest

import dagfisher
from dagfisher._settings import settings_of
from dagfisher.helmholtz import Settings
from dagfisher.optim import OptimizerSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.rst")))
MODULES = [
    "",
    ".families",
    ".maps",
    ".solvers",
    ".optim",
    ".testing",
    ".helmholtz",
    ".probes",
    ".inspect",
    ".importance",
    ".search",
    ".datasets",
    ".app",
]


@pytest.mark.parametrize("module", [f"dagfisher{name}" for name in MODULES])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    names = importlib.import_module(module).__all__
    if re.search(rf"automodule:: {re.escape(module)}\n   :members:", REFERENCE):
        return
    for name in names:
        dotted = f"{module}.{name}"
        listed = re.search(rf":: {re.escape(dotted)}$", REFERENCE, flags=re.MULTILINE)
        elsewhere = (module, name) == ("dagfisher.optim", "DAGNaturalGradient")  # where users import it from
        assert listed or elsewhere, dotted


def test_no_page_has_a_name_that_sphinx_gives_to_a_page_of_its_own() -> None:
    """Sphinx would overwrite it without a warning."""
    assert not {"search", "genindex", "py-modindex"} & {page.stem for page in DOCS.glob("*.rst")}


def test_every_member_of_a_room_that_is_listed_whole_has_a_docstring() -> None:
    for module in re.findall(r"automodule:: (\S+)\n   :members:", REFERENCE):
        room = importlib.import_module(module)
        for name in getattr(room, "__all__", []):
            assert name.isupper() or getattr(room, name).__doc__, f"{module}.{name}"


@pytest.mark.parametrize("kind", [OptimizerSettings, Settings])
def test_the_table_of_settings_has_every_setting_and_its_default(kind: type) -> None:
    extension = runpy.run_path(str(DOCS / "settings_table.py"))
    assert f"settings-table:: {kind.__module__.rpartition('.')[0]}.{kind.__name__}" in REFERENCE
    shown = dict(re.findall(r"\* - ``(\w+)``\n +- (?:``(.*)``)?\n", extension["table"](kind)))
    expected = {entry.name: "" if entry.default is None else repr(entry.default) for entry in settings_of(kind)}
    assert shown == expected


def test_the_table_on_the_page_of_solvers_is_what_choose_solver_says() -> None:
    page = (DOCS / "solvers.rst").read_text(encoding="utf-8")
    choice = dagfisher.choose_solver(rows=320, parents=301, units=784, update_every=1000)
    assert "choose_solver(rows=320, parents=301, units=784, update_every=1000)" in page
    assert textwrap.indent(str(choice), "   ") in page
