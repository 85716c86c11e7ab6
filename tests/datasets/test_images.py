"""Files of the user's: IDX and .npy, by path; values, colour, splits."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from dagfisher import datasets
from dagfisher.datasets import DataError, idx, images

GREY = np.random.default_rng(0).integers(0, 256, (14, 4, 6), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (14, 4, 6, 3), dtype=np.uint8)


def npy(array: idx.Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.npy", npy(GREY)),
        ("mine-idx3-ubyte", idx.encode(GREY)),
        ("mine-idx3-ubyte.gz", gzip.compress(idx.encode(GREY))),
        ("mine.npy", npy(GREY.astype(np.int64))),
        ("mine.npy", npy(np.asfortranarray(GREY))),
    ],
    ids=["npy", "idx", "idx.gz", "int64", "fortran"],
)
@pytest.mark.parametrize("binarisation", ["B", "C"])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_becomes_a_dataset(tmp_path: Path, name: str, content: bytes, binarisation: str, kind: type) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    data = datasets.load(kind(path), binarisation)
    assert (data.label, data.shape, data.sizes) == (f"{name} {binarisation}", (4, 6), (10, 2, 2))
    pixels = torch.from_numpy(GREY.reshape(14, -1))
    expected = pixels >= 128 if binarisation == "B" else pixels
    assert torch.equal(torch.cat([data.train, data.valid, data.test]), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floating_point_grey_values_are_from_zero_to_one(tmp_path: Path, dtype: type) -> None:
    shares: idx.Array = (GREY / 255).astype(dtype)
    np.save(tmp_path / "shares.npy", shares)
    data = datasets.load(tmp_path / "shares.npy", "C")
    assert data.train.dtype == torch.float32
    np.testing.assert_array_equal(data.means("train").reshape(-1, 4, 6), shares[:10].astype(np.float32))


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32])
def test_zeros_and_ones_are_pixels_already(tmp_path: Path, dtype: type) -> None:
    np.save(tmp_path / "bits.npy", (GREY > 99).astype(dtype))
    data = datasets.load(tmp_path / "bits.npy")
    assert torch.equal(data.train, torch.from_numpy(GREY[:10] > 99).flatten(1))
    with pytest.raises(DataError, match=r"bits.npy has no grey values.*use binarisation B"):
        datasets.load(tmp_path / "bits.npy", "C")


@pytest.mark.parametrize(("pixels", "shape"), [(16, (4, 4)), (10, (1, 10)), (1, (1, 1))])
def test_flat_images_are_squares_or_rows(tmp_path: Path, pixels: int, shape: tuple[int, int]) -> None:
    np.save(tmp_path / "flat.npy", np.full((7, pixels), 200, dtype=np.uint8))
    assert datasets.load(tmp_path / "flat.npy").shape == shape


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(3, (1, 1, 1)), (7, (5, 1, 1)), (13, (11, 1, 1)), (14, (10, 2, 2)), (700, (500, 100, 100))],
)
def test_the_last_seventh_is_test_and_the_one_before_valid(tmp_path: Path, n: int, sizes: tuple[int, int, int]) -> None:
    np.save(tmp_path / "n.npy", (np.arange(n)[:, None, None] / n * np.ones((1, 2, 2))).astype(np.float32))
    data = datasets.load(tmp_path / "n.npy", "C")
    assert data.sizes == sizes
    values = torch.cat([data.train, data.valid, data.test])[:, 0]
    torch.testing.assert_close(values, torch.arange(n) / n)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_one_channel_or_three_equal_ones_are_grey(tmp_path: Path, axis: int, channels: int) -> None:
    np.save(tmp_path / "grey.npy", np.repeat(np.expand_dims(GREY, axis), channels, axis))
    data = datasets.load(tmp_path / "grey.npy", "C")
    assert data.shape == (4, 6)
    assert torch.equal(data.train, torch.from_numpy(GREY[:10]).flatten(1))


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("top", [255, 1.0])
def test_colour_becomes_grey_only_when_asked(tmp_path: Path, axis: int, top: float) -> None:
    pixels = COLOUR if top == 255 else COLOUR / 255
    np.save(tmp_path / "colour.npy", np.moveaxis(pixels, 3, axis))
    with pytest.raises(DataError, match="in colour"):
        datasets.load(tmp_path / "colour.npy", "C")
    data = datasets.load(tmp_path / "colour.npy", "C", colour="grey")
    wanted = (pixels @ np.array([0.299, 0.587, 0.114])).reshape(14, -1)
    found = torch.cat([data.train, data.valid, data.test]).double().numpy()
    np.testing.assert_allclose(found, np.rint(wanted) if top == 255 else wanted, atol=1e-6)
    with pytest.raises(DataError, match="colour is 'gray'; it must be 'refuse' or 'grey'"):
        datasets.load(tmp_path / "colour.npy", colour="gray")


def object_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def huge_header() -> bytes:
    return npy(np.zeros((2, 3, 4), np.uint8)).replace(b"(2, 3, 4), }        ", b"(2, 99999999999999),}")


UNUSABLE = [
    ("labels.gz", idx.encode(np.arange(9, dtype=np.uint8)), "holds labels or single numbers, not images"),
    ("labels.npy", npy(np.arange(9)), "holds labels or single numbers, not images"),
    ("five.npy", npy(np.zeros((2, 1, 4, 4, 1))), "has 5 dimensions; images need 3"),
    ("four.npy", npy(np.zeros((2, 2, 4, 4))), "has 4 dimensions, 2×2×4×4; images need 3"),
    ("unclear.npy", npy(np.zeros((5, 3, 4, 3))), "has 4 dimensions, 5×3×4×3; images need 3"),
    ("colour.npy", npy(COLOUR), "holds images in colour, .*; make them grey with colour='grey'"),
    ("scalar.npy", npy(np.array(1.0)), "has 0 dimensions; images need 3"),
    ("empty.npy", npy(np.zeros((0, 4, 4))), "holds no images"),
    ("two.npy", npy(GREY[:2]), "holds 2 images; three splits need at least 3"),
    ("big.npy", npy(np.full((3, 2, 2), 256)), "integers from 256 to 256; grey values are from 0 to 255"),
    ("negative.npy", npy(np.full((3, 2, 2), -1)), "integers from -1 to -1"),
    (
        "bright.npy",
        npy(np.full((3, 2, 2), 255.0)),
        "floats from 255 to 255; grey values are from 0 to 1",
    ),
    ("nan.npy", npy(np.full((3, 2, 2), np.nan)), "floats from nan to nan"),
    ("text.npy", npy(np.full((3, 2, 2), "a")), "values of type <U1"),
    ("complex.npy", npy(np.full((3, 2, 2), 1j)), "values of type complex128"),
    ("objects.npy", object_array(), r"cannot be read as a .npy file of numbers \(Object arrays"),
    ("cut.npy", npy(GREY)[:-1], "cannot be read as a .npy file of numbers"),
    ("header.npy", npy(GREY)[:20], "cannot be read as a .npy file of numbers"),
    ("magic.npy", npy(GREY)[:6], "cannot be read as a .npy file of numbers"),
    ("huge.npy", huge_header(), "cannot be read as a .npy file of numbers"),
    ("picture.npy", b"\x89PNG and so on", r"not a .npy file \(wrong magic number\)"),
    ("picture.png", b"\x89PNG and so on", r"not a .png file \(wrong magic number\)"),
    ("nothing", b"", "not an IDX file"),
]


@pytest.mark.parametrize(("name", "content", "message"), UNUSABLE, ids=[name for name, _, _ in UNUSABLE])
def test_a_file_that_cannot_be_used_gives_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        datasets.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(position=st.integers(0, 300), byte=st.integers(0, 255), cut=st.none() | st.integers(0, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_a_damaged_npy_file_never_gives_another_exception(
    tmp_path: Path, position: int, byte: int, cut: int | None
) -> None:
    content = bytearray(npy(GREY))
    content[position] = byte
    path = tmp_path / "mine.npy"
    path.write_bytes(content[:cut])
    try:
        images.load(path, "B")
    except DataError as error:
        assert str(path) in str(error)
