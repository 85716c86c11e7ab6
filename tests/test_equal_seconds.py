"""The comparisons at equal seconds run, resume and judge as they say; who is ahead, only long runs can say."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.datasets import DataError

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
EVERY = (
    *("mini-machine", "mnist-machine", "fashion-machine", "grey-machine", "conv-machine"),
    *("mini-vae", "mnist-vae", "fashion-vae", "mnist-conv-vae", "fashion-conv-vae", "large-vae", "norm-vae"),
    *("logistic", "poisson", "softmax"),
)


def script(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import models

    monkeypatch.setattr(models.common.datasets, "load", functools.partial(datasets.load, may_download=False))
    return models


@pytest.fixture
def timed_run(models: ModuleType) -> ModuleType:
    import timed_run

    return timed_run


def spec(timed_run: ModuleType, **changes: Any) -> Any:
    values = {"model": "logistic", "method": "sgd", "rate": 0.1, "batch": 100, "samples": None}
    return timed_run.Spec(**{**values, "seed": 0, "budget": 0.1, "stage": "quarter", **changes})


def test_the_list_holds_these_models(models: ModuleType) -> None:
    assert tuple(model.name for model in models.MODELS) == EVERY


@pytest.mark.parametrize("name", EVERY)
def test_a_model_learns_by_any_optimizer_and_its_figure_is_the_same_each_time(models: ModuleType, name: str) -> None:
    model = models.named(name)
    batch = models.BatchSetting(4, model.natural_batch.samples)

    def adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, lr=1e-3)

    try:
        learner, again = (model.start(adam, batch, seed=3) for _ in range(2))
    except DataError as error:
        pytest.skip(str(error))
    assert math.isfinite(float(learner.step())) and learner.seen == 4
    again.step()
    assert learner.value("valid") == again.value("valid") != learner.value("test")
    assert learner.model.training
    if not model.safety:
        natural = model.start(lambda groups: DAGNaturalGradient(groups, lr=1e-3), batch, seed=3)
        assert math.isfinite(float(natural.step()))


def test_rivals_have_no_hooks(models: ModuleType) -> None:
    counts = []
    for make in (DAGNaturalGradient, torch.optim.Adam):
        learner = models.named("mini-vae").start(make)
        counts.append(sum(len(module._forward_hooks) for module in learner.model.modules()))
    assert counts[0] > 0 == counts[1]


@pytest.mark.parametrize("method", ["soap", "muon"])
def test_the_rivals_of_the_extra_learn(models: ModuleType, method: str) -> None:
    pytest.importorskip("pytorch_optimizer")
    from rivals import maker

    model = models.named("mini-vae")
    learner = model.start(maker(model, method, 0.03), models.BatchSetting(100), 0)
    before = learner.value("valid")
    for _ in range(20):
        learner.step()
    assert learner.value("valid") > before + 10


def test_the_rate_stays_for_half_of_the_budget_and_falls_to_zero(timed_run: ModuleType) -> None:
    found = [timed_run.factor(share) for share in (0, 0.25, 0.5, 0.75, 1, 1.01)]
    assert found == [1, 1, 1, 0.5, 0, 0]


def test_a_divergence_is_a_result_with_its_reason(timed_run: ModuleType) -> None:
    record = timed_run.run(spec(timed_run, model="mini-vae", rate=1e4, stage="full"), points=2)
    assert "not finite" in record["diverged"] or "nan" in record["diverged"] or "inf" in record["diverged"]
    assert timed_run.final_value(record) == -math.inf
    json.dumps(record, allow_nan=False)
    with pytest.raises(ValueError, match="learning rate"):
        timed_run.run(spec(timed_run, rate=-1.0), points=2)


def test_an_error_of_numbers_is_a_divergence(timed_run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise torch.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(timed_run, "train", fails)
    record = timed_run.run(spec(timed_run), points=2)
    assert "no convergence" in record["diverged"] and timed_run.final_value(record) == -math.inf


def test_a_run_spends_its_budget_and_learns(timed_run: ModuleType) -> None:
    record = timed_run.run(spec(timed_run, stage="final", budget=0.2), points=5)
    seconds, epochs, valid, test = zip(*record["curve"], strict=True)
    assert record["diverged"] is None and len(seconds) == 6 and seconds[0] == 0
    assert list(seconds) == sorted(seconds) and 0.2 <= seconds[-1] < 0.3
    assert epochs[-1] == pytest.approx(100 * record["steps"] / 20_000, abs=1e-4)
    assert test[-1] > test[0] and valid[:-1] == (None,) * 5 and valid[-1] is not None
    assert {"cpu", "cores", "torch", "commit"} == record["on"].keys()


def test_seconds_to_a_value_lie_on_the_line_between_two_points(timed_run: ModuleType) -> None:
    from equal_seconds_report import crossing

    curve = [[0.0, 0, None, -9.0], [1.0, 1, None, -5.0], [2.0, 2, None, -6.0], [3.0, 3, None, -3.0]]
    assert crossing(curve, -7.0) == 0.5
    assert crossing(curve, -4.0) == pytest.approx(2 + 2 / 3)
    assert crossing(curve, -2.0) is None


def test_seconds_to_a_value_are_those_of_the_mean_over_the_seeds(timed_run: ModuleType) -> None:
    from equal_seconds_report import Outcome

    curves = [[[0.0, 0, None, -9.0], [2.0, 1, None, end]] for end in (-3.0, -5.0)]
    records = [{"diverged": None, "curve": curve} for curve in curves]
    assert Outcome("natural", [], records).seconds_to(-4.0) == 2.0  # one seed alone never has it
    assert Outcome("natural", [], records).seconds_to(-3.5) is None
    assert Outcome("natural", [], [records[0], {"diverged": "inf", "curve": []}]).seconds_to(-9.0) is None


def test_seconds_to_a_rivals_value_are_those_of_the_budget_that_gets_there_first(timed_run: ModuleType) -> None:
    from equal_seconds_report import needed, outcomes, shorter

    final = {"method": "natural", "rate": None, "stage": "final"}
    ends = {4.0: -3.0, 2.0: -4.0, 1.0: -6.0}
    runs = {
        spec(timed_run, **final, seed=seed, budget=budget): {
            "stage": "final",
            "diverged": None,
            "curve": [[0, 0, 0, -9], [budget, 1, 0, end]],
        }
        for budget, end in ends.items()
        for seed in (1, 2)
    }
    rival = {"stage": "final", "diverged": None, "curve": [[0, 0, 0, -9], [4, 1, 0, -5]]}
    runs[spec(timed_run, stage="final", budget=4.0)] = rival
    found = outcomes(runs, timed_run.named("logistic"), 4.0)
    assert needed(shorter(runs, found["natural"]), found["sgd"], 4.0) == ["1.60", "0.40"]
    assert needed([found["natural"]], found["sgd"], 4.0) == ["2.67", "0.67"]


def test_what_a_panel_cuts_is_said_below_it(
    timed_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equal_seconds_report import draw
    from matplotlib.figure import Figure

    ends = {"natural": (-10.0, -1.0), "adam": (-12.0, -2.0), "sgd": (-300.0, -400.0), "muon": (-9.0, None)}
    runs = {
        spec(timed_run, method=method, stage="final", budget=4.0): {
            "stage": "final",
            "diverged": None if end else "not finite",
            "curve": [[i / 2, i, 0, first + i / 8 * ((end or 0) - first)] for i in range(9)],
        }
        for method, (first, end) in ends.items()
    }
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: saved.append(figure))
    draw(runs, [timed_run.named("logistic")], lambda model: 4.0, tmp_path / "panel.png")
    (axes,) = saved[0].axes
    assert axes.get_xlabel().splitlines() == [
        "beginnings are below, from −12",
        "SGD is below and ends at −400",
        "Muon: 1 of 1 diverged (not shown)",
    ]
    assert [line.get_label() for line in axes.lines] == ["natural", "Adam"] and len(axes.collections) == 2
    assert -12 < axes.get_ylim()[0] < -8 < -1 < axes.get_ylim()[1]


def test_rivals_are_tuned_on_valid_then_run_on_test_and_nothing_runs_twice(models: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "equal_seconds.jsonl"
    arguments = ("--quick", "--models", "logistic", "--methods", "natural,adam", "--out", str(out))
    shown = script("equal_seconds.py", *arguments)
    lines = out.read_text().splitlines(keepends=True)
    runs = [json.loads(line) for line in lines]
    stages = [(run["method"], run["stage"]) for run in runs]
    tuning = [("adam", "quarter")] * 8 + [("adam", "full")] * 2
    assert stages == [("natural", "final")] * 4 + [*tuning, ("adam", "final")]
    assert [run["budget"] for run in runs[:4]] == pytest.approx([0.36, 0.18, 0.108, 0.09])
    runs, before, lines = runs[3:], lines[:3], lines[3:]
    settings = [(run["rate"], run["batch"]) for run in runs]
    ends = [run["curve"][-1][2] for run in runs]
    quarter = sorted(range(1, 9), key=lambda i: -ends[i])
    assert len(set(settings[1:9])) == 8
    assert settings[9:11] == [settings[i] for i in quarter[:2]]
    assert settings[11] == settings[9 if ends[9] >= ends[10] else 10]
    assert all(len(run["curve"]) == 21 and run["seed"] == 1 for run in runs if run["stage"] == "final")
    assert out.with_suffix(".png").stat().st_size > 10_000
    report = script("equal_seconds.py", *arguments, "--report")
    assert shown.endswith(report) and "logistic regression" in report and "Adam, rate" in report
    out.write_text("".join(before + lines[:5] + lines[6:]))
    script("equal_seconds.py", *arguments)
    again = [json.loads(line) for line in out.read_text().splitlines()[3:]]
    assert again[:11] == runs[:5] + runs[6:] and settings[5] == (again[11]["rate"], again[11]["batch"])

    from equal_seconds import Chain, Plan, Results

    results, logistic = Results(out), models.named("logistic")
    assert not Chain(logistic, "natural", Plan(quick=True), results).missing()
    assert len(Chain(logistic, "natural", Plan(quick=True), results, redo=True).missing()) == 4
    assert len(Chain(logistic, "natural", Plan(), results).missing()) == 12


def test_steps_of_vaes_are_timed_and_those_with_other_threads_kept(tmp_path: Path) -> None:
    out = tmp_path / "vae_step.json"
    out.write_text('{"2": "kept"}')
    shown = script("vae_step.py", "--quick", "--threads", "1", "--out", str(out))
    found = json.loads(out.read_text())
    assert set(found) == {"1", "2"} and found["2"] == "kept"
    rows = found["1"]["rows"]
    assert [(row["must"], row["aim"]) for row in rows] == [(1.4, 1.2), (1.25, 1.1), (1.4, 1.15), (3, 2)]
    for row in rows:
        assert row["natural_ms"] > 0 and row["ratio"] == pytest.approx(row["natural_ms"] / row["plain_ms"])
        assert row["name"] in shown
