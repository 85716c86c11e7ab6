"""IDX files: what is written is read, and what is damaged is named."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from dagfisher.datasets import DataError, idx

SOURCE = Path("images-idx")
DTYPES = st.sampled_from(["uint8", "int8", "int16", "int32", "float32", "float64"]).map(np.dtype)
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(max_dims=4, min_side=0, max_side=5)))


@given(array=ARRAYS)
def test_decoding_undoes_encoding(array: idx.Array) -> None:
    decoded = idx.decode(idx.encode(array), SOURCE)
    assert decoded.shape == array.shape
    assert decoded.dtype.newbyteorder("=") == array.dtype
    np.testing.assert_array_equal(decoded, array)


@given(array=ARRAYS, data=st.data())
def test_every_proper_prefix_is_refused(array: idx.Array, data: st.DataObject) -> None:
    payload = idx.encode(array)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(DataError, match=r"truncated|not an IDX file"):
        idx.decode(payload[:cut], SOURCE)


@given(payload=st.binary(max_size=64))
def test_arbitrary_bytes_are_an_array_or_a_data_error(payload: bytes) -> None:
    try:
        array = idx.decode(payload, SOURCE)
    except DataError as error:
        assert str(SOURCE) in str(error)
    else:
        assert idx.encode(array) == payload


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_the_content_decides_whether_a_file_is_compressed(tmp_path: Path, name: str, compress: object) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / name
    path.write_bytes(compress(idx.encode(array)))  # type: ignore[operator]
    np.testing.assert_array_equal(idx.read(path), array)


IMAGES = idx.encode(np.arange(4 * 28 * 28, dtype=np.uint32).reshape(4, 28, 28).astype(np.uint8))
PACKED = gzip.compress(IMAGES, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\0\0", "not an IDX file"),
        (b"GIF89a" + IMAGES, "not an IDX file"),
        (b"\0\0\x07" + IMAGES[3:], "not an IDX file"),
        (IMAGES[:10], "truncated .* within its header"),
        (IMAGES[:-1], r"truncated \(3,151 bytes; its header says 3,152\)"),
        (IMAGES + b"\0", r"damaged \(3,153 bytes; its header says 3,152\)"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, *[2**32 - 1] * 3), "truncated"),
        (PACKED[:100], "damaged or truncated gzip"),
        (PACKED[:-4], "damaged or truncated gzip"),
        (PACKED[:60] + bytes([PACKED[60] ^ 0x55]) + PACKED[61:], "damaged or truncated gzip"),
        (PACKED[:2], "damaged or truncated gzip"),
        (gzip.compress(b"<html>not found</html>"), "not an IDX file"),
    ],
    ids=[
        "empty",
        "two bytes",
        "picture",
        "unknown type",
        "cut header",
        "one byte missing",
        "one byte too many",
        "announces too much",
        "cut gzip",
        "no gzip trailer",
        "flipped gzip bits",
        "gzip magic only",
        "gzipped web page",
    ],
)
def test_a_damaged_file_gives_one_sentence_with_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent cannot be read \(No such file"):
        idx.read(tmp_path / "absent")


def test_types_that_idx_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="complex128"):
        idx.encode(np.zeros(3, dtype=complex))
