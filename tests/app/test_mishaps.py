"""What a user sees when something is not as it should be: one sentence, and nothing that was there is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from dagfisher import _files
from dagfisher.app import main
from dagfisher.helmholtz import Run, metrics, runs

TINY = ["--layers=6,1", "--batch-size=100", "--samples=4", "--eval-samples=5", "--threads=1", "--epochs=2"]
BARS = ["--data=three-by-three", *TINY]
PNG = b"\x89PNG\r\n\x1a\n"
OLD = Path(__file__).parents[1] / "helmholtz" / "runs_of_0_1"


pytestmark = pytest.mark.usefixtures("here")


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dagfisher: ")
    return line


def own_images(path: str = "mine.npy", count: int = 40, side: int = 4) -> str:
    rng = np.random.default_rng(0)
    np.save(path, (rng.random((count, side, side)) < rng.random((count, 1, 1))).astype(np.uint8) * 255)
    return path


@pytest.mark.parametrize("flags", [[], ["--layers=5"], ["--resume"]])
def test_a_misspelt_dataset_names_the_datasets_and_the_one_that_is_meant(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--resume" in flags:
        assert main(["train", "--out", "a", *BARS]) == 0
        capsys.readouterr()
    assert main(["train", "--out", "a", "--data", "mini-mnits", *flags]) == 2
    line = sentence(capsys)
    assert (
        "no file 'mini-mnits' (did you mean mini-mnist?); use three-by-three, mini-mnist, mnist, fashion-mnist" in line
    )
    assert Path("a").exists() == ("--resume" in flags)


def test_a_misspelt_path_is_said_to_be_missing_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "a", "--data", "images/mine.npz"]) == 2
    assert "there is no dataset and no file" in (line := sentence(capsys)) and "images/mine.npz" in line
    assert not Path("a").exists()


def test_tensorboard_that_is_not_installed_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["train", "--out", "runs/a", "--tensorboard", *BARS]) == 2
    assert "pip install 'dagfisher[tensorboard]'" in sentence(capsys)
    assert not list(Path().iterdir())


def failing(number: int, at: str, what: str) -> Callable[..., Any]:
    """`replacing` on a system that refuses to open, write or sync files of that name."""

    @contextmanager
    def replacing(target: Path) -> Iterator[BinaryIO]:
        if target.name != what:
            with _files.replacing(target) as file:
                yield file
            return
        error = OSError(number, os.strerror(number))
        with pytest.MonkeyPatch.context() as patch:
            if at == "fsync":
                patch.setattr(os, "fsync", raising(error))
            elif at == "open":
                patch.setattr("builtins.open", raising(error))
            with _files.replacing(target) as file:
                yield Full(file, error) if at == "write" else file  # type: ignore[misc]

    return replacing


def raising(error: OSError) -> Callable[..., Any]:
    def refuse(*args: Any, **settings: Any) -> Any:
        raise error

    return refuse


class Full:
    """A file on a full disk."""

    def __init__(self, file: BinaryIO, error: OSError) -> None:
        self.file, self.error = file, error

    def write(self, content: bytes) -> int:
        self.file.write(content[: len(content) // 2])
        raise self.error


MISHAPS = [
    (errno.ENOSPC, "write", "No space left on device; make room on the disk"),
    (errno.ENOSPC, "fsync", "No space left on device; make room on the disk"),
    (errno.EROFS, "open", "Read-only file system; give a folder that can be written to"),
    (errno.EACCES, "open", "Permission denied; check its permissions, or give another folder"),
]


@pytest.mark.parametrize(("number", "at", "words"), MISHAPS, ids=lambda value: str(value)[:24])
def test_a_disk_that_refuses_is_one_sentence_and_the_last_checkpoint_survives(
    number: int,
    at: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--out", "runs/a", *BARS, "--epochs=1", "--lr-schedule=constant"]) == 0
    before = {path.name: path.read_bytes() for path in Path("runs/a").iterdir()}
    capsys.readouterr()
    monkeypatch.setattr(runs, "replacing", failing(number, at, "checkpoint.pt"))
    assert main(["train", "--resume", "--out", "runs/a", "--epochs=3"]) == 2
    line = sentence(capsys)
    assert f"runs/a/checkpoint.pt: {words}; the last checkpoint is whole" in line
    assert "train --resume --out runs/a" in line
    after = {path.name: path.read_bytes() for path in Path("runs/a").iterdir()}
    assert after.keys() == before.keys()  # no half a file beside it
    assert after["checkpoint.pt"] == before["checkpoint.pt"] and after["metrics.csv"] == before["metrics.csv"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "--out", "runs/a"]) == 0
    assert [row.epoch for row in metrics.read_rows(Path("runs/a"))] == [1, 2, 3]


@pytest.mark.parametrize("what", ["config.json", "checkpoint.pt"])
@pytest.mark.parametrize(("number", "at", "words"), MISHAPS, ids=lambda value: str(value)[:24])
def test_a_new_run_on_a_disk_that_refuses_leaves_nothing_behind(
    number: int, at: str, words: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = failing(number, at, what)
    monkeypatch.setattr(runs, "replacing", refusing)
    monkeypatch.setattr("dagfisher.helmholtz.folders.replacing", refusing)
    assert main(["train", "--out", "a", *BARS]) == 2
    assert sentence(capsys) == f"dagfisher: a/{what}: {words}."
    assert not list(Path().iterdir())


def test_a_picture_on_a_full_disk_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", "a", *BARS]) == 0
    monkeypatch.setattr("dagfisher.plots.replacing", failing(errno.ENOSPC, "fsync", "dreams.png"))
    assert main(["sample", "a"]) == 2
    assert sentence(capsys) == "dagfisher: a/dreams.png: No space left on device; make room on the disk."
    assert not list(Path("a").glob("*dreams*"))


@pytest.mark.parametrize("algorithm", ["rws", "nrws"])
def test_a_learning_rate_that_ruins_the_machine_is_noticed_during_training_and_at_its_end(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (
        [] if algorithm == "rws" else ["--damping=0.2"]
    )  # found dampings come with a trust region, which bounds steps
    flags = [f"--algorithm={algorithm}", "--lr=1000", "--lr-schedule=constant", *given]
    assert main(["train", "--out", "a", *BARS, *flags]) == 0
    printed = capsys.readouterr()
    words = "is below that of the untrained machine (-"
    (warning,) = printed.err.splitlines()  # once, not at every row
    assert words in warning and "--lr 1000 is probably too high; try a lower one." in warning
    assert words in printed.out.splitlines()[-1] and printed.out.splitlines()[-1].startswith("a is done, but its")
    assert Run.open("a").untrained is not None


def test_the_end_is_judged_after_a_resume_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "a", *BARS, "--algorithm=rws", "--lr=1000", "--epochs=1"]) == 0
    capsys.readouterr()
    assert main(["train", "--out", "a", "--resume", "--epochs=2"]) == 0
    printed = capsys.readouterr()
    assert "a is done, but" in printed.out and "untrained" in printed.err


@pytest.mark.parametrize("flags", [[], ["--lr=1e-9"], ["--algorithm=rws", "--lr=1e-9"]])
def test_a_machine_that_learns_or_stays_as_it_was_is_not_warned_of(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", "a", *BARS, *flags]) == 0
    printed = capsys.readouterr()
    assert not printed.err and "a is done; for its final figure" in printed.out


def test_images_learned_by_heart_are_not_blamed_on_the_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("mine.npz", train=np.zeros((200, 3, 3)), valid=np.ones((20, 3, 3)), test=np.ones((20, 3, 3)))
    assert main(["train", "--out", "a", "--data=mine.npz", *TINY, "--lr=0.5"]) == 0
    printed = capsys.readouterr()
    assert "it learns these by heart" in printed.err and "--lr" not in printed.err.replace("--lr-", "")


def test_five_images_print_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "a", "--data", own_images(count=5), *TINY]) == 0
    assert main(["evaluate", "a", "--samples=5"]) == 0
    assert main(["compare", "a", "--out", "c.png"]) == 0
    printed = capsys.readouterr()
    assert "nan" not in (printed.out + printed.err).lower()
    assert "standard error     unknown" in printed.out and "1 example," in printed.out
    assert "nan" not in Path("a/metrics.csv").read_text()
    assert metrics.read_rows(Path("a")) == Run.open("a").rows
    assert main(["evaluate", "a", "--samples=5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["standard_error"] is None
    assert main(["evaluate", "a", "--samples=5", "--split=train"]) == 0
    assert "standard error     unknown" not in capsys.readouterr().out


def test_a_run_is_looked_at_without_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    own_images("new.npy", count=3)
    assert main(["train", "--out", "a", "--data", own_images(), *TINY]) == 0
    assert main(["reconstruct", "a", "--out", "with.png"]) == 0
    Path("mine.npy").unlink()
    assert main(["sample", "a", "--number=4"]) == 0
    assert main(["reconstruct", "a", "--images", "new.npy", "--out", "new.png"]) == 0
    assert main(["compare", "a", "--out", "c.png"]) == 0
    for path in ("with.png", "a/dreams.png", "new.png", "c.png"):
        assert Path(path).read_bytes().startswith(PNG)
    capsys.readouterr()
    for command in (["evaluate", "a"], ["train", "--resume", "--out", "a", "--epochs=3"]):
        assert main(command) == 2
        assert "there is no dataset and no file" in sentence(capsys)
    assert main(["reconstruct", "a"]) == 2
    assert sentence(capsys).endswith("; or reconstruct images of your own with --images.")


def test_a_run_on_mnist_needs_no_mnist_to_dream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert main(["train", "--out", "a", *BARS]) == 0
    config = json.loads(Path("a/config.json").read_text())
    assert (config["label"], config["shape"], config["sizes"]) == ("three-by-three B", [3, 3], [1800, 18, 18])
    config["data"] = "mnist"  # as if its files had been there
    Path("a/config.json").write_text(json.dumps(config))
    monkeypatch.delenv("DAGFISHER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr("dagfisher.datasets.download.fetch", lambda *args: pytest.fail("it looked for MNIST"))
    assert main(["sample", "a"]) == 0


def test_images_that_do_not_fit_the_machine_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "a", *BARS]) == 0
    cases = {
        ("--images", own_images()): "mine.npy holds images of 4×4; the machine of a knows 3×3.",
        ("--images", "none.png"): "there is no file and no folder 'none.png'",
        ("--images", "mine.npy", "--tile", "2x2"): "mine.npy is not one PNG file",
    }
    capsys.readouterr()
    for flags, words in cases.items():
        assert main(["reconstruct", "a", *flags]) == 2
        assert words in sentence(capsys)
    for flags in (["--tile", "3"], ["--images", "mine.npy", "--split", "train"]):
        with pytest.raises(SystemExit) as leaving:
            main(["reconstruct", "a", *flags])
        assert leaving.value.code == 2


def test_data_that_changed_are_not_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "a", "--data", own_images(), *TINY]) == 0
    own_images(count=50)
    capsys.readouterr()
    assert main(["train", "--out", "a", "--resume", "--epochs=3"]) == 2
    assert "a was trained on other data: mine.npy B, 4×4, (30, 5, 5); " in sentence(capsys)
    assert main(["sample", "a"]) == 0


@pytest.mark.parametrize("name", ["nrws", "nbihm", "rws-adam"])
def test_folders_of_version_0_1_dream_and_continue(name: str) -> None:
    shutil.copytree(OLD / name, name)
    assert main(["sample", name]) == 0
    assert main(["reconstruct", name]) == 0
    assert main(["train", "--resume", "--out", name]) == 0
    assert json.loads(Path(name, "config.json").read_text())["shape"] == [3, 3]


def test_own_pictures_train_and_colour_needs_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Path("pictures").mkdir()
    for i in range(12):
        Image.fromarray(np.roll(pixels, i, 0)[:4, :5]).save(f"pictures/{i}.png")
    Image.fromarray(pixels).save("sheet.png")
    for data, more in (("pictures", []), ("sheet.png", ["--tile=4x4"])):
        assert main(["train", "--out", "a", "--data", data, *more, *TINY]) == 2
        assert "holds images in colour" in (line := sentence(capsys)) and "--colour grey" in line
        assert main(["train", "--out", data[:5], "--data", data, "--colour=grey", *more, *TINY]) == 0
        capsys.readouterr()
    assert Run.open("pictu").description.shape == (4, 5)
    run = Run.open("sheet")
    assert run.description == ("sheet.png B", (4, 4), (7, 1, 1)) and run.settings.tile == (4, 4)
    assert main(["reconstruct", "sheet", "--images=sheet.png", "--tile=4x4", "--colour=grey"]) == 0
    assert main(["train", "--out", "x", "--data", "sheet.png", "--tile=4", *TINY]) == 2
    assert "tile must be rows and columns, for example 28x28, not '4'" in capsys.readouterr().err
