"""The embedded miniMNIST is what its definition says, and what its script makes."""

from __future__ import annotations

import gzip
import importlib.resources
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dagfisher import datasets
from dagfisher.datasets import DataError, build_mini_mnist, mini_mnist, mnist

SHIPPED = Path(str(importlib.resources.files("dagfisher.datasets") / "data" / mini_mnist.FILE))


def test_squares_are_sums_of_two_by_two() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    expected = grey.astype(int).reshape(3, 14, 2, 14, 2).sum(axis=(2, 4))
    np.testing.assert_array_equal(mini_mnist.squares(grey), expected)


@pytest.mark.parametrize(
    ("square", "pixel"),
    [
        ([0, 0, 0, 0], 0),
        ([255, 254, 0, 0], 0),
        ([255, 255, 0, 0], 1),
        ([127, 127, 128, 128], 1),
        ([255] * 4, 1),
    ],
)
def test_a_pixel_is_one_from_a_mean_of_one_half_on(square: list[int], pixel: int) -> None:
    grey = np.tile(np.array(square, dtype=np.uint8).reshape(2, 2), (14, 14))[None]
    built = mini_mnist.unpack(build_mini_mnist.build(grey, grey))
    assert built.shape == (2, 14, 14)
    assert (built == pixel).all()


def test_unpacking_undoes_packing() -> None:
    binary = np.random.default_rng(0).random((11, 14, 14)) < 0.3
    np.testing.assert_array_equal(mini_mnist.unpack(mini_mnist.pack(binary)), binary)


def test_all_seventy_thousand_images_load_in_a_moment() -> None:
    start = time.process_time()
    data = datasets.load("mini-mnist")
    assert time.process_time() - start < 1
    assert (data.label, data.shape, data.sizes) == ("mini-mnist B", (14, 14), (50_000, 10_000, 10_000))
    assert data.train.dtype == torch.bool
    assert 0.12 < data.means("train").mean() < 0.14
    assert SHIPPED.stat().st_size < 1_000_000


def test_the_licence_is_beside_the_data() -> None:
    text = (SHIPPED.parent / "LICENSE.md").read_text(encoding="utf-8")
    assert all(word in text for word in ("LeCun", "Cortes", "Burges", "Attribution-Share Alike 3.0"))


@pytest.mark.parametrize(
    "content",
    [None, b"", SHIPPED.read_bytes()[:1000], gzip.compress(b"\0" * 70_000 * 28)],
    ids=["missing", "empty", "truncated", "other bits"],
)
@pytest.mark.parametrize("name", [mini_mnist.FILE, mini_mnist.LABELS_FILE])
def test_a_damaged_embedded_file_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, name: str
) -> None:
    (tmp_path / "data").mkdir()
    for good in {mini_mnist.FILE, mini_mnist.LABELS_FILE} - {name}:
        (tmp_path / "data" / good).write_bytes((SHIPPED.parent / good).read_bytes())
    if content is not None:
        (tmp_path / "data" / name).write_bytes(content)
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=rf"{name} is missing or damaged; install dagfisher again"):
        datasets.load("mini-mnist")


@pytest.mark.parametrize("binarisation", ["C", "F", "G"])
def test_grey_values_without_mnist_say_what_they_need(binarisation: str) -> None:
    needs = rf"mini-mnist {binarisation} needs the grey values of MNIST .*put train-images"
    with pytest.raises(DataError, match=needs):
        datasets.load("mini-mnist", binarisation, may_download=False)


def test_the_shipped_file_is_what_the_script_makes(
    real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "built.gz"
    build_mini_mnist.main(["--mnist", str(real_data / "mnist"), "--out", str(out)])
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(SHIPPED.read_bytes())
    labels = out.with_name(mini_mnist.LABELS_FILE).read_bytes()
    assert gzip.decompress(labels) == gzip.decompress((SHIPPED.parent / mini_mnist.LABELS_FILE).read_bytes())
    printed = capsys.readouterr().out
    assert mini_mnist.DIGEST in printed and mini_mnist.LABELS_DIGEST in printed
    assert list(tmp_path.glob("*.part")) == list(tmp_path.glob(".*.part")) == []


def test_the_script_finds_mnist_where_the_loader_does(real_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "built.gz"
    build_mini_mnist.main(["--out", str(out)])
    assert mini_mnist.digest(out.read_bytes()) == mini_mnist.DIGEST


def test_the_script_without_mnist_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "built.gz"
    with pytest.raises(SystemExit, match=r"train-images-idx3-ubyte.gz cannot be read"):
        build_mini_mnist.main(["--mnist", str(tmp_path), "--out", str(out)])
    assert not out.exists()


def test_the_script_without_labels_writes_nothing(real_data: Path, tmp_path: Path) -> None:
    for name in (mnist.TRAIN, mnist.TEST):
        (tmp_path / f"{name}.gz").symlink_to(real_data / "mnist" / f"{name}.gz")
    out = tmp_path / "made" / "built.gz"
    with pytest.raises(SystemExit, match=r"train-labels-idx1-ubyte.gz is not in .*; put it there"):
        build_mini_mnist.main(["--mnist", str(tmp_path), "--out", str(out)])
    assert not out.parent.exists()


def test_the_labels_are_in_the_package() -> None:
    """Digits of the well-known first images, and how many of each there are among MNIST's training images."""
    data = datasets.load("mini-mnist")
    assert data.train_labels is not None and data.valid_labels is not None and data.test_labels is not None
    assert data.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    counts = torch.cat([data.train_labels, data.valid_labels]).bincount().tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_the_labels_are_those_of_mnist(real_data: Path) -> None:
    whole = datasets.load("mnist", may_download=False)
    for binarisation in datasets.BINARISATIONS:
        mini = datasets.load("mini-mnist", binarisation, may_download=False)
        for split in ("train", "valid", "test"):
            labels = mini.labels(split)
            assert labels is not None and labels.dtype == torch.int64
            assert torch.equal(labels, whole.labels(split))  # type: ignore[arg-type]


def test_c_has_the_means_that_b_rounds(real_data: Path) -> None:
    b, c = datasets.load("mini-mnist", "B"), datasets.load("mini-mnist", "C")
    grey, _ = mnist.read(mnist.MNIST, may_download=False)
    expected = torch.from_numpy(grey[:50].reshape(50, 14, 2, 14, 2).mean(axis=(2, 4)) / 255).flatten(1)
    torch.testing.assert_close(c.means("train")[:50], expected.float())
    assert c.label == "mini-mnist C"
    for split in ("train", "valid", "test"):
        assert torch.equal(c.means(split) >= 0.5, b.stored(split))
