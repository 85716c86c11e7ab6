"""The datasets by name: loaded, and listed with where each is found."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import NamedTuple, cast

from torch import Tensor

from . import download, images, mini_mnist, mnist, three_by_three
from .dataset import BINARISATIONS, Binarisation, Dataset
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


def load(
    name: str | os.PathLike[str],
    binarisation: str = "B",
    *,
    colour: str = "refuse",
    tile: tuple[int, int] | None = None,
    may_download: bool = True,
) -> Dataset:
    """The dataset of that name (see ``NAMES``), or the images in the file or folder of that path.

    ``mnist`` and ``fashion-mnist`` are taken from the folders of these names in ``DAGFISHER_DATA``, else from the
    user's cache folder, else downloaded to there.

    A path may be that of an IDX file (gzipped or not), of a ``.npy``, ``.npz``, ``.pt``, ``.amat`` or PNG file, or of a
    folder of PNG files or of the ``.amat`` files of the splits. Integers are grey values from 0 to 255, unless all are
    0 or 1, which are pixels off or on; floats are grey values from 0 to 1. Without splits of its own, a file is split
    in its order: the last seventh is ``test``, the seventh before it ``valid``.

    Args:
        name: or a path, which is never mistaken for a name if it is given as a ``Path``.
        binarisation: "B" (rounded at one half), "C" (grey values are the probabilities of a 1, drawn anew at each
            step), "F" (the same, but drawn once) or "G" (the grey values themselves, dequantised). Pixels that are on
            or off stay as they are; they are "B", or "F" if that is asked for.
        colour: what to do with images in colour: "refuse" them, or make them "grey".
        tile: (rows, columns) of the images, if the path is that of one PNG file with many of them side by side.
        may_download: whether files that are not found may be fetched.
    """
    kind = _checked(binarisation, colour, tile)
    if name in NAMES and tile is not None:
        raise DataError(f"tile is the size of the images on a sheet, and {name} is not a PNG file; leave it out.")
    if name == "three-by-three":
        if kind != "B":
            raise DataError("three-by-three has no grey values, every pixel is on or off; use binarisation B.")
        return three_by_three.load()
    if name == "mini-mnist":
        return mini_mnist.load(kind, may_download=may_download)
    if isinstance(name, str) and name in _SOURCES:
        return mnist.load(_SOURCES[name], kind, may_download=may_download)
    return images.load(find(name), kind, cast(images.Colour, colour), tile)


def read_images(
    path: str | os.PathLike[str],
    binarisation: str = "B",
    *,
    colour: str = "refuse",
    tile: tuple[int, int] | None = None,
) -> tuple[Tensor, tuple[int, int]]:
    """All images of a file or folder, in no splits, and their (rows, columns).

    Args:
        path: as for `load`.
        binarisation: as for `load`; C is drawn, and G dequantised, once, the same at every call.
        colour: as for `load`.
        tile: as for `load`.

    Returns:
        A float32 tensor (n, pixels) from 0 to 1, and the shape of each image.
    """
    kind = _checked(binarisation, colour, tile)
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"there is no file and no folder {str(path)!r}; give the path of images.")
    return images.read_images(path, kind, cast(images.Colour, colour), tile)


def find(name: str | os.PathLike[str]) -> Path:
    """The file or folder of that path; a `DataError` that names the datasets, and one that may be meant, if none is."""
    path = Path(name).expanduser()
    if str(name) and path.exists():
        return path
    near = difflib.get_close_matches(path.name.lower(), NAMES, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise DataError(
        f"there is no dataset and no file {str(name)!r}{meant}; use {', '.join(NAMES)}, or the path of images: "
        f"an IDX, .npy, .npz, .pt, .amat or PNG file, or a folder of PNG files."
    )


def _checked(binarisation: str, colour: str, tile: tuple[int, int] | None) -> Binarisation:
    if binarisation not in BINARISATIONS:
        *others, last = [f"{letter} ({meaning})" for letter, meaning in BINARISATIONS.items()]
        raise DataError(f"there is no binarisation {binarisation!r}; use {', '.join(others)} or {last}.")
    if colour not in images.COLOURS:
        raise DataError(f"colour is {colour!r}; it must be 'refuse' or 'grey'.")
    if tile is not None and not (len(tile) == 2 and min(tile) >= 1):
        raise DataError(f"tile is {tile!r}; it must be the rows and columns of an image, each at least 1.")
    return binarisation


def available() -> list[Listing]:
    """Every named dataset, and where it is found or how to get it; nothing is read or downloaded."""
    bars = Listing("three-by-three", "B", (3, 3), (1800, 18, 18), True, "computed")
    split = (mini_mnist.TRAIN_SIZE, mini_mnist.VALID_SIZE, mini_mnist.TEST_SIZE)
    grey = "from mnist" if _whereabouts(mnist.MNIST)[0] else "once mnist is there"
    every, where = ", ".join(BINARISATIONS), f"B in the package, the others {grey}"
    mini = Listing("mini-mnist", every, (mini_mnist.SIDE,) * 2, split, True, where)
    rest = [Listing(name, every, (28, 28), split, *_whereabouts(source)) for name, source in _SOURCES.items()]
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
