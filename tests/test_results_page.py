"""The figures on the page of results are those that the benchmarks' own tables make of the kept results."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def expanded(page: Path) -> str:
    """The text of a page with what it includes, without emphasis."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^\.\. include:: (\S+)", text, flags=re.MULTILINE)
    return "\n".join([text, *((page.parent / name).read_text(encoding="utf-8") for name in found)]).replace("**", "")


PAGE = expanded(ROOT / "docs" / "results.rst")


@pytest.mark.parametrize(("name", "columns"), [("ablation", (3, 4)), ("mnist", (4,))])
def test_every_figure_of_a_table_is_on_the_page(
    name: str, columns: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module(name)
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    found: list[list[str]] = []
    monkeypatch.setattr(benchmark, "table", lambda heads, rows: found.extend(rows) or "")
    benchmark.show(benchmark.Results(path, json.loads(path.read_text())["settings"]))
    assert found
    for row in found:
        for column in columns:
            if column < len(row):
                assert row[column].replace("-", "−") in PAGE, row


def test_the_figures_of_lateral_connections_are_in_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("lateral")
    path = ROOT / "benchmarks" / "results" / "lateral.json"
    found: list[list[str]] = []
    monkeypatch.setattr(benchmark, "table", lambda heads, rows: found.extend(rows) or "")
    benchmark.show(benchmark.Results(path, {}))
    page = (ROOT / "docs" / "helmholtz.rst").read_text(encoding="utf-8").replace("**", "")
    assert len(found) == 6
    for row in found:
        assert "\n".join(f"     - {cell.replace('-', '−') if cell[0] == '-' else cell}" for cell in row[1:]) in page, (
            row
        )
        counted = benchmark.parameters(benchmark.machine_of(row[0]))
        assert row[2] == f"{counted:,}"


def test_the_table_of_searches_is_the_one_of_the_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("search")
    shown = benchmark.show(benchmark.read(ROOT / "benchmarks" / "results" / "search.jsonl"))
    page = (ROOT / "docs" / "searching.rst").read_text(encoding="utf-8")
    assert "\n".join(f"   {line}" for line in shown.splitlines()) in page


def test_the_table_of_second_moments_is_the_one_of_the_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("second_moment")
    lines = benchmark.RESULTS.read_text(encoding="utf-8").splitlines()
    shown = benchmark.show([json.loads(line) for line in lines])
    page = (ROOT / "docs" / "steps.rst").read_text(encoding="utf-8")
    assert "\n".join(f"   {line}" for line in shown.splitlines()) in page


def test_the_figures_of_prototypes_are_those_of_the_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("prototypes")
    found = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "sources.rst").read_text(encoding="utf-8")
    assert found.keys() == benchmark.PROTOTYPES.keys()
    for name in ("independent pixels, test log-likelihood", "fully visible, Adam, 5,000 steps of 100"):
        assert f"     - {found[name].replace('-', '−')}\n" in page
    assert f"     - {found['fully visible, 50 natural steps of 2,000'].replace('-', '−')}\n" in page
