"""Lateral connections in runs and on the command line, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dagfisher.app import main
from dagfisher.errors import SettingError
from dagfisher.helmholtz import HelmholtzMachine, Run, Settings, Trainer
from dagfisher.nn import BernoulliConv2d, BernoulliConvTranspose2d, LateralBernoulliLinear, Prior

from .test_lateral import NETWORKS
from .test_runs import assert_same_end

TINY = ["--data=three-by-three", "--layers=5,3", "--batch-size=100", "--samples=4", "--eval-samples=5", "--threads=1"]


def run(folder: Path, **more: Any) -> Run:
    chosen = {"data": "three-by-three", "layers": (5, 3), "batch_size": 100, "samples": 4, "eval_samples": 5}
    return Run.create(folder, Settings.resolve(**{**chosen, "epochs": 2, "update_every": 3, "threads": 1, **more}))


@pytest.mark.parametrize("lateral", NETWORKS)
def test_a_stopped_run_resumes_exactly(tmp_path: Path, lateral: str) -> None:
    whole = run(tmp_path / "whole", lateral=lateral)
    whole.train()
    parts = run(tmp_path / "parts", lateral=lateral)
    assert not parts.train(stop=lambda: parts.steps >= 5)
    again = Run.resume(tmp_path / "parts")
    assert again.settings.lateral == lateral and again.steps == 5
    assert again.train()
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    with pytest.raises(SettingError, match="was started with lateral"):
        Run.resume(tmp_path / "parts", lateral="both" if lateral != "both" else "generative")


def test_the_flag_is_saved_and_every_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--out=a", *TINY, "--epochs=1", "--lateral=generative"]) == 0
    assert json.loads(Path("a/config.json").read_text())["lateral"] == "generative"
    assert isinstance(Run.open("a").machine.prior, LateralBernoulliLinear)
    for command in (["evaluate", "--samples=5"], ["sample"], ["reconstruct", "--depth=2"]):
        assert main([command[0], "a", *command[1:]]) == 0
    assert main(["train", "--out=a", "--resume", "--epochs=2", "--lateral=generative"]) == 0
    capsys.readouterr()
    assert main(["train", "--out=b", *TINY, "--lateral=sideways"]) == 2
    assert "lateral must be one of generative, recognition, both" in capsys.readouterr().err
    assert main(["train", "--out=b", "--data=mini-mnist", "--binarisation=G", "--lateral=both"]) == 2
    assert "lateral connections are between Bernoulli units" in capsys.readouterr().err
    assert not Path("b").exists()


def test_a_run_folder_without_the_setting_has_no_lateral_connections(tmp_path: Path) -> None:
    run(tmp_path / "a").train()
    config = tmp_path / "a" / "config.json"
    values = json.loads(config.read_text())
    assert values.pop("lateral") is None
    config.write_text(json.dumps(values))
    assert Run.resume(tmp_path / "a").settings.lateral is None


def test_grey_values_may_have_lateral_recognition() -> None:
    machine = HelmholtzMachine([4, 3], families=["gaussian", "bernoulli"], lateral="recognition")
    Trainer(machine, "nrws", lr=0.005, damping=10.0).step(torch.rand(5, 4))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="lateral must be one of"):
        HelmholtzMachine([4, 3], lateral="all")
    with pytest.raises(SettingError, match="layer 0 of the generative network, counted from the data, has gaussian"):
        HelmholtzMachine([4, 3], families=["gaussian", "bernoulli"], lateral="generative")
    with pytest.raises(SettingError, match="layer 1 of the recognition network"):
        HelmholtzMachine([4, 3], families=["bernoulli", "gaussian"], lateral="recognition")
    pair = BernoulliConvTranspose2d(1, 1, 2), BernoulliConv2d(1, 1, 2)
    with pytest.raises(SettingError, match="convolutions have no lateral connections"):
        HelmholtzMachine([pair], prior=Prior(4), shape=(1, 3, 3), lateral="generative")
