"""Every command that README and pages show is executed, with less work than it says where it says much."""

from __future__ import annotations

import glob
import gzip
import itertools
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_commands import ROOT, TEXTS, commands, words_of

from dagfisher.app import cli, report, sweep, training
from dagfisher.app.console import watch

PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.rst" for name in ("command_line", "data", "presets", "probes"))]
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


SHORTER = {
    "conv_helmholtz": ["--data", "mini-mnist", "--kinds", "conv/deconv", "--seconds", "0.3", "--examples", "10"],
    "gaussian_images": ["--quick", "--layers", "20,10"],
    "make_gallery": ["--help"],
    "step_ratio": [
        *("--data", "mini-mnist", "--layers", "20,10", "--threads", "1"),
        *("--train-steps", "2", "--rounds", "1", "--cycles", "1", "--out", "ratio.json"),
    ],
    "solvers": ["--quick", "--threads", "1", "--out", "."],
    "trained_layer": ["--help"],  # with MNIST; `solvers` makes the layer
    "convolution": ["--help"],  # an assertion on seconds, for a quiet machine
    "dag": ["--quick", "--out", "dag.json"],
    "distributed": ["--table"],
    "soak": ["--steps", "60", "--out", "soak.json"],
    "mini_mnist": ["--help"],
    "cluster_model": ["--check"],
    "front_page": ["--check"],
    "equal_seconds": [
        *("--quick", "--models", "logistic", "--methods", "natural,adam", "--out", "equal.jsonl"),
    ],
    "vae_step": ["--quick", "--threads", "1", "--out", "vae.json"],
    "published": ["--list"],
    "peers": ["--report", "--out", "peers.jsonl"],
    **{name: ["--table"] for name in ("ablation", "lateral", "mnist", "visible_fisher", "search", "importance")},
    **{name: ["--table"] for name in ("second_moment", "prototypes")},
}
"""Flags behind those of a page, where the program measures for minutes or hours; `--table` reads what is kept."""


def programs() -> list[tuple[str, ...]]:
    """The words of every `python` command of the texts but those that name no file, each once."""
    found = {tuple(words_of(command)[1:]) for page in TEXTS for command in commands(page) if command[:7] == "python "}
    return sorted(each for each in found if each[0].endswith(".py") or each[:2] == ("-m", "benchmarks"))


@pytest.mark.slow
@pytest.mark.parametrize("words", programs(), ids=" ".join)
def test_the_programs_of_the_texts_do_what_they_say_with_less_work(words: tuple[str, ...], tmp_path: Path) -> None:
    given = list(words)
    if given[0] == "-m":
        if given[2] == "report":
            pytest.skip("it writes the pages; tests/test_reports.py holds that they are as it would write them")
        name, known = (given[3], {"NAME": "peers"}) if given[2] == "run" else ("", {})
        given = [known.get(word, word) for word in given]
        more = SHORTER[known.get(name, name)] if name else []
        folder = ROOT
        more = [str(tmp_path / word) if word.endswith(("json", "jsonl")) else word for word in more]
    else:
        name, folder = Path(given[0]).stem, tmp_path
        given[0] = str(ROOT / given[0])
        more = SHORTER.get(name, ["--quick"])
        if name not in SHORTER:
            assert given[0].startswith(str(ROOT / "examples")), f"say what makes {name} short"
    path = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *given, *more], capture_output=True, text=True, cwd=folder, env={**os.environ, **path}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout


def test_make_knows_how_to_do_what_the_texts_ask_of_it() -> None:
    asked = {tuple(words_of(command)) for page in TEXTS for command in commands(page) if command[:5] == "make "}
    assert len(asked) >= 4
    for words in asked:
        done = subprocess.run([words[0], "--dry-run", *words[1:]], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0 and done.stdout, (words, done.stderr)
