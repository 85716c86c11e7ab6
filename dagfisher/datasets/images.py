"""Arrays of images become datasets: checking values, colour, splitting, binarising."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import files
from .dataset import Binarisation, Dataset
from .errors import DataError
from .idx import Array

Colour = Literal["refuse", "grey"]
COLOURS: tuple[Colour, ...] = ("refuse", "grey")
LUMA = (0.299, 0.587, 0.114)
"""How much red, green and blue make a grey value (Recommendation ITU-R BT.601)."""
FIXED_SEED = 0
"""F is drawn from ``numpy.random.default_rng([FIXED_SEED, n])``; n is 0 for train, 1 for valid, 2 for test."""
_BLOCK = 1000


def load(
    path: Path, binarisation: Binarisation, colour: Colour = "refuse", tile: tuple[int, int] | None = None
) -> Dataset:
    """A dataset from a file or folder of images; see `dagfisher.datasets.load` for what it may be.

    Images that come in splits stay in them; if ``valid`` is missing, it is the last sixth of ``train``. Other images
    stay in their order: the last seventh is ``test``, the seventh before it ``valid``, the rest ``train`` (as MNIST is
    split, 50,000 : 10,000 : 10,000).
    """
    images, (train, valid, _) = _read(path, colour, tile)
    if not train:
        part = max(1, len(images) // 7)
        train, valid = len(images) - 2 * part, part
        if train < 1:
            more = "; give a folder of PNG files, or the size of the images on this sheet (tile, for example 28x28)"
            raise DataError(
                f"{path} holds {_count(len(images))}; three splits need at least 3"
                f"{more if path.suffix.lower() == '.png' and tile is None else ''}."
            )
    elif not valid:
        valid = max(1, train // 6)
        train -= valid
        if train < 1:
            raise DataError(f"{path} holds 1 image in train and none in valid; give at least 2 in train.")
    end = train + valid
    return assemble(path.name, binarisation, images[:train], images[train:end], images[end:], path)


def read_images(
    path: Path, binarisation: Binarisation, colour: Colour = "refuse", tile: tuple[int, int] | None = None
) -> tuple[Tensor, tuple[int, int]]:
    """All images of a file or folder as a machine sees them, (n, pixels), float32, and their (rows, columns)."""
    images, _ = _read(path, colour, tile)
    if images.dtype == bool and binarisation != "B":
        images = images.astype(np.float32)
    data = assemble(path.name, binarisation, images[:0], images[:0], images, path)
    return data.evaluation("test"), data.shape


def _read(path: Path, colour: Colour, tile: tuple[int, int] | None) -> tuple[Array, tuple[int, int, int]]:
    """The checked images of a file, and how many are in train, valid and test (zeros if the file does not say)."""
    parts = files.read(path, tile)
    if files.ALL in parts:
        return check(parts[files.ALL], path, colour), (0, 0, 0)
    _require_alike(parts, path)
    train, valid, test = (len(parts.get(split, ())) for split in ("train", "valid", "test"))
    return check(np.concatenate(list(parts.values())), path, colour), (train, valid, test)


def _require_alike(parts: dict[str, Array], path: Path) -> None:
    """Raise a sentence unless the splits can be one array, and none is empty."""
    first = parts["train"]
    for split, array in parts.items():
        if array.ndim == 0 or len(array) == 0:
            raise DataError(f"{path} holds no images in {split}; leave it out, or fill it.")
        if array.shape[1:] != first.shape[1:]:
            shapes = ["×".join(map(str, each.shape[1:])) for each in (array, first)]
            raise DataError(
                f"{path} has {split} images of {shapes[0]} and train images of {shapes[1]}; make them alike."
            )
        if (array.dtype.kind == "f") != (first.dtype.kind == "f"):
            raise DataError(
                f"{path} has {split} images of {array.dtype} and train images of {first.dtype}; save all as one type."
            )


def _count(number: int) -> str:
    return f"{number} image" + ("" if number == 1 else "s")


def check(array: Array, source: Path, colour: Colour = "refuse") -> Array:
    """The array as images × rows × columns of bool, uint8 (0 to 255) or float32 (0 to 1).

    Args:
        array: images × rows × columns, images × pixels, or either form of images with a channel axis: × 1 or × 3, last
            or right after the images.
        source: the file that errors name.
        colour: what is done with three channels that differ.
    """
    if array.ndim == 1:
        raise DataError(f"{source} holds labels or single numbers, not images; give the file with the images.")
    if array.ndim not in (2, 3, 4):
        raise DataError(
            f"{source} has {array.ndim} dimensions; images need 3 (images × rows × columns) or 2 (images × pixels)."
        )
    if array.size == 0:
        raise DataError(f"{source} holds no images (its shape is {array.shape}); give a file that does.")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{source} holds values of type {array.dtype}; images need integers or floats.")
    low, high = array.min(), array.max()
    top = {"b": True, "f": 1}.get(array.dtype.kind, 255)
    if not (low >= 0 and high <= top):
        kind = "floats" if top == 1 else "integers"
        raise DataError(f"{source} holds {kind} from {low:g} to {high:g}; grey values are from 0 to {top}.")
    if array.ndim == 4:
        array = _one_channel(array, source, colour)
    if array.ndim == 2:
        side = math.isqrt(array.shape[1])
        rows = side if side * side == array.shape[1] else 1
        array = array.reshape(len(array), rows, -1)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(bool) if high <= 1 else array.astype(np.uint8)


def _one_channel(array: Array, source: Path, colour: Colour) -> Array:
    """Images × rows × columns from images with a channel axis."""
    for channels in (1, 3):
        axes = [axis for axis in (1, 3) if array.shape[axis] == channels]
        if len(axes) == 1:
            break
    else:
        raise DataError(
            f"{source} has 4 dimensions, {'×'.join(map(str, array.shape))}; images need 3 (images × rows × columns), "
            f"or a fourth of 1 or 3 channels, after the images or last."
        )
    planes: list[Array] = list(np.moveaxis(array, axes[0], 0))
    if channels == 1 or all(np.array_equal(planes[0], plane) for plane in planes):
        return planes[0]
    if colour != "grey":
        raise DataError(
            f"{source} holds images in colour, and a machine has one value per pixel; make them grey with "
            f"colour='grey' (on the command line: --colour grey)."
        )
    grey = np.zeros(planes[0].shape)
    for share, plane in zip(LUMA, planes, strict=True):
        grey += share * plane
    levels: Array = grey.clip(0, 1) if array.dtype.kind in "bf" else np.rint(grey).astype(np.uint8)
    return levels


def assemble(
    name: str, binarisation: Binarisation, train: Array, valid: Array, test: Array, source: Path | None = None
) -> Dataset:
    """A dataset from checked images; B is rounded, and F drawn, here, but neither changes pixels that are on or off."""
    if binarisation in ("C", "G") and train.dtype == bool:
        raise DataError(
            f"{source or name} has no grey values, every pixel is on or off; use binarisation B, or F if the pixels "
            f"were drawn from grey values: both leave them as they are."
        )
    kept = [_kept(split, binarisation, number) for number, split in enumerate((train, valid, test))]
    return Dataset(
        name=name,
        binarisation=binarisation,
        shape=(train.shape[1], train.shape[2]),
        train=kept[0],
        valid=kept[1],
        test=kept[2],
    )


def _kept(images: Array, binarisation: Binarisation, number: int) -> Tensor:
    """A split as a dataset stores it; ``number`` is that of the split."""
    if binarisation == "B" or images.dtype == bool:
        return _binary(images)
    return _drawn(images, number) if binarisation == "F" else _grey(images)


def _grey(images: Array) -> Tensor:
    return torch.from_numpy(np.array(images.reshape(len(images), math.prod(images.shape[1:]))))


def _binary(images: Array) -> Tensor:
    half = {"b": 1, "u": 128, "f": 0.5}[images.dtype.kind]
    return _grey(images >= half)


def _drawn(images: Array, number: int) -> Tensor:
    """Pixels that are 1 with the probability that the grey value is, from the stream of that number.

    A pixel is 1 where the next float64 of the stream is below its grey value; images come in their order, and pixels
    row by row. The stream is that of a bit generator by name, which numpy promises not to change.
    """
    stream = np.random.Generator(np.random.PCG64([FIXED_SEED, number]))
    pixels = np.empty(images.shape, dtype=bool)
    top = 255 if images.dtype == np.uint8 else 1
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK]
        pixels[start : start + _BLOCK] = stream.random(block.shape) < block.astype(np.float64) / top
    return _grey(pixels)
