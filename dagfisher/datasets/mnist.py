"""MNIST and FashionMNIST: 28×28 grey images, and their labels, in IDX files, found, or downloaded and checked.

Label files are fetched with the images that they belong to; where they are absent, only the labels are missing.

MNIST: Yann LeCun, Corinna Cortes, Christopher J. C. Burges; Creative Commons Attribution-Share Alike 3.0.
FashionMNIST: Han Xiao, Kashif Rasul, Roland Vollgraf (Zalando); MIT licence.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DagFisherWarning
from . import download, idx, images
from .dataset import Binarisation, Dataset
from .errors import DataError
from .idx import Array

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
TRAIN_LABELS, TEST_LABELS = "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"
_LABELS_OF = {TRAIN: TRAIN_LABELS, TEST: TEST_LABELS}
VALID_SIZE = 10_000


@dataclass(frozen=True)
class Source:
    """A pair of IDX files and their labels, the SHA-256 of what each holds decompressed, and where to fetch them."""

    name: str
    digests: dict[str, str]
    label_digests: dict[str, str]
    mirrors: tuple[str, ...]
    megabytes: float


MNIST = Source(
    name="mnist",
    digests={
        TRAIN: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TEST: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    },
    label_digests={
        TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    megabytes=11.6,
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    digests={
        TRAIN: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        TEST: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    },
    label_digests={
        TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    mirrors=(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    megabytes=30.9,
)


def load(source: Source, binarisation: Binarisation, *, may_download: bool) -> Dataset:
    """The training images without the last 10,000, those as ``valid``, and the test images; their labels if found."""
    train, test = read(source, may_download=may_download)
    data = images.assemble(source.name, binarisation, train[:-VALID_SIZE], train[-VALID_SIZE:], test)
    return labelled(data, *read_labels(source, folders(source)))


def labelled(data: Dataset, train: Array | None, test: Array | None) -> Dataset:
    """The same images with their labels, those of ``train`` and ``valid`` being in one array."""
    return replace(
        data,
        train_labels=None if train is None else _labels(train[:-VALID_SIZE]),
        valid_labels=None if train is None else _labels(train[-VALID_SIZE:]),
        test_labels=None if test is None else _labels(test),
    )


def _labels(array: Array) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def read(source: Source, *, may_download: bool) -> tuple[Array, Array]:
    """The grey values of the training and of the test images, checked against their digests."""
    train, test = (_decoded(source, name, _obtain(source, name, may_download)) for name in (TRAIN, TEST))
    return train, test


def read_folder(source: Source, folder: Path) -> tuple[Array, Array]:
    """What ``read`` gives, from the files in ``folder`` and nowhere else."""
    paths = [find(name, [folder]) or folder / f"{name}.gz" for name in (TRAIN, TEST)]
    train, test = (_decoded(source, name, path) for name, path in zip((TRAIN, TEST), paths, strict=True))
    return train, test


def read_labels(source: Source, where: Sequence[Path]) -> tuple[Array | None, Array | None]:
    """The labels of the training and of the test images in the files in these folders, None for a file not found."""
    paths = {name: find(name, where) for name in (TRAIN_LABELS, TEST_LABELS)}
    train, test = (
        None if path is None else idx.decode(_payload(path, source.label_digests[name]), path)
        for name, path in paths.items()
    )
    return train, test


def find(name: str, where: Sequence[Path]) -> Path | None:
    """A file in the first of the folders that has it, gzipped or not."""
    for folder in where:
        for path in (folder / f"{name}.gz", folder / name):
            if path.is_file():
                return path
    return None


def folders(source: Source) -> list[Path]:
    """The folders that are searched for the files of ``source``, in order."""
    found = [download.cache_folder() / source.name]
    if base := os.environ.get("DAGFISHER_DATA"):
        if not Path(base).is_dir():
            raise DataError(f"DAGFISHER_DATA names {base}, which is not a folder; correct it or unset it.")
        found.insert(0, Path(base) / source.name)
    return found


def _obtain(source: Source, name: str, may_download: bool) -> Path:
    where = folders(source)
    if path := find(name, where):
        return path
    if not may_download:
        places = " or ".join(str(folder) for folder in where)
        raise DataError(f"{source.name} is not here; allow its download, or put {name}.gz into {places}.")
    path = _fetch(source, name, source.digests[name])
    if find(labels := _LABELS_OF[name], where) is None:
        try:
            _fetch(source, labels, source.label_digests[labels])
        except DataError as error:
            warnings.warn(f"{source.name} is without labels: {error}", DagFisherWarning, stacklevel=2)
    return path


def _fetch(source: Source, name: str, digest: str) -> Path:
    path = download.cache_folder() / source.name / f"{name}.gz"
    download.fetch([f"{mirror}{name}.gz" for mirror in source.mirrors], path, digest)
    return path


def _decoded(source: Source, name: str, path: Path) -> Array:
    return idx.decode(_payload(path, source.digests[name]), path)


def _payload(path: Path, digest: str) -> bytes:
    payload = idx.read_bytes(path)
    if hashlib.sha256(payload).hexdigest() != digest:
        raise DataError(f"{path} does not hold what it should (its SHA-256 differs); delete it and fetch it again.")
    return payload
