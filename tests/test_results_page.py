"""The figures on the page of results are those that the benchmarks' own tables make of the kept results."""

from __future__ import annotations

import importlib
import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def expanded(page: Path) -> str:
    """The text of a page with what it includes, without emphasis."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^\.\. include:: (\S+)", text, flags=re.MULTILINE)
    return "\n".join([text, *((page.parent / name).read_text(encoding="utf-8") for name in found)]).replace("**", "")


PAGE = expanded(ROOT / "docs" / "results.rst")


@pytest.mark.parametrize(("name", "columns"), [("ablation", (3, 4))])
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


def test_machines_with_and_without_lateral_connections_have_the_parameters_that_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("lateral")
    found: list[list[str]] = []
    monkeypatch.setattr(benchmark, "table", lambda heads, rows: found.extend(rows) or "")
    benchmark.show(benchmark.Results(ROOT / "benchmarks" / "results" / "lateral.json", {}))
    assert len(found) == 6
    for row in found:
        assert row[2] == f"{benchmark.parameters(benchmark.machine_of(row[0])):,}"


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("helmholtz", "lateral"),
        ("searching", "search"),
        ("steps", "second_moment"),
        ("importance", "importance"),
        ("importance", "importance-2"),
    ],
)
def test_a_page_that_tells_what_was_measured_has_the_table_of_the_kept_results(page: str, name: str) -> None:
    text = (ROOT / "docs" / f"{page}.rst").read_text(encoding="utf-8")
    assert f"\n.. include:: results/{name}.inc\n" in text
    assert f"benchmarks/{name.partition('-')[0]}.py``" in text


def sources_row(title: str) -> list[str]:
    """The other cells of the row with this title in the tables of the page on the sources."""
    page = (ROOT / "docs" / "sources.rst").read_text(encoding="utf-8")
    (found,) = (row for row in re.split(r"\n   \* - ", page)[1:] if " ".join(row.split()).startswith(title + " -"))
    return [" ".join(cell.split()) for cell in re.split(r"\n     -", found)[1:]]


def test_the_figures_of_prototypes_are_those_of_the_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("prototypes")
    found = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))
    names = list(benchmark.PROTOTYPES)
    assert list(found) == names
    iterations = "iterations to an error of 1 %, in a shared basis / Jacobi"
    for title, of_row in {
        "miniMNIST B, independent pixels, test log-likelihood": names[:1],
        "fully visible net, Adam, 5,000 steps": names[1:2],
        "fully visible net, 50 natural steps of 2,000 images": names[2:3],
        f"masked blocks of 196 units, 500 rows, damping 0.1: {iterations}": names[3:5],
        "product with coupled logits, error": names[6:],
    }.items():
        for kept, cell in zip((benchmark.PROTOTYPES, found), sources_row(title), strict=False):
            assert cell == " / ".join(re.sub("^-", "−", kept[name]) for name in of_row), title
    assert sources_row("dense blocks over the matrix-free solve, time")[1].startswith(f"{found[names[5]]} times")


def test_the_figures_of_second_moments_are_the_medians_of_the_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("second_moment")
    kept = [json.loads(line) for line in benchmark.RESULTS.read_text(encoding="utf-8").splitlines()]
    before, now = sources_row("NRWS, miniMNIST, 2 epochs: no second moment / of elements / units / layers")[:2]
    assert before == " / ".join(f"−{-value:.2f}" for value in benchmark.PROTOTYPE.values())
    medians = []
    for way in benchmark.PROTOTYPE:
        runs = [r for r in kept if (r["model"], r["way"]) == ("mini-machine", way) and r["seed"] in benchmark.SEEDS]
        medians.append(statistics.median(benchmark.height(run) for run in runs))
    assert now == " / ".join(f"−{-value:.2f}" for value in medians)
