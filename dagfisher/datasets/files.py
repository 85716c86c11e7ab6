"""The arrays in files of the user's: IDX, .npy, .npz, .pt, .amat, PNGs, folders; the content decides which it is."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import amat, idx, png
from .errors import DataError
from .idx import Array

ALL = "all"
"""The name under which `read` gives images that are not in splits."""

_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
_SPLITS = {
    **{f"{prefix}{split}": split for prefix in ("", "x_") for split in ("train", "valid", "test")},
    **{f"{prefix}{name}": "valid" for prefix in ("", "x_") for name in ("val", "validation")},
}
"""The split that a name inside a file, or of a folder, means."""


def read(path: Path, tile: tuple[int, int] | None = None) -> dict[str, Array]:
    """The arrays in a file or a folder, by the splits they are in, or one array under `ALL`; nothing is checked yet.

    Args:
        path: an IDX or ``.amat`` file (gzipped or not), a ``.npy``, ``.npz``, ``.pt`` or PNG file, a folder of PNG
            files, or one of ``.amat`` files whose names end in their splits.
        tile: (rows, columns) of the images that one PNG file is a sheet of.
    """
    if path.is_dir():
        _no_tile(path, tile)
        return _read_folder(path)
    payload = idx.read_bytes(path)
    if payload.startswith(png.MAGIC) and path.suffix != ".npy":
        picture = png.decode(payload, path)
        return {ALL: picture[None] if tile is None else png.tiles(picture, tile, path)}
    _no_tile(path, tile)
    if payload.startswith(_ZIP_MAGIC):
        return _read_npz(payload, path) if _holds_npy(payload) else _read_pt(payload, path)
    if path.suffix in (".pt", ".pth"):  # before PyTorch 1.6 these were no zip files
        return _read_pt(payload, path)
    if payload.startswith(_NPY_MAGIC):
        return {ALL: _read_npy(payload, path)}
    for suffix, function in ((".npy", "numpy.save"), (".npz", "numpy.savez"), (".png", "a program for pictures")):
        if path.suffix == suffix:
            raise DataError(f"{path} is not a {suffix} file (wrong magic number); save it again with {function}.")
    if amat.named(path) or amat.looks_like(payload):
        return {ALL: amat.decode(payload, path)}
    return {ALL: idx.decode(payload, path)}


def _no_tile(path: Path, tile: tuple[int, int] | None) -> None:
    if tile is not None:
        raise DataError(f"{path} is not one PNG file, and tile is the size of the images on a sheet; leave it out.")


def _read_npy(payload: bytes, path: Path) -> Array:
    try:
        array: Array = np.load(io.BytesIO(payload), allow_pickle=False)
    except Exception as error:  # a damaged header makes numpy raise almost anything
        raise DataError(
            f"{path} cannot be read as a .npy file of numbers ({_reason(error)}); save it again with numpy.save."
        ) from error
    return array


def _holds_npy(payload: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except Exception:  # a damaged directory makes zipfile raise almost anything
        return b".npy" in payload[:512]


def _read_npz(payload: bytes, path: Path) -> dict[str, Array]:
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as a .npz file of numbers ({_reason(error)}); save it again with numpy.savez."
        ) from error
    return _chosen(found, path)


def _read_pt(payload: bytes, path: Path) -> dict[str, Array]:
    try:
        found = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        if isinstance(found, Tensor):
            return {ALL: _array(found)}
        named = found.items() if isinstance(found, Mapping) else enumerate(found)
        tensors = {str(name): _array(each) for name, each in named if isinstance(each, Tensor)}
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as a .pt file of tensors ({_reason(error)}); save a tensor, or a dict of tensors, "
            f"with torch.save."
        ) from error
    return _chosen(tensors, path)


def _array(tensor: Tensor) -> Array:
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    array: Array = (dense.float() if dense.dtype.is_floating_point else dense).numpy()
    return array


def _read_folder(folder: Path) -> dict[str, Array]:
    if texts := sorted(path for path in folder.iterdir() if path.is_file() and amat.named(path)):
        return _read_texts(texts, folder)
    inside: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (split := _SPLITS.get(path.name.lower())):
            inside.setdefault(split, []).append(path)
    if not inside:
        return {ALL: png.read_folder(folder)}
    _require_splits({split: [path.name for path in paths] for split, paths in inside.items()}, folder)
    return {split: png.read_folder(inside[split][0]) for split in ("train", "valid", "test") if split in inside}


def _read_texts(paths: list[Path], folder: Path) -> dict[str, Array]:
    """The splits in ``.amat`` files, such as ``binarized_mnist_train.amat``."""
    inside: dict[str, list[Path]] = {}
    for path in paths:
        split = _SPLITS.get(path.name.partition(".")[0].lower().rpartition("_")[2])
        if split is None:
            raise DataError(
                f"{path} does not say which split it is; let its name end in _train, _valid or _test, or give it alone."
            )
        inside.setdefault(split, []).append(path)
    _require_splits({split: [path.name for path in found] for split, found in inside.items()}, folder)
    return {
        split: amat.decode(idx.read_bytes(inside[split][0]), inside[split][0])
        for split in ("train", "valid", "test")
        if split in inside
    }


def _chosen(found: Mapping[str, Array], path: Path) -> dict[str, Array]:
    """The splits among named arrays, or the only array that can be images; others, such as labels, are left."""
    names: dict[str, list[str]] = {}
    for name in found:
        if split := _SPLITS.get(name.lower()):
            names.setdefault(split, []).append(name)
    if names:
        _require_splits(names, path)
        return {split: found[names[split][0]] for split in ("train", "valid", "test") if split in names}
    images = [name for name, array in found.items() if array.ndim > 1]
    if len(images) == 1:
        return {ALL: found[images[0]]}
    if not images:
        raise DataError(f"{path} holds labels or single numbers, not images; give the file with the images.")
    shown = ", ".join(images[:4]) + (" and more" if len(images) > 4 else "")
    raise DataError(f"{path} holds {shown}; save the images alone, or as train, valid and test.")


def _require_splits(names: Mapping[str, list[str]], path: Path) -> None:
    """Raise a sentence unless there are train and test, each once; valid may be missing."""
    for split, given in names.items():
        if len(given) > 1:
            raise DataError(f"{path} holds {' and '.join(given)}, which both mean {split}; leave one of them.")
    missing = [split for split in ("train", "test") if split not in names]
    if missing:
        there = " and ".join(given[0] for given in names.values())
        raise DataError(f"{path} holds {there}, but no {' and no '.join(missing)}; add it, and valid if you have it.")


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") or "it ends too early"
