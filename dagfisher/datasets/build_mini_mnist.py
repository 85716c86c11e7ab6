"""Builds the embedded miniMNIST from MNIST: ``python -m dagfisher.datasets.build_mini_mnist``."""

from __future__ import annotations

import argparse
import sys
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


def main(arguments: list[str] | None = None) -> None:
    """Read MNIST from a folder, or from where ``load`` would take it, and write the packed file."""
    parser = argparse.ArgumentParser(prog="python -m dagfisher.datasets.build_mini_mnist", description=__doc__)
    default = Path(__file__).parent / "data" / mini_mnist.FILE
    parser.add_argument("--out", type=Path, default=default, help="the file to write (default: the one in the package)")
    parser.add_argument("--mnist", type=Path, help="the folder with MNIST's IDX files (default: as for load('mnist'))")
    options = parser.parse_args(arguments)
    out: Path = options.out
    try:
        if options.mnist:
            packed = build(*mnist.read_folder(mnist.MNIST, options.mnist))
        else:
            packed = build(*mnist.read(mnist.MNIST, may_download=True))
    except DataError as error:
        sys.exit(str(error))
    with replacing(out) as file:
        file.write(packed)
    print(f"{out}: {len(packed):,} bytes; SHA-256 of its bits {mini_mnist.digest(packed)}")


if __name__ == "__main__":
    main()
