"""Arrays of images become datasets: checking values, binarising, splitting, reading files of the user's."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import idx
from .dataset import Binarisation, Dataset
from .errors import DataError
from .idx import Array

_NPY_MAGIC = b"\x93NUMPY"


def load(path: Path, binarisation: Binarisation) -> Dataset:
    """A dataset from an IDX file (gzipped or not) or a ``.npy`` file of images.

    The array is images × rows × columns, or images × pixels (shown as squares if the number of pixels is a
    square number and as one row otherwise). Integers are grey values from 0 to 255, unless all are 0 or 1,
    which are pixels off or on; floating-point numbers are grey values from 0 to 1.

    The images stay in their order: the last seventh is ``test``, the seventh before it ``valid``, the rest
    ``train`` (as MNIST is split, 50,000 : 10,000 : 10,000). Shuffle a file that is sorted before saving it.
    """
    images = check(read(path), path)
    part = max(1, len(images) // 7)
    train = len(images) - 2 * part
    if train < 1:
        raise DataError(f"{path} holds {len(images)} images; three splits need at least 3.")
    return assemble(path.name, binarisation, images[:train], images[train : train + part], images[train + part :], path)


def read(path: Path) -> Array:
    """The array in an IDX or ``.npy`` file; the content decides which it is."""
    payload = idx.read_bytes(path)
    if not payload.startswith(_NPY_MAGIC):
        if path.suffix == ".npy":
            raise DataError(f"{path} is not a .npy file (wrong magic number); save it again with numpy.save.")
        return idx.decode(payload, path)
    try:
        array: Array = np.load(io.BytesIO(payload), allow_pickle=False)
    except Exception as error:  # a damaged header makes numpy raise almost anything
        reason = str(error).partition("\n")[0].rstrip(".") or "it ends too early"
        raise DataError(
            f"{path} cannot be read as a .npy file of numbers ({reason}); save it again with numpy.save."
        ) from error
    return array


def check(array: Array, source: Path) -> Array:
    """The array as images × rows × columns of bool, uint8 (0 to 255) or float32 (0 to 1)."""
    if array.ndim == 1:
        raise DataError(f"{source} holds labels or single numbers, not images; give the file with the images.")
    if array.ndim not in (2, 3):
        raise DataError(
            f"{source} has {array.ndim} dimensions; images need 3 (images × rows × columns) or 2 (images × pixels)."
        )
    if array.size == 0:
        raise DataError(f"{source} holds no images (its shape is {array.shape}); give a file that does.")
    if array.ndim == 2:
        side = math.isqrt(array.shape[1])
        rows = side if side * side == array.shape[1] else 1
        array = array.reshape(len(array), rows, -1)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind not in "iuf":
        raise DataError(f"{source} holds values of type {array.dtype}; images need integers or floats.")
    low, high = array.min(), array.max()
    top = 1 if array.dtype.kind == "f" else 255
    if not (low >= 0 and high <= top):
        kind = "floats" if top == 1 else "integers"
        raise DataError(f"{source} holds {kind} from {low:g} to {high:g}; grey values are from 0 to {top}.")
    if top == 1:
        return array.astype(np.float32)
    return array.astype(bool) if high <= 1 else array.astype(np.uint8)


def assemble(
    name: str, binarisation: Binarisation, train: Array, valid: Array, test: Array, source: Path | None = None
) -> Dataset:
    """A dataset from checked images; B is binarised here."""
    if binarisation != "B" and train.dtype == bool:
        raise DataError(f"{source or name} has no grey values, every pixel is on or off; use binarisation B.")
    convert = _binary if binarisation == "B" else _grey
    return Dataset(
        name=name,
        binarisation=binarisation,
        shape=(train.shape[1], train.shape[2]),
        train=convert(train),
        valid=convert(valid),
        test=convert(test),
    )


def _grey(images: Array) -> Tensor:
    return torch.from_numpy(np.array(images.reshape(len(images), -1)))


def _binary(images: Array) -> Tensor:
    half = {"b": 1, "u": 128, "f": 0.5}[images.dtype.kind]
    return _grey(images >= half)
