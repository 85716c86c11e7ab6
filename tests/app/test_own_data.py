"""Runs on data of the user's: binarisation, formats and default layers, through the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dagfisher.app import main
from dagfisher.datasets import BINARISATIONS
from dagfisher.helmholtz import Run

TINY = ["--epochs=1", "--batch-size=20", "--samples=2", "--eval-samples=2", "--threads=1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_run_sees_pixels_that_were_drawn_once(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("mine.npy", np.random.default_rng(0).random((70, 3, 3)))
    assert main(["train", "--out=a", "--data=mine.npy", "--binarisation=F", "--layers=2", *TINY]) == 0
    assert "mine.npy F" in capsys.readouterr().out
    run = Run.open("a")
    assert run.settings.binarisation == "F" and run.data.train.dtype == torch.bool
    assert main(["evaluate", "a", "--samples=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "mine.npy F"


def test_the_help_of_train_says_what_each_binarisation_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{letter}: {meaning}" in text for letter, meaning in BINARISATIONS.items())


def test_the_list_of_datasets_says_which_binarisations_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert all("B, C, F, G" in lines[name] for name in ("mini-mnist", "mnist", "fashion-mnist"))


def test_a_folder_of_binarised_images_is_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("binarized_mnist").mkdir()
    for split, count in (("train", 40), ("valid", 10), ("test", 5)):
        bits = np.random.default_rng(count).random((count, 784)) < 0.2
        np.savetxt(f"binarized_mnist/binarized_mnist_{split}.amat", bits, fmt="%d")
    flags = ["--out=a", "--data=binarized_mnist", "--layers=5,2", *TINY]
    assert main(["train", *flags, "--binarisation=C"]) == 2
    assert "use binarisation B" in capsys.readouterr().err
    assert main(["train", *flags]) == 0
    assert "binarized_mnist B" in capsys.readouterr().out
    assert Run.open("a").data.sizes == (40, 10, 5)
