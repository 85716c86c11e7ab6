"""The examples run, in the short form that each of them offers, and show what they say they show."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dagfisher import datasets

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as leaving:
        assert not leaving.code


def test_nrws_from_scratch_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "nrws_from_scratch.py", "--steps", "100")
    bound = float(capsys.readouterr().out.split()[-3])
    assert bound > -42  # an untrained machine is at about −135


def test_nrws_from_scratch_has_fewer_than_100_lines_and_uses_public_names_only() -> None:
    text = (EXAMPLES / "nrws_from_scratch.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    assert "helmholtz" not in text
    assert "._" not in text


def test_three_by_three_draws_its_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "three_by_three.py", "--quick", "--out", "bars.png")
    assert "epoch  2  KL(data ‖ machine)" in capsys.readouterr().out
    assert Path("bars.png").exists()


@pytest.mark.slow
def test_the_exact_kl_of_three_by_three_falls_below_002_nats() -> None:
    torch.set_num_threads(1)
    example = runpy.run_path(str(EXAMPLES / "three_by_three.py"))
    _, curve = example["train"](example["EPOCHS"], 0)
    assert curve[-1] < 0.02 < curve[0]


def test_compare_algorithms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "compare_algorithms.py", "--quick", "--algorithms", "rws,nrws")
    assert "test log-likelihood, mini-mnist B" in capsys.readouterr().out
    assert Path("runs/compare/compare.png").exists()


def test_train_mnist_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if not next(entry.found for entry in datasets.available() if entry.name == "mnist"):
        pytest.skip("MNIST is not on this machine")
    run(monkeypatch, "train_mnist.py", "--quick")
    run(monkeypatch, "train_mnist.py", "--quick")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nrws mnist B")]
    assert len(lines) == 2
