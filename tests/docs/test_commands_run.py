"""Every `dagfisher` command that README and pages show is executed, with less work than it says where it says much.

The other programs are in test_programs_run.py.
"""

from __future__ import annotations

import glob
import gzip
import itertools
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_commands import ROOT, commands, words_of

from dagfisher.app import cli, report, sweep, training
from dagfisher.app.console import watch

NAMES = ("command_line", "data", "presets", "probes", "results")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.rst" for name in NAMES)]
LESS = {
    "train": ["--eval-examples", "10", "--eval-samples", "2", "--threads", "1"],
    "sweep": ["--eval-examples", "10", "--eval-samples", "2", "--threads", "1"],
    "evaluate": ["--examples", "10", "--samples", "10"],
    "probe": ["--examples", "200"],
    "complete": ["--sweeps", "2"],
}
"""Flags that are put behind those of a page; of two alike, the last counts."""
ELSEWHERE = {"demo", "COMMAND"}
"""Commands that have tests of their own: tests/app/test_cli.py trains the demo."""


def prepare(text: str) -> None:
    """Write the files that the page speaks of into the current folder."""
    rng = np.random.default_rng(0)
    for name, side in (("mine", 12), ("faces24", 24), ("faces48", 48)):
        np.savez(f"{name}.npz", rng.integers(0, 256, (70, side, side), dtype=np.uint8))
    for name, side in (("mine.png", 14), ("face.png", 12)):
        Image.fromarray(rng.integers(0, 256, (side, side), dtype=np.uint8)).save(name)
    folder = Path("binarized_mnist")
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines = "\n".join(" ".join(map(str, image)) for image in rng.integers(0, 2, (20, 784)))
        with gzip.open(folder / f"binarized_mnist_{split}.amat.gz", "wt", encoding="utf-8") as file:
            file.write(lines + "\n")
    for name, settings in re.findall(r"^   # (\w+\.toml)\n((?:   .+\n)+)", text, flags=re.MULTILINE):
        Path(name).write_text(settings, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_do_what_they_say(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "watch", partial(watch, steps=1))
    monkeypatch.setattr(sweep, "watch", partial(watch, steps=1))
    monkeypatch.setattr(report.ThreadingHTTPServer, "serve_forever", lambda self: None)
    prepare(page.read_text(encoding="utf-8"))
    done = []
    threads = torch.get_num_threads()
    for command in commands(page):
        words = words_of(command)
        if words[0] != "dagfisher" or words[1] in ELSEWHERE:
            continue
        if len(words) == 2 and words[1] in ("train", "report"):  # the name of a command, in a sentence
            continue
        given = [name for word in words[1:] for name in (sorted(glob.glob(word)) if "*" in word else [word])]
        if "--resume" not in words:
            given += LESS.get(words[1], [])
        if "--live" in words:
            given += ["--port", "0"]
        assert cli.main(given) == 0, command
        done.append(words[1])
        for word, following in itertools.pairwise(words):
            if word == "--out":
                assert Path(following).exists(), command
    torch.set_num_threads(threads)
    assert len(done) >= 2 and capsys.readouterr().out
