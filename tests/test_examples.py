"""The examples run, in the short form that each of them offers, and show what they say they show."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from dagfisher import datasets

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


pytestmark = pytest.mark.usefixtures("here")


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as leaving:
        assert not leaving.code


@pytest.mark.parametrize("order", ["together", "alternating"])
def test_nrws_from_scratch_learns(
    order: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "nrws_from_scratch.py", "--steps", "100", "--order", order)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == [1, 3, 10, 30, 100]  # it says something at once
    bounds = [float(line.split()[-3]) for line in lines]
    assert bounds[0] < -60 and bounds[-1] > -42  # an untrained machine is at about −135


def test_nrws_from_scratch_has_at_most_115_lines_and_uses_public_names_only() -> None:
    text = (EXAMPLES / "nrws_from_scratch.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 115
    assert "helmholtz" not in text
    assert "._" not in text


def test_three_by_three_draws_its_picture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "three_by_three.py", "--quick", "--out", "bars.png")
    assert "epoch  2  KL(data ‖ machine)" in capsys.readouterr().out
    assert Path("bars.png").exists()


@pytest.mark.slow
def test_the_exact_kl_of_three_by_three_falls_below_002_nats() -> None:
    torch.set_num_threads(1)
    example = runpy.run_path(str(EXAMPLES / "three_by_three.py"))
    _, curve = example["train"](example["EPOCHS"], 0)
    assert curve[-1] < 0.02 < curve[0]


def test_inspect_fisher_draws_every_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "inspect_fisher.py", "--quick", "--out", "shown")
    assert "49 parameters; largest entry outside the blocks" in capsys.readouterr().out
    names = {"structure", "trace", "spectrum", "saturation", "staleness", "cosines", "examples"}
    assert {path.stem for path in Path("shown").glob("*.png")} == names


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


needs_fashion = pytest.mark.skipif(
    not next(entry.found for entry in datasets.available() if entry.name == "fashion-mnist"),
    reason="FashionMNIST is not on this machine",
)


@needs_fashion
def test_gaussian_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "gaussian_images.py", "--quick", "--layers", "20,10")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    figures = [(float(line[3]), float(line[6])) for line in lines if line and line[0] in ("RWS", "NRWS")]
    assert len(figures) == 2
    for nats, bits in figures:
        assert bits == pytest.approx(8 - nats / (784 * 0.6931472), abs=1e-3)
    assert Path("runs/gaussian/samples.png").exists()


def test_conv_helmholtz(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--data", "mini-mnist", "--seconds", "1", "--examples", "50", "--samples", "10"]
    run(monkeypatch, "conv_helmholtz.py", *short, "--kinds", "dense/dense,conv/deconv", "--out", "conv.png")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "/de" in line]
    weights = {line[0]: int(line[2].replace(",", "")) for line in lines}
    assert weights == {"dense/dense": 2 * 196 * 392 + 196 + 392, "conv/deconv": 2 * 72 + 1 + 8}
    assert len(lines) == 4 and all(-136 < float(line[-1]) < 0 for line in lines)
    assert Path("conv.png").exists()
