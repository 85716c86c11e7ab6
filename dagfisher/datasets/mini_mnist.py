"""miniMNIST: MNIST at 14×14, embedded in the package.

A pixel is the mean of a 2×2 square of MNIST's grey values. B, which is embedded, is that mean rounded at one
half; C and F take it as the probability of a 1 and G rounds it to 256 levels, and these need MNIST itself. The
reduction behind the published figures for "miniMNIST" is not known, so figures compare with those approximately.

Derived from MNIST (Yann LeCun, Corinna Cortes, Christopher J. C. Burges), Creative Commons Attribution-Share
Alike 3.0.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
import zlib

import numpy as np

from . import images, mnist
from .dataset import Binarisation, Dataset
from .errors import DataError
from .idx import Array

NAME = "mini-mnist"
FILE, LABELS_FILE = "mini-mnist.bits.gz", "mini-mnist.labels.gz"
DIGEST = "109a86980cff9079eefd67792cb4bbfa66b911d5acd4ca9864712366b37a46fd"
LABELS_DIGEST = "671ff9d70b4811116d55c3dd479efa7a981e2e62753ef7a6d5c15fea81e63d27"
SIDE = 14
TRAIN_SIZE, VALID_SIZE, TEST_SIZE = 50_000, 10_000, 10_000
_ROW_BYTES = 2


def load(binarisation: Binarisation, *, may_download: bool) -> Dataset:
    """The same images in the same splits as MNIST's, B and the labels from the package, the rest from MNIST's files."""
    data = _images(binarisation, may_download)
    labels = np.frombuffer(gzip.decompress(embedded(LABELS_FILE, LABELS_DIGEST)), np.uint8)
    return mnist.labelled(data, *np.split(labels, [TRAIN_SIZE + VALID_SIZE]))


def _images(binarisation: Binarisation, may_download: bool) -> Dataset:
    if binarisation == "B":
        binary = unpack(embedded(FILE, DIGEST))
        train, valid, test = np.split(binary, [TRAIN_SIZE, TRAIN_SIZE + VALID_SIZE])
        return images.assemble(NAME, binarisation, train, valid, test)
    try:
        grey_train, grey_test = mnist.read(mnist.MNIST, may_download=may_download)
    except DataError as error:
        raise DataError(f"{NAME} {binarisation} needs the grey values of MNIST (B does not): {error}") from error
    means, test = (_scaled(grey, binarisation) for grey in (grey_train, grey_test))
    return images.assemble(NAME, binarisation, means[:TRAIN_SIZE], means[TRAIN_SIZE:], test)


def _scaled(grey: Array, binarisation: Binarisation) -> Array:
    """The means of the 2×2 squares, from 0 to 1 for C and F, as levels from 0 to 255 for G."""
    sums = squares(grey)
    return ((sums + 2) // 4).astype(np.uint8) if binarisation == "G" else sums / np.float32(4 * 255)


def squares(grey: Array) -> Array:
    """The sums of the 2×2 squares of images with grey values from 0 to 255."""
    upper, lower = grey[:, ::2].astype(np.uint16), grey[:, 1::2]
    rows = upper + lower
    sums: Array = rows[:, :, ::2] + rows[:, :, 1::2]
    return sums


def pack(binary: Array) -> bytes:
    """Binary images as one bit per pixel, each row filled up to whole bytes, compressed."""
    return gzip.compress(np.packbits(binary, axis=2).tobytes(), compresslevel=9, mtime=0)


def pack_labels(labels: Array) -> bytes:
    """Labels as one byte each, compressed."""
    return gzip.compress(labels.astype(np.uint8).tobytes(), compresslevel=9, mtime=0)


def unpack(packed: bytes) -> Array:
    """The binary images in what ``pack`` made: images × 14 × 14, bool."""
    rows = np.frombuffer(gzip.decompress(packed), np.uint8).reshape(-1, SIDE, _ROW_BYTES)
    return np.unpackbits(rows, axis=2, count=SIDE).view(bool)


def embedded(name: str, expected: str) -> bytes:
    """The file of that name in the package, checked."""
    resource = importlib.resources.files(__package__) / "data" / name
    try:
        packed = resource.read_bytes()
        if digest(packed) == expected:
            return packed
    except (OSError, EOFError, zlib.error):
        pass
    raise DataError(f"{resource} is missing or damaged; install dagfisher again.")


def digest(packed: bytes) -> str:
    """The SHA-256 of a packed file before compression, which does not depend on the compressor."""
    return hashlib.sha256(gzip.decompress(packed)).hexdigest()
