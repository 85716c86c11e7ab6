"""Datasets by name: what there is, and what is said when there is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dagfisher import datasets
from dagfisher.datasets import DataError, mnist


@pytest.mark.parametrize("name", ["cifar", "Mini-MNIST", "no/such/file.npy", ""])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(DataError, match=r"no dataset and no file .*mini-mnist, mnist, fashion-mnist, or the path"):
        datasets.load(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("mini-mnits", "mini-mnist"), ("Mini-MNIST", "mini-mnist"), ("mnsit", "mnist"), ("fashion", "fashion-mnist")],
)
def test_a_misspelt_name_gets_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(DataError, match=rf"no dataset and no file '{name}' \(did you mean {meant}\?\); use three-by"):
        datasets.load(name)


@pytest.mark.parametrize("name", datasets.NAMES)
def test_an_unknown_binarisation_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"no binarisation 'D'; use B \(rounded .*\), C \(.*\), F \(drawn once\) or G"):
        datasets.load(name, "D")


def test_bars_have_no_grey_values() -> None:
    for binarisation in set(datasets.BINARISATIONS) - {"B"}:
        with pytest.raises(DataError, match="three-by-three has no grey values"):
            datasets.load("three-by-three", binarisation)


def test_a_path_is_never_mistaken_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open("mini-mnist", "wb") as file:
        np.save(file, np.full((7, 3, 3), 200, dtype=np.uint8))
    assert datasets.load("mini-mnist").shape == (14, 14)
    assert datasets.load(Path("mini-mnist")).shape == (3, 3)
    assert datasets.load("./mini-mnist").shape == (3, 3)


def test_everything_is_listed_once_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {line.name: line for line in datasets.available()}
    assert tuple(lines) == datasets.NAMES
    assert [line.found for line in lines.values()] == [True, True, False, False]
    assert lines["mnist"].where == f"downloaded on first use (11.6 MB) to {tmp_path}/cache/dagfisher/mnist"
    assert lines["mini-mnist"].where == "B in the package, the others once mnist is there"
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in (mnist.TRAIN, mnist.TEST):
        (folder / name).write_bytes(b"not read")
    monkeypatch.setenv("DAGFISHER_DATA", str(tmp_path / "data"))
    lines = {line.name: line for line in datasets.available()}
    assert (lines["mnist"].found, lines["mnist"].where) == (True, str(folder))
    assert lines["mini-mnist"].where == "B in the package, the others from mnist"


def test_the_listing_says_what_loading_gives() -> None:
    for line in datasets.available()[:2]:
        data = datasets.load(line.name)
        assert (data.shape, data.sizes) == (line.shape, line.sizes)


def test_the_listing_says_what_loading_the_real_files_gives(real_data: Path) -> None:
    for line in datasets.available():
        for binarisation in line.binarisations.split(", "):
            data = datasets.load(line.name, binarisation, may_download=False)
            assert line.found
            assert (data.shape, data.sizes) == (line.shape, line.sizes)
            assert data.label == f"{line.name} {binarisation}"
