"""Run folders: what they hold, and that a run survives anything and ends where an undisturbed one does."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dagfisher.errors import CheckpointError, NonFiniteError, SettingError
from dagfisher.helmholtz import ALGORITHMS, Run, Settings
from dagfisher.helmholtz.metrics import read_rows

TINY: dict[str, Any] = {
    "data": "three-by-three",
    "layers": (6, 1),
    "algorithm": "nrws",
    "batch_size": 60,
    "samples": 4,
    "update_every": 7,
    "epochs": 3,
    "eval_samples": 5,
    "threads": 1,
}


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tiny(folder: Path, **more: Any) -> Run:
    return Run.create(folder, Settings.resolve(**{**TINY, **more}))


def flat(state: Any, name: str = "") -> dict[str, Any]:
    """Every leaf of nested dicts and lists, by its path."""
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat(value, f"{name}/{key}").items()}
    if isinstance(state, (list, tuple)):
        return {k: v for i, value in enumerate(state) for k, v in flat(value, f"{name}/{i}").items()}
    return {name: state}


def assert_same_end(one: Path, other: Path) -> None:
    """Parameters, moments, prepared Fishers, random numbers and rows are equal, bit for bit; times are not compared."""
    first, second = (flat(torch.load(path / "checkpoint.pt", weights_only=True)) for path in (one, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, second[name]), name
        elif not name.endswith("seconds"):
            assert value == second[name], name
    for a, b in zip(read_csv(one), read_csv(other), strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def read_csv(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_folder_holds_settings_metrics_checkpoint_and_pictures(tmp_path: Path) -> None:
    run = tiny(tmp_path / "a")
    assert run.train()
    run.draw()
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "checkpoint.pt", "config.json", "curves.png", "metrics.csv", "samples.png",
    ]  # fmt: skip
    config = json.loads((run.folder / "config.json").read_text())
    assert config["label"] == "three-by-three B"
    assert config["lr"] == ALGORITHMS["nrws"].lr and config["damping"] == "auto"  # each layer finds its own
    rows = read_csv(run.folder)
    assert [float(row["epoch"]) for row in rows] == [1, 2, 3]
    assert {row["data"] for row in rows} == {"three-by-three B"}
    assert read_rows(run.folder) == run.rows
    assert all(row.kl is not None and row.kl > 0 for row in run.rows)


def test_rows_within_an_epoch(tmp_path: Path) -> None:
    run = tiny(tmp_path / "a", eval_every=12, epochs=2)
    run.train()
    assert [row.steps for row in run.rows] == [12, 24, 30, 42, 54, 60]


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    often, seldom = tiny(tmp_path / "a", eval_every=3), tiny(tmp_path / "b", eval_samples=50)
    often.train()
    seldom.train()
    for one, other in zip(often.machine.parameters(), seldom.machine.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_seconds_leave_evaluation_out(tmp_path: Path) -> None:
    run = tiny(tmp_path / "a", epochs=1)
    estimate, lost = run.estimate, 0.0

    def slow(*args: Any, **settings: Any) -> Any:
        nonlocal lost
        time.sleep(0.5)
        lost += 0.5
        return estimate(*args, **settings)

    run.estimate = slow  # type: ignore[method-assign]
    began = time.perf_counter()
    run.train()
    assert lost == 1.0
    assert run.seconds <= time.perf_counter() - began - lost


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm": "rws", "update_every": None, "adam": True},
        {"algorithm": "dnrws", "momentum": 0.9, "nesterov": True, "sleep_steps": 2},
        {"algorithm": "nbihm", "fisher": "dream", "states": "zero-one"},
        {"entropy": 0.1, "l1": 1e-3, "warm_up": 20, "window": 3, "trust_region": 0.01},
    ],
    ids=lambda more: more.get("algorithm", "nrws"),
)
def test_a_stopped_run_resumes_exactly(tmp_path: Path, more: dict[str, Any]) -> None:
    tiny(tmp_path / "whole", **more).train()
    broken = tiny(tmp_path / "broken", **more)
    for at in (5, 30, 61):  # within an epoch, at its last step (the row is still missing), and once more
        assert not broken.train(stop=lambda run=broken, at=at: run.steps >= at)  # type: ignore[misc]
        assert broken.steps == at
        broken = Run.resume(tmp_path / "broken")
    assert broken.train()
    assert_same_end(tmp_path / "whole", tmp_path / "broken")


def test_enough_ends_with_a_row(tmp_path: Path) -> None:
    run = tiny(tmp_path / "a")
    assert not run.train(enough=lambda: run.steps >= 10)
    assert [row.steps for row in run.rows] == [10]
    run = Run.resume(tmp_path / "a", epochs=1)
    assert run.train()
    assert [row.steps for row in run.rows] == [10, 30]


def test_a_resumed_run_can_be_given_more_epochs_and_nothing_else(tmp_path: Path) -> None:
    tiny(tmp_path / "a", epochs=1).train()
    with pytest.raises(SettingError, match="started with lr"):
        Run.resume(tmp_path / "a", lr=0.3)
    with pytest.raises(SettingError, match="started with algorithm"):
        Run.resume(tmp_path / "a", algorithm="rws")
    run = Run.resume(tmp_path / "a", epochs=2, lr=str(ALGORITHMS["nrws"].lr))
    run.train()
    assert len(run.rows) == 2
    assert Run.open(tmp_path / "a").settings.epochs == 2


def test_a_resumed_run_is_not_shortened_below_what_is_done(tmp_path: Path) -> None:
    tiny(tmp_path / "a", epochs=2).train()
    with pytest.raises(SettingError, match="already done 2 epochs"):
        Run.resume(tmp_path / "a", epochs=1)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["epochs"] == 2


def test_a_run_that_fails_before_its_first_checkpoint_leaves_the_folder_free(tmp_path: Path) -> None:
    """So that the command can be put right; after a checkpoint everything stays."""
    with pytest.raises(SettingError):
        tiny(tmp_path / "a", damping=0.0, solver="conjugate").train()
    assert not (tmp_path / "a").exists()
    run = tiny(tmp_path / "a", damping=0.1)
    run.train(enough=lambda: run.steps >= 3)
    for p in run.machine.parameters():
        p.data.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        run.train()
    assert Run.open(tmp_path / "a").steps == 3


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    tiny(tmp_path / "a")
    with pytest.raises(SettingError, match="already holds a run"):
        tiny(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("years of work")
    with pytest.raises(SettingError, match="not an empty folder"):
        tiny(tmp_path / "b")


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    run = tiny(tmp_path / "a", epochs=1)
    run.train()
    path = run.folder / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="is damaged or is not a checkpoint"):
        Run.open(run.folder)
    with pytest.raises(SettingError, match="holds no run"):
        Run.open(tmp_path)
    (run.folder / "config.json").write_text("{")
    with pytest.raises(SettingError, match=r"config\.json cannot be used"):
        Run.open(run.folder)


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    run = tiny(tmp_path / "a", algorithm="rws", update_every=None)
    run.train(enough=lambda: run.steps >= 10)
    before = (run.folder / "checkpoint.pt").read_bytes()
    with torch.no_grad():
        run.machine.prior.bias.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="lower the learning rate"):
        run.train()
    assert (run.folder / "checkpoint.pt").read_bytes() == before


@pytest.mark.slow
def test_a_run_killed_at_a_random_moment_ends_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    flags = ["--checkpoint-every=0.05", "--epochs=8", "--eval-every=20", "--batch-size=60", "--samples=4"]
    flags += ["--data=three-by-three", "--layers=6,1", "--update-every=7", "--eval-samples=5", "--threads=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dagfisher", "train", "--out", str(tmp_path / "killed")]
    child = subprocess.Popen([*command, *flags], env=environment, stdout=subprocess.DEVNULL)
    while child.poll() is None and not (tmp_path / "killed" / "metrics.csv").exists():
        time.sleep(0.005)
    wait = random.Random().uniform(0, 1.0)
    time.sleep(wait)
    child.send_signal(signal.SIGKILL)
    assert child.wait() in (-signal.SIGKILL, 0)
    subprocess.run([*command, "--resume"], env=environment, stdout=subprocess.DEVNULL, check=True)
    values = {flag.partition("=")[0][2:].replace("-", "_"): flag.partition("=")[2] for flag in flags}
    Run.create(tmp_path / "whole", Settings.resolve(**values)).train()
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    assert not [path.name for path in (tmp_path / "killed").iterdir() if path.name.endswith(".part")]
