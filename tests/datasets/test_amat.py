"""Binary images as text: what is written is read, in the splits that names say; anything else gets one sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from dagfisher import datasets
from dagfisher.datasets import DataError, amat
from dagfisher.datasets.idx import Array

BITS = np.random.default_rng(0).random((14, 784)) < 0.3
SPLITS = {"train": BITS[:9], "valid": BITS[9:11], "test": BITS[11:]}


def text(bits: Array, blank: str = " ", end: str = "\n") -> bytes:
    return "".join(blank.join(str(int(bit)) for bit in image) + end for image in bits).encode()


def folder_of(folder: Path, names: dict[str, str]) -> Path:
    folder.mkdir()
    for split, name in names.items():
        content = text(SPLITS[split])
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


@given(
    n=st.integers(1, 6),
    pixels=st.integers(1, 20),
    blank=st.sampled_from([" ", "  ", "   ", "\t", " \t"]),
    end=st.sampled_from(["\n", " \n", "\r\n", "\n\n"]),
    indent=st.sampled_from(["", "  "]),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read(n: int, pixels: int, blank: str, end: str, indent: str, seed: int) -> None:
    bits = np.random.default_rng(seed).random((n, pixels)) < 0.5
    found = amat.decode(indent.encode() + text(bits, blank, end), Path("a.amat"))
    assert found.dtype == bool
    np.testing.assert_array_equal(found, bits)


@pytest.mark.parametrize("name", ["mine.amat", "mine.AMAT", "mine.txt", "mine.amat.gz"])
def test_a_file_becomes_a_dataset_whatever_its_name(tmp_path: Path, name: str) -> None:
    content = text(BITS)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    data = datasets.load(tmp_path / name)
    assert (data.label, data.shape, data.sizes) == (f"{name} B", (28, 28), (10, 2, 2))
    assert torch.equal(torch.cat([data.train, data.valid, data.test]), torch.from_numpy(BITS))


@pytest.mark.parametrize(
    "names",
    [
        {split: f"binarized_mnist_{split}.amat" for split in SPLITS},
        {split: f"mine_{split.upper()}.amat.gz" for split in SPLITS},
        {"train": "train.amat", "valid": "a_val.amat", "test": "b_test.amat"},
    ],
)
def test_a_folder_has_the_splits_that_its_names_say(tmp_path: Path, names: dict[str, str]) -> None:
    folder = folder_of(tmp_path / "fixed", names)
    (folder / "README").write_text("where they are from")
    data = datasets.load(str(folder))
    assert (data.label, data.shape, data.sizes) == ("fixed B", (28, 28), (9, 2, 3))
    for found, bits in zip((data.train, data.valid, data.test), SPLITS.values(), strict=True):
        assert torch.equal(found, torch.from_numpy(bits))


def test_drawn_pixels_are_kept_and_labelled_as_drawn_once_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "fixed", {split: f"{split}.amat" for split in SPLITS})
    data = datasets.load(folder, "F")
    assert (data.label, data.sizes) == ("fixed F", (9, 2, 3))
    for found, bits in zip((data.train, data.valid, data.test), SPLITS.values(), strict=True):
        assert found.dtype == torch.bool and torch.equal(found, torch.from_numpy(bits))
    seen, _ = datasets.read_images(folder, "F")
    assert torch.equal(seen, torch.from_numpy(BITS).float())


def test_there_are_no_grey_values(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "fixed", {split: f"{split}.amat" for split in SPLITS})
    for binarisation in ("C", "G"):
        with pytest.raises(DataError, match=r"fixed has no grey values.*use binarisation B, or F if"):
            datasets.load(folder, binarisation)


UNUSABLE = {
    "0 1\n1 0.5\n": r"has '0\.5' in line 2, where a 0 or a 1 should be; save other numbers as \.npy",
    "0 1\n1 7\n": "has '7' in line 2",
    "01 1\n": "has '01' in line 1",
    "0,1\n": "has '0,1' in line 1",
    "0 1\n1 0\n1 0 1\n": "has 3 pixels in line 3 and 2 in the first; it may be truncated",
    "0 1\n1 0\n1": "has 1 pixels in line 3 and 2 in the first",
    "": "holds no images",
    " \n\n": "holds no images",
    "0 1\n": "holds 1 image; three splits need at least 3",
    "words\n": "has 'words' in line 1",
    "é 1\n": "in line 1",
}


@pytest.mark.parametrize("content", UNUSABLE)
def test_a_file_that_cannot_be_used_gives_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.amat"
    path.write_bytes(content.encode())
    with pytest.raises(DataError, match=UNUSABLE[content]) as caught:
        datasets.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_used_gives_one_sentence(tmp_path: Path) -> None:
    cases: dict[str, tuple[dict[str, str], str]] = {
        "half": (
            {"train": "a_train.amat", "valid": "a_valid.amat"},
            "holds a_train.amat and a_valid.amat, but no test",
        ),
        "twice": (
            {"train": "a_train.amat", "valid": "a_val.amat", "test": "a_valid.amat"},
            "holds a_val.amat and a_valid.amat, which both mean valid",
        ),
        "other": ({"train": "a_train.amat", "test": "digits.amat"}, r"digits\.amat does not say which split it is"),
    }
    for name, (names, words) in cases.items():
        with pytest.raises(DataError, match=words):
            datasets.load(folder_of(tmp_path / name, names))
    folder = folder_of(tmp_path / "sizes", {"train": "a_train.amat"})
    (folder / "a_test.amat").write_bytes(text(BITS[:, :9]))
    with pytest.raises(DataError, match="has test images of 9 and train images of 784; make them alike"):
        datasets.load(folder)
    (folder / "a_test.amat").write_bytes(b"0 1 2\n")
    with pytest.raises(DataError, match=r"a_test\.amat has '2' in line 1"):
        datasets.load(folder)


@given(position=st.integers(0, 200), byte=st.integers(0, 255), cut=st.none() | st.integers(0, 224))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_damaged_file_never_gives_another_exception(
    tmp_path: Path, position: int, byte: int, cut: int | None
) -> None:
    content = bytearray(text(BITS[:, :8]))
    content[position] = byte
    path = tmp_path / "mine.amat"
    path.write_bytes(content[:cut])
    try:
        datasets.load(path)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)
