"""Runs on data of the user's: binarisation, formats and default layers, through the program."""

from __future__ import annotations

import io
import json
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image

from dagfisher.app import main
from dagfisher.datasets import BINARISATIONS, NAMES, available, load
from dagfisher.helmholtz import Run, Settings
from dagfisher.helmholtz.settings import LAYERS, layers_for

FACES = (300, 200, 100, 75, 50, 35, 30, 25, 20, 20)
PAGE = Path(__file__).parents[2] / "docs" / "data.rst"
TINY = ["--epochs=1", "--batch-size=20", "--samples=2", "--eval-samples=2", "--threads=1"]


pytestmark = pytest.mark.usefixtures("here")


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
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
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
    preset = ["--preset=thesis-mnist-nrws", *flags, "--out=b"]
    assert main(["train", *preset]) == 0
    assert "binarized_mnist F" in capsys.readouterr().out
    run = Run.open("b")
    assert run.description.label == run.rows[-1].data == "binarized_mnist F"
    assert torch.equal(run.data.train, Run.open("a").data.train)


def test_a_named_dataset_has_the_layers_of_its_size() -> None:
    for entry in available():
        assert layers_for(entry.shape[0] * entry.shape[1]) == LAYERS[entry.name]
    assert tuple(LAYERS) == NAMES


def test_the_page_has_the_layers_of_each_size() -> None:
    """Between two lines of the table nothing changes."""
    rows = re.findall(r"\* - up to (\d+) \((\d+)×\d+\)\n +- ([\d, ]+)", PAGE.read_text(encoding="utf-8"))
    assert [int(side) ** 2 for _, side, _ in rows] == [int(most) for most, _, _ in rows] == [9, 196, 576, 784]
    smallest = 1
    for most, _, layers in rows:
        assert {layers_for(pixels) for pixels in range(smallest, int(most) + 1)} == {
            tuple(map(int, layers.split(", ")))
        }
        smallest = int(most) + 1
    assert layers_for(smallest) == FACES == layers_for(24 * 24)


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_larger_images_never_get_a_smaller_first_layer(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert layers_for(small)[0] <= layers_for(large)[0]


@pytest.mark.parametrize(
    ("side", "layers"),
    [(3, (12, 6)), (4, LAYERS["mini-mnist"]), (24, FACES), (28, LAYERS["mnist"]), (48, FACES)],
)
@pytest.mark.parametrize("kind", ["array", "folder", "sheet"])
def test_images_of_your_own_get_layers_by_their_size(side: int, layers: tuple[int, ...], kind: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, side, side), dtype=np.uint8)
    given: dict[str, Any] = {"data": f"{kind}.png" if kind == "sheet" else f"./{kind}"}
    if kind == "array":
        np.savez("array", images)
        given["data"] = "array.npz"
    elif kind == "folder":
        Path("folder").mkdir()
        for number, image in enumerate(images):
            Image.fromarray(image).save(f"folder/{number}.png")
    else:
        Image.fromarray(images.reshape(7 * side, side)).save("sheet.png")
        given["tile"] = (side, side)
    for binarisation in BINARISATIONS:
        chosen = Settings.resolve(**given, binarisation=binarisation)
        assert chosen.layers == layers
        assert chosen.load_data().shape == (side, side)
    assert Settings.resolve(**given, layers="5,2").layers == (5, 2)


def test_a_run_without_layers_keeps_those_that_it_got(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("mine.npy", np.random.default_rng(0).random((30, 3, 3)))
    assert main(["train", "--out=a", "--data=mine.npy", *TINY]) == 0
    Path("mine.npy").unlink()
    assert Run.open("a").settings.layers == (12, 6)
    capsys.readouterr()
    assert main(["train", "--out=b", "--data=./mine.npy"]) == 2
    assert "there is no dataset and no file" in capsys.readouterr().err and not Path("b").exists()
    np.save("mine.npy", np.ones((30, 3, 3), dtype=bool))
    assert main(["train", "--out=b", "--data=mine.npy", "--binarisation=C"]) == 2
    assert "use binarisation B" in capsys.readouterr().err and not Path("b").exists()


def test_the_recipe_for_faces_gives_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 48, 48), dtype=np.uint8)
    folds = np.repeat([[0], [1], [2], [3]], 10, axis=0).repeat(5, axis=1)
    package, module = types.ModuleType("scipy"), types.ModuleType("scipy.io")
    module.loadmat = lambda path: {"images": images, "folds": folds}  # type: ignore[attr-defined]
    package.io = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "scipy", package)
    monkeypatch.setitem(sys.modules, "scipy.io", module)
    lines = PAGE.read_text(encoding="utf-8").partition("import scipy.io\n")[2].splitlines()
    end = next(i for i, line in enumerate(lines) if line and not line.startswith(" "))
    exec("import numpy, scipy.io\n" + "\n".join(line[3:] for line in lines[:end]), {})
    large, small = load("faces48.npz", "C"), load("faces24.npz", "C")
    assert large.sizes == small.sizes == (20, 10, 10)
    assert torch.equal(large.test, torch.from_numpy(images[30:]).flatten(1))
    squares = torch.from_numpy(images[30:]).float().unfold(1, 2, 2).unfold(2, 2, 2).mean((3, 4))
    assert (small.test.float() - squares.flatten(1)).abs().max() <= 0.5
    assert small.shape == (24, 24)


@pytest.mark.parametrize("split", ["test", "valid", "train"])
def test_evaluate_takes_every_image_of_a_split_unless_told_otherwise(
    split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(0).random((60, 3, 3))
    np.savez("mine.npz", train=images[:40], valid=images[40:53], test=images[53:])
    assert main(["train", "--out=a", "--data=mine.npz", "--layers=2", "--eval-examples=3", *TINY]) == 0
    size = {"train": 40, "valid": 13, "test": 7}[split]
    for flags, expected in (([], size), (["--examples=5"], 5), (["--examples=1000"], size)):
        capsys.readouterr()
        where = [] if split == "test" else [f"--split={split}"]
        assert main(["evaluate", "a", "--samples=4", "--json", *where, *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["examples"], found["split"]) == (expected, split)
        estimate = Run.open("a").estimate(split, examples=expected, samples=4, seed=0)  # type: ignore[arg-type]
        assert len(estimate.log_p) == expected and found["log_likelihood"] == pytest.approx(estimate.mean)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_of_an_evaluation_says_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("mine.npy", np.random.default_rng(0).random((70, 3, 3)))
    assert main(["train", "--out=a", "--data=mine.npy", "--layers=2", *TINY]) == 0
    told: list[int] = []

    def slowly(self: Run, split: str, *, progress: Any, **settings: Any) -> Any:
        for _ in range(2):
            time.sleep(0.15)  # a bar is drawn anew ten times a second
            progress(4)
            told.append(4)
        return truly(self, "test", **settings)

    truly, terminal = Run.estimate, Terminal()
    monkeypatch.setattr(Run, "estimate", slowly)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["evaluate", "a", "--samples=2"]) == 0
    assert told == [4, 4]
    assert re.search(r"evaluating +40%\|.*\| \d\d:\d\d, \d\d:\d\d left", terminal.getvalue())
