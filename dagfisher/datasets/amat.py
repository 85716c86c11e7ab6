"""Binary images as text, the format of the usual files of binarised MNIST (``binarized_mnist_train.amat`` and so on).

One image per line: its pixels row by row, each 0 or 1, with blanks between them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .errors import DataError
from .idx import Array

SUFFIX = ".amat"
_HEAD = 4096


def named(path: Path) -> bool:
    """Whether the name of a file, gzipped or not, says that it is of this format."""
    return path.name.lower().removesuffix(".gz").endswith(SUFFIX)


def looks_like(payload: bytes) -> bool:
    """Whether the content of a file begins as this format does: with zeros, ones and blanks."""
    head = payload[:_HEAD]
    return bool(head.strip()) and not head.translate(None, b"01 \t\r\n")


def decode(payload: bytes, source: Path) -> Array:
    """The images in the bytes of such a file, (images, pixels), bool; ``source`` is the file that errors name."""
    images: list[bytes] = []
    for number, line in enumerate(payload.splitlines(), 1):
        if not (pixels := _pixels(line, source, number)):
            continue
        if images and len(pixels) != len(images[0]):
            raise DataError(
                f"{source} has {len(pixels):,} pixels in line {number:,} and {len(images[0]):,} in the first; "
                f"it may be truncated, fetch it again."
            )
        images.append(pixels)
    if not images:
        raise DataError(f"{source} holds no images; each line of such a file is one, pixels of 0 or 1 with blanks.")
    digits = np.frombuffer(b"".join(images), np.uint8).reshape(len(images), -1)
    return np.equal(digits, ord("1"))


def _pixels(line: bytes, source: Path, number: int) -> bytes:
    """The digits of a line, one after the other; a `DataError` if any word of it is not 0 or 1."""
    line = line.strip()
    pixels, between = line[::2], line[1::2]
    if not between.strip() and not pixels.strip(b"01"):  # the usual: one blank after each pixel
        return pixels
    words = line.split()
    for word in words:
        if word not in (b"0", b"1"):
            shown = word[:20].decode("ascii", "replace")
            raise DataError(
                f"{source} has {shown!r} in line {number:,}, where a 0 or a 1 should be; save other numbers as .npy."
            )
    return b"".join(words)
