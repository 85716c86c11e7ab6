"""The benchmarks of the solvers run, and what they measure is right; how fast, only a quiet machine can say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, str(BENCHMARKS / "solvers.py"), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (out / "solvers.png").stat().st_size > 10_000
    found: dict[str, Any] = json.loads((out / "solvers.json").read_text())
    return found


def worst(row: dict[str, Any]) -> float:
    return max(row["error"], row["later_error"])


def test_exact_solvers_agree_with_float64_on_a_trained_layer(result: dict[str, Any]) -> None:
    by_name = {row["solver"]: row for row in result["trained_layer"]}
    for name in ("textbook", "dense", "woodbury"):
        assert worst(by_name[name]) < 1e-3, name


def test_conjugate_and_auto_are_within_the_wanted_error_on_a_trained_layer(result: dict[str, Any]) -> None:
    for row in result["trained_layer"]:
        if row["solver"].startswith(("conjugate", "auto")):
            assert worst(row) <= 1e-2, row["solver"]


def test_fresh_solutions_of_synthetic_layers_are_as_good_as_the_tolerance(result: dict[str, Any]) -> None:
    rows = result["sweep"]["rows"]
    assert {row["place"]["axis"] for row in rows} == {"n", "d", "l"}
    for row in rows:
        if row["solver"].startswith("conjugate"):
            assert row["error"] < 10 * result["tolerance"], row
        elif row["solver"] != "diagonal":
            assert worst(row) < 1e-3, row


def test_every_growth_exponent_is_a_number(result: dict[str, Any]) -> None:
    for entry in result["sweep"]["exponents"]:
        assert all(math.isfinite(entry[name]) for name in ("fresh_ms", "reused_ms", "kept_bytes")), entry


def test_masked_and_coupled_solvers_are_as_good_as_they_were_asked_to_be(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "dag.py"), "--out", str(tmp_path / "dag.json")]
    done = subprocess.run([*command, "--quick"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "dag.json").read_text())
    assert {row["mask"] for row in found["masked"]} == {"strict lower triangle", "random half"}
    assert {row["update_every"] for row in found["coupled"]} == {1, 10, 100, 1000}
    for row in found["masked"]:
        assert row["error"] <= 1e-2 and row["dense_error"] < 1e-4 and row["times_faster"] > 4, row
    for row in found["coupled"]:
        assert max(row["error"], row["diagonal_error"]) < 4e-2, row
    again = subprocess.run([*command, "--table"], capture_output=True, text=True, timeout=300)
    assert again.stdout == done.stdout
