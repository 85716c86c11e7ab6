"""The datasets by name: loaded, and listed with where each is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, cast

from . import download, images, mini_mnist, mnist, three_by_three
from .dataset import Binarisation, Dataset
from .errors import DataError

NAMES = ("three-by-three", "mini-mnist", "mnist", "fashion-mnist")

_SOURCES = {source.name: source for source in (mnist.MNIST, mnist.FASHION_MNIST)}


class Listing(NamedTuple):
    """A named dataset, and where it is found."""

    name: str
    binarisations: str
    shape: tuple[int, int]
    """(rows, columns) of an image."""
    sizes: tuple[int, int, int]
    """The numbers of images in train, valid and test."""
    found: bool
    where: str
    """The folder, or how to get it."""


def load(name: str | os.PathLike[str], binarisation: str = "B", *, may_download: bool = True) -> Dataset:
    """The dataset of that name (see ``NAMES``), or the images in the IDX or ``.npy`` file of that path.

    ``mnist`` and ``fashion-mnist`` are taken from the folders of these names in ``DAGFISHER_DATA``, else from the
    user's cache folder, else downloaded to there.

    Args:
        name: or a path, which is never mistaken for a name if it is given as a ``Path``.
        binarisation: "B" (binarised once), "C" (grey values are the probabilities of a 1, drawn anew at each step) or
            "G" (the grey values themselves, dequantised).
        may_download: whether files that are not found may be fetched.
    """
    if binarisation not in ("B", "C", "G"):
        raise DataError(
            f"there is no binarisation {binarisation!r}; use B (once), C (drawn at each step) or G (grey values)."
        )
    kind = cast(Binarisation, binarisation)
    if name == "three-by-three":
        if kind != "B":
            raise DataError("three-by-three has no grey values, every pixel is on or off; use binarisation B.")
        return three_by_three.load()
    if name == "mini-mnist":
        return mini_mnist.load(kind, may_download=may_download)
    if isinstance(name, str) and name in _SOURCES:
        return mnist.load(_SOURCES[name], kind, may_download=may_download)
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(
            f"there is no dataset and no file {str(name)!r}; "
            f"use {', '.join(NAMES)}, or the path of an IDX or .npy file of images."
        )
    return images.load(path, kind)


def available() -> list[Listing]:
    """Every named dataset, and where it is found or how to get it; nothing is read or downloaded."""
    bars = Listing("three-by-three", "B", (3, 3), (1800, 18, 18), True, "computed")
    split = (mini_mnist.TRAIN_SIZE, mini_mnist.VALID_SIZE, mini_mnist.TEST_SIZE)
    grey = "C and G from mnist" if _whereabouts(mnist.MNIST)[0] else "C and G once mnist is there"
    mini = Listing("mini-mnist", "B, C, G", (mini_mnist.SIDE,) * 2, split, True, f"B in the package, {grey}")
    rest = [Listing(name, "B, C, G", (28, 28), split, *_whereabouts(source)) for name, source in _SOURCES.items()]
    return [bars, mini, *rest]


def _whereabouts(source: mnist.Source) -> tuple[bool, str]:
    try:
        paths = [mnist.find(name, mnist.folders(source)) for name in source.digests]
    except DataError as error:
        return False, str(error)
    if None in paths:
        folder = download.cache_folder() / source.name
        return False, f"downloaded on first use ({source.megabytes} MB) to {folder}"
    return True, " and ".join(sorted({str(path.parent) for path in paths if path is not None}))
