"""MNIST and FashionMNIST: 28×28 grey images in IDX files, found, or downloaded and checked.

MNIST: Yann LeCun, Corinna Cortes, Christopher J. C. Burges; Creative Commons Attribution-Share Alike 3.0.
FashionMNIST: Han Xiao, Kashif Rasul, Roland Vollgraf (Zalando); MIT licence.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import download, idx, images
from .dataset import Binarisation, Dataset
from .errors import DataError
from .idx import Array

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
VALID_SIZE = 10_000


@dataclass(frozen=True)
class Source:
    """A pair of IDX files, the SHA-256 of what each holds once decompressed, and where to fetch them."""

    name: str
    digests: dict[str, str]
    mirrors: tuple[str, ...]
    megabytes: float


MNIST = Source(
    name="mnist",
    digests={
        TRAIN: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TEST: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
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
    mirrors=(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    megabytes=30.8,
)


def load(source: Source, binarisation: Binarisation, *, may_download: bool) -> Dataset:
    """The training images without the last 10,000, those as ``valid``, and the test images."""
    train, test = read(source, may_download=may_download)
    return images.assemble(source.name, binarisation, train[:-VALID_SIZE], train[-VALID_SIZE:], test)


def read(source: Source, *, may_download: bool) -> tuple[Array, Array]:
    """The grey values of the training and of the test images, checked against their digests."""
    train, test = (_decoded(source, name, _obtain(source, name, may_download)) for name in (TRAIN, TEST))
    return train, test


def read_folder(source: Source, folder: Path) -> tuple[Array, Array]:
    """What ``read`` gives, from the files in ``folder`` and nowhere else."""
    paths = [find(name, [folder]) or folder / f"{name}.gz" for name in (TRAIN, TEST)]
    train, test = (_decoded(source, name, path) for name, path in zip((TRAIN, TEST), paths, strict=True))
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
    path = download.cache_folder() / source.name / f"{name}.gz"
    urls = [f"{mirror}{name}.gz" for mirror in source.mirrors]
    download.fetch(urls, path, source.digests[name])
    return path


def _decoded(source: Source, name: str, path: Path) -> Array:
    return idx.decode(_payload(path, source.digests[name]), path)


def _payload(path: Path, digest: str) -> bytes:
    payload = idx.read_bytes(path)
    if hashlib.sha256(payload).hexdigest() != digest:
        raise DataError(f"{path} does not hold what it should (its SHA-256 differs); delete it and fetch it again.")
    return payload
