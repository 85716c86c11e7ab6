"""Own data as .npz, .pt, a PNG sheet or a folder of PNGs: the same images come out, in the splits that were meant."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dagfisher import datasets
from dagfisher.datasets import DataError, Dataset, png
from dagfisher.datasets.idx import Array
from dagfisher.errors import MissingExtraError

GREY = np.random.default_rng(0).integers(0, 256, (14, 4, 6), dtype=np.uint8)
LABELS = np.arange(14)


def everything(data: Dataset) -> Array:
    found: Array = torch.cat([data.train, data.valid, data.test]).numpy().reshape(-1, *data.shape)
    return found


def picture(pixels: Array, mode: str | None = None) -> bytes:
    content = io.BytesIO()
    made = Image.fromarray(pixels)
    (made if mode is None else made.convert(mode)).save(content, "PNG")
    return content.getvalue()


def folder_of(path: Path, images: Array, suffix: str = ".png") -> Path:
    path.mkdir(parents=True)
    for i, image in enumerate(images):
        (path / f"{i:03d}{suffix}").write_bytes(picture(image))
    return path


SAVE: dict[str, Callable[[Path], Any]] = {
    "one.npz": lambda path: np.savez(path, GREY),
    "small.npz": lambda path: np.savez_compressed(path, images=GREY, labels=LABELS),
    "tensor.pt": lambda path: torch.save(torch.from_numpy(GREY), path),
    "old.pt": lambda path: torch.save(torch.from_numpy(GREY), path, _use_new_zipfile_serialization=False),
    "pair.pt": lambda path: torch.save((torch.from_numpy(GREY), torch.from_numpy(LABELS)), path),
    "dict.pth": lambda path: torch.save({"x": torch.from_numpy(GREY), "y": torch.from_numpy(LABELS)}, path),
}


@pytest.mark.parametrize("name", SAVE)
@pytest.mark.parametrize("binarisation", ["B", "C", "G"])
def test_a_file_becomes_a_dataset(tmp_path: Path, name: str, binarisation: str) -> None:
    SAVE[name](tmp_path / name)
    data = datasets.load(str(tmp_path / name), binarisation)
    assert (data.label, data.shape, data.sizes) == (f"{name} {binarisation}", (4, 6), (10, 2, 2))
    np.testing.assert_array_equal(everything(data), GREY >= 128 if binarisation == "B" else GREY)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_a_tensor_of_any_type_is_read_by_the_same_rules(tmp_path: Path, dtype: torch.dtype) -> None:
    bits = torch.from_numpy(GREY > 99)
    torch.save(bits.to(dtype).requires_grad_(dtype.is_floating_point), tmp_path / "bits.pt")
    np.testing.assert_array_equal(everything(datasets.load(tmp_path / "bits.pt")), bits.numpy())


SPLITS = {"train": GREY[:9], "valid": GREY[9:11], "test": GREY[11:]}


@pytest.mark.parametrize("suffix", ["npz", "pt"])
@pytest.mark.parametrize(
    "names", [("train", "valid", "test"), ("x_train", "x_val", "x_test"), ("Train", "VAL", "Test")]
)
def test_splits_of_a_file_stay_as_they_are(tmp_path: Path, suffix: str, names: tuple[str, ...]) -> None:
    arrays = dict(zip(names, SPLITS.values(), strict=True))
    path = tmp_path / f"mine.{suffix}"
    if suffix == "npz":
        np.savez(path, y_train=np.zeros((9, 10)), **arrays)
    else:
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    data = datasets.load(path, "C")
    assert data.sizes == (9, 2, 3)
    np.testing.assert_array_equal(everything(data), GREY)


def test_without_valid_the_last_sixth_of_train_is_valid(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=GREY[:12], y_train=LABELS[:12], x_test=GREY[12:], y_test=LABELS[12:])
    data = datasets.load(tmp_path / "mine.npz", "C")
    assert data.sizes == (10, 2, 2)
    np.testing.assert_array_equal(everything(data), GREY)


def test_a_folder_is_read_in_an_order_of_its_own_which_never_changes(tmp_path: Path) -> None:
    data = datasets.load(folder_of(tmp_path / "a", GREY), "C")
    assert (data.label, data.shape, data.sizes) == ("a C", (4, 6), (10, 2, 2))
    found = everything(data)
    np.testing.assert_array_equal(found, everything(datasets.load(folder_of(tmp_path / "b" / "a", GREY), "C")))
    assert sorted(map(bytes, found)) == sorted(map(bytes, GREY))  # every image once
    assert not np.array_equal(found, GREY)  # so that names sorted by class do not make the splits


def test_folders_below_a_folder_count_and_its_splits_stay(tmp_path: Path) -> None:
    for split, images in SPLITS.items():
        folder_of(tmp_path / "mine" / split / "class", images, ".PNG")
    (tmp_path / "mine" / "notes.txt").write_text("not a picture")
    data = datasets.load(tmp_path / "mine", "C")
    assert data.sizes == (9, 2, 3)
    for split, images in SPLITS.items():
        assert sorted(map(bytes, data.stored(split).numpy())) == sorted(map(bytes, images))  # type: ignore[arg-type]
    assert datasets.load(tmp_path / "mine" / "train", "C").sizes == (7, 1, 1)


def test_a_sheet_is_cut_into_its_images_row_by_row(tmp_path: Path) -> None:
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in GREY.reshape(2, 7, 4, 6)])
    (tmp_path / "sheet.png").write_bytes(picture(sheet))
    np.testing.assert_array_equal(everything(datasets.load(tmp_path / "sheet.png", "C", tile=(4, 6))), GREY)
    with pytest.raises(DataError, match=r"sheet.png is 8×42 pixels, which images of 5×6 do not fill"):
        datasets.load(tmp_path / "sheet.png", tile=(5, 6))
    with pytest.raises(DataError, match=r"holds 1 image; three splits need at least 3; give a folder .* \(tile, for"):
        datasets.load(tmp_path / "sheet.png")
    for name in ("mini-mnist", tmp_path):
        with pytest.raises(DataError, match="leave it out"):
            datasets.load(name, tile=(4, 6))
    with pytest.raises(DataError, match=r"tile is \(0, 4\)"):
        datasets.load(tmp_path / "sheet.png", tile=(0, 4))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P"])
def test_a_grey_png_is_grey_however_it_was_saved(mode: str) -> None:
    np.testing.assert_array_equal(png.decode(picture(GREY[0], mode), Path("a.png")), GREY[0])


def test_pngs_of_one_and_of_sixteen_bits(tmp_path: Path) -> None:
    bits = png.decode(picture(np.where(GREY[0] > 99, 255, 0).astype(np.uint8), "1"), Path("a.png"))
    np.testing.assert_array_equal(bits, 255 * (GREY[0] > 99))
    fine = GREY[0].astype(np.uint16) * 257
    content = io.BytesIO()
    Image.fromarray(fine).save(content, "PNG")
    np.testing.assert_allclose(png.decode(content.getvalue(), Path("a.png")), GREY[0] / 255, atol=1e-6)
    folder = folder_of(tmp_path / "both", GREY[1:])
    (folder / "fine.png").write_bytes(content.getvalue())
    data = datasets.load(folder, "G")
    assert data.train.dtype == torch.float32 and data.sizes == (10, 2, 2)


def test_colour_in_a_folder_is_refused_or_made_grey(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "mine", GREY)
    red = np.stack([GREY[0], 0 * GREY[0], 0 * GREY[0]], axis=2)
    (folder / "000.png").write_bytes(picture(red))
    with pytest.raises(DataError, match=r"mine holds images in colour, .*--colour grey"):
        datasets.load(folder)
    found = {bytes(image) for image in everything(datasets.load(folder, "C", colour="grey"))}
    assert found == {bytes(np.rint(0.299 * GREY[0]).astype(np.uint8)), *map(bytes, GREY[1:])}


def unusable(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Files and folders that cannot be data, with what is said of them."""
    clear = np.dstack([GREY[0]] * 3 + [0 * GREY[0]])
    files = {
        "clear.png": (picture(clear), "clear.png has pixels that are not opaque; put it on a background"),
        "cut.png": (picture(GREY[0])[:60], "cut.png cannot be read as a PNG file"),
        "not.pt": (b"words", r"not.pt cannot be read as a .pt file of tensors \(.*\); save a tensor"),
        "not.npz": (b"words", r"not.npz is not a .npz file \(wrong magic number\)"),
        "zip.npz": (b"PK\x03\x04 and so on .npy", "zip.npz cannot be read as a .npz file of numbers"),
    }
    found = {}
    for name, (content, words) in files.items():
        (tmp_path / name).write_bytes(content)
        found[name] = (tmp_path / name, words)
    arrays: dict[str, tuple[dict[str, Array], str]] = {
        "many.npz": ({"a": GREY, "b": GREY}, "holds a, b; save the images alone, or as train, valid and test"),
        "labels.npz": ({"y": LABELS}, "holds labels or single numbers, not images"),
        "untested.npz": ({"train": GREY, "valid": GREY}, "holds train and valid, but no test; add it"),
        "twice.npz": ({"train": GREY, "x_train": GREY, "test": GREY}, "holds train and x_train, which both mean train"),
        "sizes.npz": ({"train": GREY, "test": GREY[:, :3]}, "has test images of 3×6 and train images of 4×6"),
        "types.npz": ({"train": GREY, "test": GREY / 255}, "test images of float64 and train images of uint8"),
        "empty.npz": ({"train": GREY, "test": GREY[:0]}, "holds no images in test; leave it out, or fill it"),
        "lone.npz": ({"train": GREY[:1], "test": GREY}, "holds 1 image in train and none in valid"),
    }
    for name, (content, words) in arrays.items():
        np.savez(tmp_path / name, **content)
        found[name] = (tmp_path / name, words)
    torch.save({"w": torch.nn.Linear(2, 2)}, tmp_path / "module.pt")
    found["module.pt"] = (tmp_path / "module.pt", "cannot be read as a .pt file of tensors")
    (tmp_path / "empty").mkdir()
    found["empty"] = (tmp_path / "empty", "holds no PNG files")
    folder = folder_of(tmp_path / "sizes", GREY)
    (folder / "large.png").write_bytes(picture(GREY[0].T))
    found["sizes"] = (folder, "is .* pixels and .* all images need the same size")
    folder = folder_of(tmp_path / "mixed", GREY)
    (folder / "photo.jpg").write_bytes(b"")
    found["mixed"] = (folder, "photo.jpg is not a PNG file; convert it to PNG")
    found["train only"] = (folder_of(tmp_path / "half" / "train", GREY).parent, "holds train, but no test")
    return found


def test_what_cannot_be_used_gives_one_sentence(tmp_path: Path) -> None:
    for path, words in unusable(tmp_path).values():
        with pytest.raises(DataError, match=words) as caught:
            datasets.load(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_file_never_gives_another_exception(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", GREY)
    torch.save(torch.from_numpy(GREY), tmp_path / "a.pt")
    (tmp_path / "a.png").write_bytes(picture(GREY.reshape(56, 6)))
    generator = np.random.default_rng(0)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for _ in range(60):
            content = bytearray(whole)
            content[generator.integers(len(whole))] = generator.integers(256)
            path.write_bytes(content[: generator.integers(len(whole) + 1)] if generator.random() < 0.5 else content)
            try:
                datasets.load(path, tile=(4, 6) if path.suffix == ".png" else None)
            except DataError as error:
                assert str(path) in str(error) and "\n" not in str(error)


def test_without_pillow_one_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "mine", GREY)
    monkeypatch.setitem(sys.modules, "PIL", None)
    for path in (folder, folder / "000.png"):
        with pytest.raises(MissingExtraError, match=r"PNG files need Pillow.*pip install 'dagfisher\[examples\]'\.$"):
            datasets.load(path)


@pytest.mark.parametrize("binarisation", ["B", "C", "F", "G"])
def test_read_images_gives_all_of_them_as_a_machine_sees_them(tmp_path: Path, binarisation: str) -> None:
    np.savez(tmp_path / "mine.npz", **SPLITS)
    x, shape = datasets.read_images(tmp_path / "mine.npz", binarisation)
    assert shape == (4, 6) and x.shape == (14, 24) and x.dtype == torch.float32
    assert torch.equal(x, datasets.read_images(tmp_path / "mine.npz", binarisation)[0])
    levels = torch.from_numpy(GREY).flatten(1)
    if binarisation == "B":
        assert torch.equal(x, (levels >= 128).float())
    elif binarisation in ("C", "F"):
        assert x.unique().tolist() == [0, 1]
    else:
        assert torch.equal((256 * x).floor(), levels.float())
    np.save(tmp_path / "bits.npy", GREY[:1] > 99)
    bits, _ = datasets.read_images(tmp_path / "bits.npy", binarisation)
    assert torch.equal(bits, torch.from_numpy(GREY[:1] > 99).flatten(1).float())
    with pytest.raises(DataError, match=r"there is no file and no folder 'nothing.png'"):
        datasets.read_images("nothing.png", binarisation)
