"""The IDX format, gzipped or not.

Two zero bytes, a type code, the number of dimensions, their sizes as big-endian 32-bit integers, the values
in C order. The content of a file decides what it is, not its name.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DataError

Array = npt.NDArray[Any]

GZIP_MAGIC = b"\x1f\x8b"

_CODES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzipped."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged or truncated gzip file ({error}); fetch it again.") from error


def decode(payload: bytes, source: Path) -> Array:
    """The array in the bytes of an IDX file; ``source`` is the file that errors name."""
    if len(payload) < 4 or payload[:2] != b"\0\0" or payload[2] not in _CODES or payload[3] == 0:
        raise DataError(f"{source} is not an IDX file (wrong magic number); give an IDX file of images.")
    dtype, dimensions = np.dtype(_CODES[payload[2]]), payload[3]
    start = 4 + 4 * dimensions
    if len(payload) < start:
        raise DataError(f"{source} is truncated (it ends within its header); fetch it again.")
    sizes = struct.unpack(f">{dimensions}I", payload[4:start])
    expected = start + math.prod(sizes) * dtype.itemsize
    if len(payload) != expected:
        problem = "truncated" if len(payload) < expected else "damaged"
        raise DataError(
            f"{source} is {problem} ({len(payload):,} bytes; its header says {expected:,}); fetch it again."
        )
    return np.frombuffer(payload, dtype=dtype, offset=start).reshape(sizes)


def encode(array: Array) -> bytes:
    """The bytes of an IDX file (not compressed) that decodes to ``array``."""
    for code, name in _CODES.items():
        dtype = np.dtype(name)
        if array.dtype.newbyteorder(">") == dtype:
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
            return header + array.astype(dtype).tobytes()
    raise ValueError(f"IDX has no type for {array.dtype}")


def read(path: Path) -> Array:
    """The array in an IDX file."""
    return decode(read_bytes(path), path)
