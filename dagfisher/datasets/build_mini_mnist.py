"""Builds the embedded miniMNIST from MNIST: ``python -m dagfisher.datasets.build_mini_mnist``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .._files import replacing
from . import mini_mnist, mnist
from .errors import DataError
from .idx import Array

HALF = 4 * 127.5


def build(train: Array, test: Array) -> bytes:
    """The packed file from MNIST's grey values; a pixel is 1 where the mean of its square is ≥ 127.5."""
    return mini_mnist.pack(np.concatenate([mini_mnist.squares(grey) >= HALF for grey in (train, test)]))


def build_labels(folders: Sequence[Path]) -> bytes:
    """The packed file of MNIST's labels, those of the training images first."""
    labels = mnist.read_labels(mnist.MNIST, folders)
    for name, found in zip((mnist.TRAIN_LABELS, mnist.TEST_LABELS), labels, strict=True):
        if found is None:
            raise DataError(f"{name}.gz is not in {' or '.join(map(str, folders))}; put it there.")
    return mini_mnist.pack_labels(np.concatenate([found for found in labels if found is not None]))


def main(arguments: list[str] | None = None) -> None:
    """Read MNIST from a folder, or from where ``load`` would take it, and write the packed images and labels."""
    parser = argparse.ArgumentParser(prog="python -m dagfisher.datasets.build_mini_mnist", description=__doc__)
    default = Path(__file__).parent / "data" / mini_mnist.FILE
    parser.add_argument(
        "--out",
        type=Path,
        default=default,
        help="the file of images to write; labels go beside it (default: in the package)",
    )
    parser.add_argument("--mnist", type=Path, help="the folder with MNIST's IDX files (default: as for load('mnist'))")
    options = parser.parse_args(arguments)
    out: Path = options.out
    try:
        if options.mnist:
            packed = build(*mnist.read_folder(mnist.MNIST, options.mnist))
            labels = build_labels([options.mnist])
        else:
            packed = build(*mnist.read(mnist.MNIST, may_download=True))
            labels = build_labels(mnist.folders(mnist.MNIST))
    except DataError as error:
        sys.exit(str(error))
    for path, content in ((out, packed), (out.with_name(mini_mnist.LABELS_FILE), labels)):
        with replacing(path) as file:
            file.write(content)
        print(f"{path}: {len(content):,} bytes; SHA-256 before compression {mini_mnist.digest(content)}")


if __name__ == "__main__":
    main()
