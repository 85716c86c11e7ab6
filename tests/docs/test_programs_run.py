"""Every `python`, `make` and `torchrun` command that the texts show is executed, with less work than it asks for.

Examples that are shown without arguments run in other tests: test_front_page.py holds that each of them does.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from test_commands import ROOT, TEXTS, commands, words_of
from torch.distributed.run import parse_args

from dagfisher import datasets

RESULTS = ROOT / "benchmarks" / "results"
ELSEWHERE = {
    "solvers": "test_benchmarks.py",
    "dag": "test_benchmarks.py",
    "equal_seconds": "test_equal_seconds.py",
    "vae_step": "test_equal_seconds.py",
    "peers": "test_peers.py",
}
"""Programs that the test file of that name runs as their users do."""
SHORTER = {
    "gaussian_images": ["--data", "mini-mnist", "--quick", "--layers", "20,10"],
    "step_ratio": [
        *("--data", "mini-mnist", "--layers", "20,10", "--threads", "1"),
        *("--train-steps", "2", "--rounds", "1", "--cycles", "1", "--out", "ratio.json"),
    ],
    "convolution": ["--large", "1"],
    "soak": ["--steps", "10", "--out", "short.json"],
    "trained_layer": ["--steps", "2", "--threads", "1", "--out", "."],
    "cluster_model": ["--check"],
    "front_page": ["--check"],
    "published": ["--list"],
    "mini_mnist": ["--plot", "--out", "mini_mnist.json"],
    "search": ["--table", "--out", "search.jsonl"],
    "peers": ["--report", "--out", "peers.jsonl"],
    **{name: ["--table"] for name in ("ablation", "lateral", "visible_fisher", "importance", "distributed")},
    **{name: ["--table"] for name in ("second_moment", "prototypes")},
}
"""Flags behind those of a text, where the program takes minutes or hours. `--table` and its like show what is kept; a
file of results that is named here is a copy of the kept one, since pictures are drawn beside it."""
NEED_MNIST = {"trained_layer", "gaussian_images"}
OF_LONG_RUNS = "over the limits"
"""Begins what `soak` says at the end if memory grows, which it always does in the first steps."""


def programs() -> list[tuple[str, ...]]:
    """The words of `python FILE …` and `python -m benchmarks …` in the texts, but for those that run elsewhere."""
    found = {tuple(words_of(command)[1:]) for page in TEXTS for command in commands(page) if command[:7] == "python "}
    of_examples = {words for words in found if len(words) == 1 and words[0].startswith("examples/")}
    written = {
        ("-m", "benchmarks", "report"),
        ("docs/make_gallery.py",),
    }  # they write pages, and have tests of their own
    others = {(f"benchmarks/{name}.py",) for name in ELSEWHERE}
    files = {words for words in found if words[0].endswith(".py") or words[:2] == ("-m", "benchmarks")}
    return sorted(files - of_examples - written - others)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, list[str]], None]]:
    """Runs a program in this process, which has imported torch already, and in an empty folder."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)

    def started(path: Path, arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(str(path.parent))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as leaving:
            assert not leaving.code or str(leaving.code).startswith(OF_LONG_RUNS), leaving.code

    with torch.random.fork_rng():
        yield started
    torch.set_num_threads(threads)


def shorter(name: str) -> list[str]:
    """The flags that are added, after a copy of the kept results has been put into the current folder."""
    for word in SHORTER[name]:
        if (RESULTS / word).is_file():
            shutil.copy(RESULTS / word, word)
    return SHORTER[name]


@pytest.mark.slow
@pytest.mark.parametrize("words", programs(), ids=" ".join)
def test_the_programs_of_the_texts_run(
    words: tuple[str, ...],
    run: Callable[[Path, list[str]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if words[0] == "-m":
        words = tuple("cluster_model" if word == "NAME" else word for word in words)
        started: list[str] = []

        def child(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
            assert command[0] == sys.executable and cwd == ROOT
            started.append(Path(command[1]).stem)
            monkeypatch.setattr(subprocess, "run", start)
            run(Path(command[1]), command[2:])
            return subprocess.CompletedProcess(command, 0)

        start = subprocess.run
        if words[2] == "run":
            monkeypatch.setattr(subprocess, "run", child)
        run(ROOT / "benchmarks" / "__main__.py", [*words[2:], *(shorter(words[3]) if words[2] == "run" else [])])
        assert started == ([words[3]] if words[2] == "run" else [])
    else:
        name = Path(words[0]).stem
        if name in NEED_MNIST and not next(entry.found for entry in datasets.available() if entry.name == "mnist"):
            pytest.skip("MNIST is not on this machine")
        run(ROOT / words[0], [*words[1:], *shorter(name)])
    assert capsys.readouterr().out or "--check" in SHORTER.get(Path(words[0]).stem, [])


def test_there_are_programs_to_run() -> None:
    assert len(programs()) > 20 and set(SHORTER) <= {Path(word).stem for words in programs() for word in words}


def test_the_programs_that_run_elsewhere_do() -> None:
    for name, file in ELSEWHERE.items():
        assert f'"{name}.py"' in (ROOT / "tests" / file).read_text(encoding="utf-8"), name


def test_the_gallery_is_made_of_what_programs_draw_and_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = importlib.import_module("make_gallery")
    monkeypatch.setattr(made, "GALLERY", tmp_path / "gallery")
    monkeypatch.setitem(made.ARGUMENTS, "softmax_regression", ["--quick"])
    monkeypatch.setattr(sys, "argv", ["make_gallery.py", "softmax_regression"])
    made.main()
    assert {path.name for path in made.GALLERY.iterdir()} == {"softmax_regression.png", "softmax_regression.txt"}


def test_make_knows_how_to_do_what_the_texts_ask_of_it() -> None:
    asked = {tuple(words_of(command)) for page in TEXTS for command in commands(page) if command[:5] == "make "}
    assert len(asked) >= 4
    for words in asked:
        done = subprocess.run([words[0], "--dry-run", *words[1:]], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0 and done.stdout, (words, done.stderr)


PAGE = ROOT / "docs" / "distributed.rst"
LAUNCHED = [words_of(command)[1:] for command in commands(PAGE) if command.startswith("torchrun ")]
FLAGS = [
    *("--data", "three-by-three", "--layers", "4,2", "--batch-size", "30", "--samples", "2"),
    *("--epochs", "1", "--eval-samples", "5", "--threads", "1"),
]
BEFORE = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from dagfisher import DAGNaturalGradient, nn

def build():
    return nn.BernoulliLinear(3, 2)

def loss(predictors):
    return predictors.square().mean()

loader = torch.randn(2, 5, 3)
"""
"""What the reader of the page has before the program on it."""


def launch(words: list[str], folder: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([*launcher, *words], cwd=folder, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_torchrun_takes_its_flags() -> None:
    assert len(LAUNCHED) == 4
    for words in LAUNCHED:
        found = parse_args(words)
        assert found.training_script == ("dagfisher" if found.module else "train.py")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs torchrun, and the loopback device lo")
def test_torchrun_trains(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"^   dist\.init_process_group\(\).*\n(?:   .+\n)+", PAGE.read_text("utf-8"), flags=re.MULTILINE
    )
    for cuda, cpu in (("torch.cuda.set_device(device)\n", "\n"), ('"cuda", int(os.environ["LOCAL_RANK"])', '"cpu"')):
        assert cuda in program
        program = program.replace(cuda, cpu)
    (tmp_path / "train.py").write_text(BEFORE + textwrap.dedent(program) + "dist.destroy_process_group()\n", "utf-8")
    launch(["--standalone", *(word.replace("4", "2") for word in LAUNCHED[0])], tmp_path)
    launch([*LAUNCHED[2], *FLAGS], tmp_path)  # tests/app/test_torchrun.py is about the other one, which starts again
    assert (tmp_path / "runs" / "a" / "checkpoint.pt").exists()
