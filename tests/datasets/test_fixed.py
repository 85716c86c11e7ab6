"""Binarisation F: each pixel is drawn once, with its grey value as the probability, and never changes again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dagfisher import datasets
from dagfisher.datasets import Dataset, Split, images, mini_mnist, mnist
from dagfisher.datasets.idx import Array

SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def digest(data: Dataset) -> str:
    return hashlib.sha256(b"".join(np.packbits(data.stored(split).numpy()).tobytes() for split in SPLITS)).hexdigest()


def drawn(grey: Array) -> Dataset:
    return images.assemble("made", "F", grey, grey, grey)


def test_pixels_are_drawn_with_the_grey_value_as_their_probability() -> None:
    levels = np.array([0, 1, 51, 128, 204, 254, 255], dtype=np.uint8)
    data = drawn(np.tile(levels, (40_000, 1)).reshape(40_000, 1, 7))
    expected = torch.from_numpy(levels) / 255
    for split in SPLITS:
        x = data.means(split)
        assert ((x.mean(0) - expected).abs() <= 5 * (expected * (1 - expected) / len(x)).sqrt()).all()
        assert (x[:, 0] == 0).all() and (x[:, -1] == 1).all()


def test_images_and_splits_are_drawn_independently() -> None:
    data = drawn(np.full((2_000, 4, 4), 128, dtype=np.uint8))
    everything = torch.cat([data.means(split) for split in SPLITS], dim=1)
    pairs = torch.corrcoef(everything.T) - torch.eye(3 * 16)
    assert pairs.abs().max() < 5 / 2_000**0.5


def test_every_epoch_and_the_evaluation_see_the_same_pixels() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (40, 4, 5), dtype=np.uint8)
    data = drawn(grey)
    pixels = sorted(data.train.float().tolist())
    for epoch in range(3):
        assert sorted(torch.cat(list(data.batches(7, seed=epoch, epoch=epoch))).tolist()) == pixels
    assert torch.equal(data.evaluation("train"), data.train.float())


@given(
    n=st.integers(1, 5),
    more=st.integers(0, 4),
    block=st.integers(1, 6),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_the_draws_are_those_that_the_documentation_gives(
    n: int, more: int, block: int, rows: int, columns: int, seed: int
) -> None:
    """Neither the blocks in which images are drawn nor the images after them matter."""
    grey = np.random.default_rng(seed).integers(0, 256, (n + more, rows, columns), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "_BLOCK", block)
        data = drawn(grey)
    for number, split in enumerate(SPLITS):
        numbers = np.random.default_rng([0, number]).random((n, rows, columns))
        np.testing.assert_array_equal(data.stored(split)[:n].reshape(n, rows, columns), numbers < grey[:n] / 255)


def test_the_draws_are_the_same_everywhere() -> None:
    data = drawn(np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(8, axis=0))
    assert digest(data) == "2d69773ae39e7e84cb20f068a7849ebd2bb6b4d995f8ef0571d1be603211b0d5"


def test_fractions_are_probabilities_too(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (14, 4, 6), dtype=np.uint8)
    np.save(tmp_path / "levels.npy", grey)
    np.save(tmp_path / "shares.npy", grey / 255)
    levels, shares = (datasets.load(tmp_path / f"{name}.npy", "F") for name in ("levels", "shares"))
    assert (levels.label, levels.train.dtype) == ("levels.npy F", torch.bool)
    assert digest(levels) == digest(shares)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32])
def test_pixels_that_are_on_or_off_stay_as_they_are(tmp_path: Path, kind: type) -> None:
    bits = np.random.default_rng(0).random((7, 2, 3)) < 0.5
    np.save(tmp_path / "bits.npy", bits.astype(kind))
    data = datasets.load(tmp_path / "bits.npy", "F")
    assert data.label == "bits.npy F"
    assert torch.equal(torch.cat([data.train, data.valid, data.test]), torch.from_numpy(bits).flatten(1))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", "c573e2c691b0cd8779028eb5395f72c4c0a680236cb02de975f5b1f8212bbd49"),
        ("fashion-mnist", "6c0a2b4167a8f2b9303c05d563dfd8c245f5d0c44f7bfc4f6de5e0afb4bb878c"),
        ("mini-mnist", "e9a0a893902375e2a258caae1be146b283ff6b166c981cf710a23ca59f46511d"),
    ],
)
def test_the_named_datasets_are_the_same_bit_for_bit(real_data: Path, name: str, expected: str) -> None:
    data = datasets.load(name, "F", may_download=False)
    assert (data.label, data.sizes, data.train.dtype) == (f"{name} F", (50_000, 10_000, 10_000), torch.bool)
    grey = datasets.load(name, "C", may_download=False)
    for split in SPLITS:
        p = grey.means(split).double()
        error = (p * (1 - p)).sum().sqrt()
        assert abs(float((data.stored(split).double() - p).sum())) <= 5 * error
        assert not data.stored(split)[p == 0].any() and data.stored(split)[p == 1].all()
    assert digest(data) == expected


def test_mini_mnist_is_drawn_from_the_means_of_the_squares(real_data: Path) -> None:
    _, test = mnist.read(mnist.MNIST, may_download=False)
    numbers = np.random.default_rng([0, 2]).random((50, 14, 14))
    expected = numbers < mini_mnist.squares(test[:50]) / np.float32(4 * 255)
    found = datasets.load("mini-mnist", "F", may_download=False).test[:50]
    np.testing.assert_array_equal(found.reshape(50, 14, 14), expected)
