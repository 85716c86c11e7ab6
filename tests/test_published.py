"""The experiments about published figures are complete, resume exactly, and are reported as they were run."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dagfisher.errors import NonFiniteError
from dagfisher.helmholtz import PRESETS, Settings

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("published")


def jobs(published: ModuleType) -> list[Any]:
    return [job for experiment in published.BY_NAME.values() for job in experiment.jobs(2.0)]


def small(published: ModuleType, **more: Any) -> Any:
    settings = {"data": "three-by-three", "algorithm": "nrws", "layers": (4, 2), "batch_size": 300, "samples": 3}
    return published.Job("tiny", "row", 1, settings, **{"epochs": 3, **more})


def test_every_job_has_settings_that_can_be_and_a_name_of_its_own(published: ModuleType) -> None:
    every = jobs(published)
    assert len({job.name for job in every}) == len(every) > 200
    for name, experiment in published.BY_NAME.items():
        assert {job.experiment for job in experiment.jobs(2.0)} == {name}
    for job in every:
        resolved = Settings.resolve(**job.settings)
        assert resolved.algorithm == job.settings["algorithm"]
        assert (job.epochs is None) == (job.hours is not None)
        if job.epochs is not None:
            assert resolved.epochs == job.epochs, job.name


def test_a_run_that_is_stopped_at_every_step_ends_as_an_undisturbed_one(
    published: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "PART", 7)
    job = small(published, final=(18, 20))
    whole = published.run(job, tmp_path / "whole", time.time() + 600, None)
    stops = 0
    while True:
        try:
            parts = published.run(job, tmp_path / "parts", 0.0, None)
            break
        except published.Enough:
            stops += 1
    # Six steps an epoch, and no stop after the last; three parts of the last figure, and none after the last.
    assert stops == 3 * 6 - 1 + 3 - 1
    states = [torch.load(tmp_path / name / f"{job.name}.pt", weights_only=True) for name in ("whole", "parts")]
    for one, other in zip(*(state["trainer"]["machine"].values() for state in states), strict=True):
        assert torch.equal(one, other)
    assert parts["final"] == whole["final"] and parts["final"]["images"] == 18
    assert [row["log_p"] for row in parts["rows"]] == [row["log_p"] for row in whole["rows"]]
    assert parts["rows"][-1]["weights"] > 0 and parts["rows"][-1]["gradients"] > 0
    assert {"cpu", "torch", "commit"} <= parts["on"].keys()


@pytest.mark.parametrize("where", ["estimate", "Trainer.step"])
def test_a_run_that_diverges_is_told_and_others_go_on(
    published: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    import published_report

    def lost(*given: Any, **more: Any) -> Any:
        if where == "estimate":
            return SimpleNamespace(mean=float("nan"))
        raise NonFiniteError("the gradient is not finite")

    job = small(published, final=(18, 20))
    monkeypatch.setattr(f"published.{where}", lost)
    record = published.run(job, tmp_path, time.time() + 600, None)
    assert record["diverged"] and "final" not in record and "diverged" in capsys.readouterr().out
    sane = {**record, "name": "b", "seed": 2, "rows": [{"log_p": -29.5, "weights": 3.0, "gradients": 1.0}]}
    del sane["diverged"]
    assert published_report._row("row", [record])[4] == "1 of 1 diverged"
    assert published_report._row("row", [record, sane])[4] == "-29.50; 1 of 2 diverged"
    assert published_report._map({"0.1 0.2": [record], "0.1 0.5": [sane]}).splitlines()[2:] == [
        "0.2      diverged",
        "0.5        -29.50",
    ]


def test_hours_become_as_many_epochs_as_fit(published: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "TRIAL", 1)
    short, long = (published.epochs_of(small(published, epochs=None, hours=hours)) for hours in (1e-9, 0.2))
    assert short == 1 and long > 100
    grows = small(published)
    grows = published.replace(grows, settings={**grows.settings, "samples_schedule": "linear:3:0.5"})
    assert published.samples_on_average(small(published)) == 1.0
    assert published.samples_on_average(grows) == pytest.approx(0.5 * 1 + 0.5 * 2)


def test_angles_between_reused_and_fresh_natural_gradients_are_measured(published: ModuleType, tmp_path: Path) -> None:
    job = small(published, angles=(1, 2))
    job = published.replace(job, settings={**job.settings, "lr": 0.1, "damping": 0.2, "update_every": 2})
    record = published.run(job, tmp_path, time.time() + 600, None)
    assert list(record["angles"]) == ["1", "2"] and 0 < record["angles"]["2"] < 90


def test_images_are_enlarged_to_48_pixels_and_machines_fit_them(
    published: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = published.Dataset(
        "grey", "C", (28, 28), *(torch.randint(256, (n, 784), dtype=torch.uint8) for n in (6, 2, 2))
    )
    larger = published.enlarged(data)
    monkeypatch.setattr(published, "IMAGES", 3)
    assert published.enlarged(data).train.shape == (3, 2304)
    assert larger.shape == (48, 48) and larger.train.shape == (6, 2304) and larger.train.dtype == torch.uint8
    machine = published.machine("conv/deconv", False, 1)
    assert machine.sizes == [2304, 8 * 24 * 24, 75, 50, 35, 25, 20, 20]
    assert torch.isfinite(machine.log_likelihood(larger.evaluation("test"), 2)).all()


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("kind", ["dense/dense", "conv/dense", "dense/deconv", "conv/deconv", "local/local", "none"])
def test_bottom_layers_of_all_kinds_make_machines_that_learn(published: ModuleType, kind: str, gaussian: bool) -> None:
    machine = published.machine(kind, gaussian, 1, side=6)
    assert machine.sizes == [36, *([] if kind == "none" else [72]), 75, 50, 35, 25, 20, 20]
    same = published.machine(kind, gaussian, 1, side=6)
    assert all(torch.equal(a, b) for a, b in zip(machine.parameters(), same.parameters(), strict=True))
    x = torch.rand(20, 36) if gaussian else torch.randint(2, (20, 36)).float()
    before = machine.log_likelihood(x, 100).mean()
    trainer = published.Trainer(machine, "rws", lr=1e-3 if gaussian else 0.02, seed=1)
    for _ in range(40):
        trainer.step(x)
    assert machine.log_likelihood(x, 100).mean() > before + 1


def test_local_layers_see_what_convolutions_see_and_start_as_wide(published: ModuleType) -> None:
    shared, local = (published.machine(kind, False, 1, side=6) for kind in ("conv/deconv", "local/local"))
    up, down = shared.recognition[0], shared.generative[0]
    hidden = torch.eye(72, requires_grad=False).reshape(72, 8, 3, 3)
    with torch.no_grad():
        for layer in (up, down):
            layer.weight.fill_(1.0), layer.bias.zero_()
        reached = up(torch.eye(36).reshape(36, 1, 6, 6)).flatten(1).T > 0
        back = down(hidden).flatten(1).T > 0
    assert torch.equal(local.recognition[0].mask, reached) and torch.equal(local.generative[0].mask, back)
    for layer in (local.recognition[0], local.generative[0]):
        weights = layer.weight.detach()[layer.mask]
        assert not layer.weight[~layer.mask].any()
        assert abs(float(weights.std()) - (2 / 81) ** 0.5) < 0.02


def test_accelerated_rows_in_fewer_epochs_have_the_same_sum_of_rates(published: ModuleType) -> None:
    for data in ("mini", "mnist"):
        found = {job.row: job.settings for job in published.BY_NAME[f"acceleration-{data}"].jobs(2.0)}
        assert len(found) == 8
        for row, settings in found.items():
            printed = PRESETS[f"thesis-mnist-{row}"].settings
            assert math.isclose(settings["lr"] * settings["epochs"], printed["lr"] * printed["epochs"])
            assert {name: settings.get(name) for name in ("momentum", "nesterov", "adam", "damping")} == {
                name: printed.get(name) for name in ("momentum", "nesterov", "adam", "damping")
            }
    assert Settings.resolve(**published.BY_NAME["acceleration-mini"].jobs(2.0)[0].settings).layers[0] == 100


def test_rows_of_several_lengths_are_told_apart(published: ModuleType) -> None:
    import published_report

    lengths = [("nrws", 60), ("nrws", 230), ("rws", 60), ("rws", 60)]
    records = {
        str(i): {"experiment": "mnist-f", "row": row, "epochs": epochs} for i, (row, epochs) in enumerate(lengths)
    }
    found = published_report.by_row(records, "mnist-f")
    assert {row: len(own) for row, own in found.items()} == {"nrws, 60 epochs": 1, "nrws, 230 epochs": 1, "rws": 2}


def test_the_report_has_a_table_for_each_kind_of_experiment(published: ModuleType, tmp_path: Path) -> None:
    row = {"epoch": 1, "seconds": 1.0, "train": -30.0, "log_p": -29.5, "weights": 3.0, "gradients": 1.0}
    common = {"epochs": 1, "seconds": 1.0, "published": [-28.39, "thesis"], "rows": [row]}
    records = [
        {**common, "experiment": "mini-b-ours", "row": "nrws", "seed": seed, "name": f"a{seed}"} for seed in (1, 2)
    ]
    for record, value in zip(records, (-28.0, -28.2), strict=True):
        record["final"] = {"log_p": value, "standard_error": 0.1, "images": 10_000, "samples": 10_000}
    for i, cell in enumerate(("0.1 0.2", "0.2 0.2", "0.1 0.5")):
        map_row = {**row, "log_p": -30.0 - i}
        records.append({**common, "experiment": "map-mini", "row": cell, "seed": 1, "name": cell, "rows": [map_row]})
    out = tmp_path / "published.jsonl"
    out.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [sys.executable, str(BENCHMARKS / "published.py"), "--report", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "-28.10 ± 0.14 (10,000 × 10,000)" in done.stdout and "-28.39 (thesis)" in done.stdout
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("0.")] == [
        ["0.2", "-30.00", "-31.00"],
        ["0.5", "-32.00", "–"],
    ]
    assert "3 → 3" in done.stdout and "1 → 1" in done.stdout  # norms of weights and gradients, first and last
    assert out.with_suffix(".png").stat().st_size > 10_000
