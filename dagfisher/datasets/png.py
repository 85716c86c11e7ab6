"""PNG files as arrays of pixels: one file, a sheet of many images, or a folder. Pillow reads them."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from types import ModuleType

import numpy as np

from ..errors import MissingExtraError
from .errors import DataError
from .idx import Array, read_bytes

MAGIC = b"\x89PNG\r\n\x1a\n"
_OTHER_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".tif", ".tiff", ".webp")


def decode(payload: bytes, source: Path) -> Array:
    """The pixels of one PNG file: rows × columns, or rows × columns × 3 for colour.

    They are uint8, or float32 from 0 to 1 for 16-bit grey files. A picture whose red, green and blue are equal
    everywhere is grey, however it was saved; one with pixels that are not opaque is refused.
    """
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(payload), formats=["PNG"]) as picture:
            frames = getattr(picture, "n_frames", 1)
            if picture.mode.startswith("I"):
                return np.asarray(picture, dtype=np.float32) / np.float32(65535)
            if picture.mode in ("1", "L") and "transparency" not in picture.info:
                return np.asarray(picture.convert("L"))
            pixels = np.asarray(picture.convert("RGBA"))
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        reason = str(error).partition("\n")[0].rstrip(".") or "it ends too early"
        raise DataError(f"{source} cannot be read as a PNG file ({reason}); save it again.") from error
    if frames > 1:
        raise DataError(f"{source} is an animation of {frames} pictures; save each as a PNG file of its own.")
    if (pixels[..., 3] != 255).any():
        raise DataError(f"{source} has pixels that are not opaque; put it on a background and save it again.")
    colours = pixels[..., :3]
    return colours[..., 0] if (colours == colours[..., :1]).all() else colours


def tiles(sheet: Array, tile: tuple[int, int], source: Path) -> Array:
    """The images of a sheet, row by row: images × rows × columns (× 3)."""
    rows, columns = tile
    height, width = sheet.shape[:2]
    if height % rows or width % columns:
        raise DataError(
            f"{source} is {height}×{width} pixels, which images of {rows}×{columns} do not fill; "
            f"give the size of one image as rows × columns."
        )
    grid = sheet.reshape(height // rows, rows, width // columns, columns, *sheet.shape[2:])
    return grid.swapaxes(1, 2).reshape(-1, rows, columns, *sheet.shape[2:])


def read_folder(folder: Path) -> Array:
    """Every PNG file in a folder and below it: images × rows × columns, or × 3 if any has colour.

    The order is that of the SHA-256 of their paths inside the folder: the same everywhere, and without the order of
    classes or dates that names often have.
    """
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    others = [path for path in paths if path.suffix.lower() in _OTHER_PICTURES]
    if others:
        raise DataError(f"{min(others)} is not a PNG file; convert it to PNG, or move it out of {folder}.")
    found = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix.lower() == ".png"}
    if not found:
        raise DataError(f"{folder} holds no PNG files; give a folder that does.")
    order = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
    return _stacked([(found[name], decode(read_bytes(found[name]), found[name])) for name in order])


def _stacked(pictures: list[tuple[Path, Array]]) -> Array:
    """Pictures of one size as one array, of the widest type and with as many channels as any of them needs."""
    first, model = pictures[0]
    for path, picture in pictures:
        if picture.shape[:2] != model.shape[:2]:
            sizes = ["×".join(map(str, each.shape[:2])) for each in (picture, model)]
            raise DataError(f"{path} is {sizes[0]} pixels and {first} {sizes[1]}; all images need the same size.")
    arrays = [picture for _, picture in pictures]
    if any(array.dtype == np.float32 for array in arrays):
        arrays = [array if array.dtype == np.float32 else array / np.float32(255) for array in arrays]
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[..., None], 3, axis=2) for array in arrays]
    return np.stack(arrays)


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError(
            "PNG files need Pillow, which is not installed; install it with pip install 'dagfisher[examples]'."
        ) from None
    return Image
