"""A sweep trains every combination once, continues where it was left, and its heat map has the figures of its runs."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

import pytest
import torch

from dagfisher.app.cli import main
from dagfisher.app.console import watch
from dagfisher.errors import NonFiniteError
from dagfisher.helmholtz import Run

COMMON = ["--data", "three-by-three", "--layers", "6,3", "--batch-size", "600", "--samples", "2", "--threads", "1"]
COMMON += ["--epochs", "1", "--eval-samples", "5"]


def call(out: Path, *arguments: str) -> int:
    threads = torch.get_num_threads()
    try:
        return main(["sweep", "--out", str(out), *COMMON, *arguments])
    finally:
        torch.set_num_threads(threads)


def figures(folder: Path) -> dict[str, str]:
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))[-1]


def test_every_combination_is_trained_once_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    assert call(out, "--vary", "lr", "0.05", "0.1", "--vary", "damping", "0.1", "0.2") == 0
    runs = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert runs == [f"lr={lr},damping={damping}" for lr in ("0.05", "0.1") for damping in ("0.1", "0.2")]
    assert "1 of 4" in capsys.readouterr().out
    written = {name: (out / name / "checkpoint.pt").stat().st_mtime_ns for name in runs}
    assert call(out, "--vary", "lr", "0.05", "0.1", "--vary", "damping", "0.1", "0.2") == 0
    table = capsys.readouterr().out
    assert " of 4" not in table
    assert {name: (out / name / "checkpoint.pt").stat().st_mtime_ns for name in runs} == written
    order = sorted(runs, key=lambda name: -float(figures(out / name)["valid_log_likelihood"]))
    assert re.findall(r"^lr=\S+", table, flags=re.MULTILINE) == order

    assert call(out, "--vary", "lr", "0.2", "--vary", "damping", "0.1") == 0
    assert main(["report", str(out), "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    (heat,) = re.findall(r'<table class="heat">.*?</table>', text, flags=re.DOTALL)
    for lr in ("0.05", "0.1", "0.2"):
        for damping in ("0.1", "0.2"):
            folder = out / f"lr={lr},damping={damping}"
            if folder.exists():
                assert f"{float(figures(folder)['valid_log_likelihood']):.2f}" in heat
    assert heat.count("–") == 1 and heat.count("<b>") == 1
    for name in [*runs, "lr=0.2,damping=0.1"]:
        assert html.escape(name) in text


def test_what_diverges_does_not_end_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(run: Run, **options: object) -> bool:
        if run.settings.lr > 1:
            raise NonFiniteError("the log-likelihood is no longer finite")
        return watch(run, pictures=False)

    monkeypatch.setattr("dagfisher.app.sweep.watch", failing)
    out = tmp_path / "s"
    assert call(out, "--algorithm", "rws", "--vary", "lr", "1e25", "0.1") == 0
    said = capsys.readouterr()
    assert "lr=1e25" in said.err and "lr=0.1" in said.out
    assert (out / "lr=0.1" / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--vary", "lr"], "--vary takes each setting once"),
        (["--vary", "lr", "0.1", "0.1"], "different values"),
        (["--vary", "lr", "fast"], "lr must be"),
        (["--vary", "speed", "1"], "no setting 'speed'"),
        (["--vary", "samples", "2", "3"], "samples is varied and given"),
    ],
)
def test_what_cannot_be_varied_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert call(tmp_path / "s", *arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_another_sweep_needs_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, "--vary", "lr", "0.1") == 0
    assert call(tmp_path, "--vary", "damping", "0.1") == 2
    assert "holds a sweep of lr" in capsys.readouterr().err
