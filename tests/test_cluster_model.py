"""The model of several processes, against what was measured and what the optimizer counts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def model() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        before = set(sys.modules)
        import cluster_model

        yield cluster_model
        for name in set(sys.modules) - before:
            if name in ("cluster_model", "distributed"):
                del sys.modules[name]


def test_one_process_sends_nothing_and_two_receive_half_of_all(model: ModuleType) -> None:
    layers = [(60, 10, 4)]
    assert model.refresh(layers, 50, model.Cluster(1, 1e9, 1e9, 1e-4)).received == 0
    two = model.refresh(layers, 50, model.Cluster(2, 1e9, 1e9, 1e-4))
    inverses = 4 * 11**2 + 60 * 11  # what the dense solver expects to keep
    assert two.received == pytest.approx(0.5 * 4 * (60 * (10 + 4 + 1) + 4 * 11 + inverses))
    assert two.sending == pytest.approx(model.MESSAGES * 1e-4 + two.received / 1e9)


def test_predictions_are_near_what_was_measured(model: ModuleType) -> None:
    found = json.loads(model.ESTIMATES.read_text())
    assert found["check"] == model.check(json.loads(model.RESULTS.read_text()))
    assert [row["processes"] for row in found["check"]] == [1, 2, 4]
    for row in found["check"]:
        for what in ("refresh", "reuse step", "MB"):
            assert row[f"{what}, predicted"] == pytest.approx(row[f"{what}, measured"], rel=0.3), (row, what)


def test_the_page_shows_the_tables_of_the_results(model: ModuleType) -> None:
    """`test_reports.py` holds the tables themselves to the results."""
    page = (ROOT / "docs" / "distributed.rst").read_text()
    for name in (model.RESULTS.stem, model.ESTIMATES.stem):
        assert f".. include:: results/{name}.inc" in page and f".. include:: results/{name}-2.inc" in page
    measured = json.loads(model.RESULTS.read_text())["milliseconds"]
    for what in ("refresh", "default step"):
        assert f"{measured['1'][what] / measured['2'][what]:.2f}" in page
