"""The program `dagfisher`: what each command does, and that bad input gets one sentence and harms nothing."""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dagfisher import plots
from dagfisher.app import cli, console, demo, main
from dagfisher.datasets import NAMES
from dagfisher.helmholtz import ALGORITHMS, L1, L2, PRESETS, Entropy, Run, Settings
from dagfisher.helmholtz.metrics import read_rows

TINY = ["--data=three-by-three", "--layers=6,1", "--batch-size=100", "--samples=4", "--eval-samples=5", "--threads=1"]
PNG = b"\x89PNG\r\n\x1a\n"


pytestmark = pytest.mark.usefixtures("here")


def train(out: str, *flags: str) -> int:
    return main(["train", "--out", out, *TINY, "--epochs=2", *flags])


def test_train_prints_a_line_per_epoch_and_fills_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("runs/a", "--algorithm=nrws") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[2].partition("  ")[0] for line in lines[:2]] == ["epoch 1", "epoch 2"]
    assert all(line.startswith("nrws three-by-three B") for line in lines[:2])
    names = {"checkpoint.pt", "config.json", "curves.png", "metrics.csv", "samples.png"}
    assert {path.name for path in Path("runs/a").iterdir()} == names


def test_every_setting_is_a_flag_and_reaches_the_optimizer() -> None:
    flags = ["--algorithm=nrws", "--lr=0.01", "--damping=0.3", "--update-every=3", "--solver=dense", "--tolerance=0.1"]
    flags += ["--trust-region=0.2"]
    flags += ["--fisher=dream", "--l1=1e-4", "--l2=1e-3", "--entropy=0.1", "--warm-up=5", "--momentum=0.5"]
    flags += ["--nesterov", "--no-baseline", "--lr-schedule=cosine", "--samples-schedule=step:1:2"]
    flags += ["--damping-schedule=linear:0.5", "--update-every-schedule=step:1:2", "--sleep-steps=2"]
    flags += ["--sleep-scale=3", "--states=zero-one", "--seed=7", "--eval-examples=9"]
    assert train("a", *flags) == 0
    run = Run.open("a")
    group = run.trainer.optimizer.param_groups[0]
    assert {k: group[k] for k in ("lr", "damping", "update_every", "solver", "tolerance", "momentum", "nesterov")} == {
        "lr": 0, "damping": 0.15, "update_every": 24, "solver": "dense", "tolerance": 0.1, "momentum": 0.5,
        "nesterov": True,
    }  # fmt: skip  # as the schedules leave them after two epochs; K in steps, of which a minibatch has two
    assert group["trust_region"] == 0.2
    assert (run.settings.lr, run.settings.damping, run.settings.update_every) == (0.01, 0.3, 3)
    trainer = run.trainer
    assert trainer.regularisers == [L1(1e-4, 5), L2(1e-3, 5), Entropy(0.1, 5)]
    assert {name: schedule.text for name, schedule in trainer.schedules.items()} == {
        "lr": "cosine", "samples": "step:1:2", "damping": "linear:0.5", "update_every": "step:1:2"
    }  # fmt: skip
    last = run.rows[-1]
    assert None not in (last.l1, last.l2, last.entropy)
    assert (trainer.fisher, trainer.baseline, trainer.sleep_steps, trainer.sleep_scale) == ("dream", False, 2, 3.0)
    assert run.settings.seed == 7 and run.settings.states == "zero-one" and run.settings.eval_examples == 9


@pytest.mark.parametrize(("algorithm", "kind"), [("rws", "Adam"), ("nrws", "DAGNaturalGradient")])
def test_adam_is_torchs_for_plain_algorithms_and_on_the_natural_gradient_for_others(algorithm: str, kind: str) -> None:
    assert train("a", f"--algorithm={algorithm}", "--adam", "--lr-schedule=constant") == 0
    optimizer = Run.open("a").trainer.optimizer
    assert type(optimizer).__name__ == kind
    assert tuple(optimizer.param_groups[0]["betas"]) == (0.9, 0.999)
    assert optimizer.param_groups[0]["lr"] == 0.001


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_with_its_defaults(algorithm: str) -> None:
    assert train("a", f"--algorithm={algorithm}") == 0
    settings = Run.open("a").settings
    chosen = ALGORITHMS[algorithm]
    assert settings.lr == chosen.lr
    natural = settings.chosen_algorithm.solver is not None
    assert settings.damping == ("auto" if natural else None)  # layers of natural ones find their own


def test_a_file_gives_settings_and_flags_override_it() -> None:
    Path("a.toml").write_text('algorithm = "rws"\nlr = 0.3\nbatch-size = 50\nadam = [0.8, 0.9]\n')
    assert train("a", "--config=a.toml", "--lr=0.25") == 0
    settings = Run.open("a").settings
    assert (settings.algorithm, settings.lr, settings.batch_size, settings.adam) == ("rws", 0.25, 100, (0.8, 0.9))


def test_resume_continues_to_more_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a") == 0
    assert main(["train", "--resume", "--out", "a"]) == 0
    assert "has done its 2 epochs" in capsys.readouterr().out
    assert main(["train", "--resume", "--out", "a", "--epochs", "3"]) == 0
    assert [row.epoch for row in read_rows(Path("a"))] == [1, 2, 3]


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    describe, before = console.describe, signal.getsignal(signal.SIGINT)

    def interrupted(*args: Any) -> str:
        signal.raise_signal(signal.SIGINT)
        return describe(*args)

    monkeypatch.setattr(console, "describe", interrupted)
    assert train("a") == 130
    printed = capsys.readouterr()
    assert "stopping after this step" in printed.err
    assert "train --resume --out a" in printed.out
    assert Run.open("a").steps == 18  # an epoch; Ctrl-C came while it was evaluated
    monkeypatch.setattr(console, "describe", describe)
    assert main(["train", "--resume", "--out", "a"]) == 0
    assert train("b") == 0
    for one, other in zip(Run.open("a").machine.parameters(), Run.open("b").machine.parameters(), strict=True):
        assert torch.equal(one, other)
    assert signal.getsignal(signal.SIGINT) is before


def test_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a", "--algorithm=nbihm") == 0
    capsys.readouterr()
    assert main(["evaluate", "a", "--samples", "200", "--examples", "10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == "three-by-three B" and found["samples"] == 200 and found["examples"] == 10
    assert found["log_p_star_plus_2_log_z"] <= found["log_likelihood"]
    assert 1 <= found["effective_samples"] <= 200 and found["standard_error"] > 0
    assert main(["evaluate", "a", "--samples", "200", "--examples", "10"]) == 0
    printed = capsys.readouterr().out
    assert f"{found['log_likelihood']:.4f}" in printed  # the same seed, the same figure
    assert "is not estimated" in printed


def test_sample_reconstruct_and_compare_write_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("runs/a", "--algorithm=rws") == 0
    assert train("runs/b", "--algorithm=nrws") == 0
    Path("runs/note.txt").write_text("not a run")
    assert main(["sample", "runs/a", "--number", "9"]) == 0
    assert main(["reconstruct", "runs/a", "--depth", "2", "--out", "r.png"]) == 0
    assert main(["compare", "runs/a", "runs/b", "runs/note.txt", "--out", "compare.png"]) == 0
    printed = capsys.readouterr().out
    assert "test log-likelihood, three-by-three B" in printed and "runs/b" in printed
    for path in ("runs/a/dreams.png", "r.png", "compare.png"):
        assert Path(path).read_bytes().startswith(PNG)


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for command, names in (("data", list(NAMES)), ("algorithms", list(ALGORITHMS)), ("presets", list(PRESETS))):
        assert main([command]) == 0
        header, _, *lines = capsys.readouterr().out.splitlines()
        end = lines.index("")
        assert [line.split()[0] for line in lines[:end]] == names
        columns = [line[: line.index("  ")] for line in lines[end + 1 :] if not line.startswith(" ")]
        expected = [column for column in re.split("  +", header) if column != "what it does"]
        assert columns == expected  # each column is explained


def test_three_by_three_is_learned_by_its_default_layers() -> None:
    """Of three seeds, since one in six ends above 0.03 nats; layers 6-1 are left with 0.16 to 0.19."""
    left = []
    for seed in range(3):
        command = ["train", "--data=three-by-three", "--threads=1", "--eval-samples=5", f"--seed={seed}"]
        assert main([*command, f"--out=a{seed}"]) == 0
        left.append(read_rows(Path(f"a{seed}"))[-1].kl or math.inf)
    assert sorted(left)[1] < 0.03 and max(left) < 0.1


def test_the_bar_shows_likelihood_rate_and_damping(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(console.Bar, "live", True)
    monkeypatch.setattr(console.Bar, "update", lambda self, amount, note=None: notes.append(note))
    monkeypatch.setattr(console, "NOTE_SECONDS", 0.0)
    assert train("a", "--algorithm=nrws", "--lr=0.125", "--lr-schedule=constant", "--damping=0.5") == 0
    assert notes[0].startswith("epoch 0.56, train -") and notes[0].endswith(", rate 0.12, damping 0.5")
    assert train("b", "--algorithm=rws", "--lr=0.125", "--lr-schedule=constant") == 0
    assert notes[-1].endswith(", rate 0.12")
    likelihood = float(notes[-1].split("train ")[1].split(",")[0])
    assert likelihood == pytest.approx(read_rows(Path("b"))[-1].train_log_likelihood, abs=1.5)


def test_nobody_reads_the_device_for_a_bar_that_nobody_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "note", lambda run: pytest.fail("a note was made"))
    assert train("a") == 0  # standard error is not a terminal here


def test_the_bar_is_the_one_of_notebooks_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **given: made.append(given) or SimpleNamespace(close=lambda: None))
    with console.Bar(3, "here"):
        pass
    assert made[0]["total"] == 3


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in text for name in Settings.resolve().as_dict())


BAD: list[tuple[list[str], str]] = [
    ([], "command"),
    (["train"], "--out"),
    (["train", "--out", "x", "--lr", "fast"], "lr must be a number above 0 and below 1e+30, not 'fast'"),
    (["train", "--out", "x", "--epochs", "2.5"], "epochs must be a whole number"),
    (["train", "--out", "x", "--layers", "10,,5"], "each of layers must be a whole number"),
    (["train", "--out", "x", "--algorithm", "sgd"], "unknown algorithm 'sgd'"),
    (["train", "--out", "x", "--algorithm", "rws", "--damping", "1"], "damping belongs to natural algorithms"),
    (["train", "--out", "x", "--algorithm", "bihm", "--sleep-steps", "2"], "does not sleep"),
    (["train", "--out", "x", "--algorithm", "rws", "--nesterov"], "nesterov needs a momentum"),
    (["train", "--out", "x", "--momentum", "0.9", "--adam"], "choose one"),
    (["train", "--out", "x", "--data", "nothing.npy", "--layers", "5"], "nothing.npy"),
    (["train", "--out", "x", "--data", "three-by-three", "--binarisation", "C"], "binarisation B"),
    (["train", "--out", "x", "--device", "abacus"], "not available here"),
    (["train", "--out", "x", "--config", "none.toml"], "none.toml: No such file"),
    (["train", "--out", "x", "--config", "bad.toml"], "bad.toml: there is no setting 'dampin'; did you mean 'damping'"),
    (["train", "--out", "x", "--config", "broken.toml"], "broken.toml is not a TOML file"),
    (["train", "--out", "there"], "already holds a run; add --resume"),
    (["train", "--out", "x", "--resume"], "holds no run"),
    (["train", "--out", "there", "--resume", "--lr", "1"], "keeps its settings"),
    (["train", "--out", "bad.toml"], "not an empty folder"),
    (["train", "--out", "bad.toml/x"], "bad.toml"),
    (["evaluate", "x"], "holds no run"),
    (["evaluate", "there", "--samples", "0"], "at least 1"),
    (["reconstruct", "there", "--depth", "3"], "depth must be at most 2"),
    (["sample", "there", "--out", "picture.jpg"], "must end in .png"),
    (["compare", "bad.toml", "--out", "c.png"], "run folder with metrics"),
    (["train", "--out", "x", "--fast"], "--fast"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.toml").write_text("dampin = 1\n")
    Path("broken.toml").write_text("= 1\n")
    Run.create("there", Settings.resolve(data="three-by-three"))
    before = sorted(Path().rglob("*"))
    try:
        code = main(arguments)
    except SystemExit as leaving:
        code = leaving.code  # type: ignore[assignment]
    assert code == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert len([line for line in printed.err.splitlines() if "no checkpoint yet" not in line]) == 1
    assert sorted(Path().rglob("*")) == before


def test_runs_on_different_data_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a") == 0
    assert train("b") == 0
    text = Path("b/metrics.csv").read_text().replace("three-by-three B", "three-by-three C")
    Path("b/metrics.csv").write_text(text)
    assert main(["compare", "a", "b", "--out", "c.png"]) == 2
    assert "different data cannot be compared: three-by-three B, three-by-three C" in capsys.readouterr().err


def test_without_tqdm_and_matplotlib_training_works_and_pictures_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tqdm", "tqdm.auto", "matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert train("a") == 0
    assert "pip install 'dagfisher[examples]'" in capsys.readouterr().err
    assert not Path("a/curves.png").exists()
    assert main(["sample", "a"]) == 2
    assert main(["demo", "--out", "d"]) == 2
    assert not Path("d").exists()


def test_tensorboard_is_optional(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train("a", "--tensorboard") == 2
    assert "pip install 'dagfisher[tensorboard]'" in capsys.readouterr().err


def test_tensorboard_gets_the_rows() -> None:
    pytest.importorskip("tensorboard")
    assert train("a", "--tensorboard") == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("a/tensorboard")
    events.Reload()
    names = {"optimizer/lr", "optimizer/damping", "optimizer/divergence", "damping/prior", "damping/group 1"}
    assert names | {"divergence/group 0", "factor/group 0", "shortened/group 0"} <= set(events.Tags()["scalars"])
    rows = read_rows(Path("a"))
    assert [event.value for event in events.Scalars("optimizer/damping")] == pytest.approx([r.damping for r in rows])


def test_the_demo_in_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "WALL_SECONDS", 0.2)
    monkeypatch.setattr(demo, "WARM_UP", 1)
    monkeypatch.setattr(demo, "TIMED", 2)
    monkeypatch.setattr(demo, "FINAL_EXAMPLES", 100)
    monkeypatch.setattr(demo, "FINAL_SAMPLES", 10)
    assert main(["demo", "--out", "runs/demo"]) == 0
    printed = capsys.readouterr().out
    assert "test log-likelihood, mini-mnist B" in printed and "What to try next" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith(("RWS  ", "NRWS  "))]
    assert [row[0] for row in rows] == ["RWS", "NRWS"]
    said = next(line for line in printed.splitlines() if " ahead of " in line or " are level" in line)
    assert printed.index(said) < printed.index("algorithm  epochs")  # the result comes first
    better = max(rows, key=lambda row: float(row[3]))[0]
    assert f"{better} is " in said or "level" in said
    for path in ("curves.png", "samples.png"):
        assert (Path("runs/demo") / path).read_bytes().startswith(PNG)
    assert demo.unused(Path("runs/demo")) == Path("runs/demo-2")  # a second demo loses nothing of the first


def test_the_demo_ends_in_time() -> None:
    assert 180 - 2 * demo.WALL_SECONDS - 2 * 1.2 * demo.FINAL_SECONDS > 45  # for starting, timing and drawing
    assert demo.WALL_SECONDS > 2 * demo.SECONDS


@pytest.mark.parametrize(
    ("rws", "nrws", "epochs"),
    [(8.0, 4.7, (3, 5)), (16.0, 9.4, (2, 3)), (3.0, 1.7, (8, 14)), (60.0, 35.0, (1, 1)), (5.0, 50.0, (5, 1))],
)
def test_the_demo_gives_both_the_same_seconds(
    rws: float, nrws: float, epochs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "epoch_seconds", lambda settings: {"rws": rws, "nrws": nrws}[settings.algorithm])
    assert tuple(demo.affordable(24.0).values()) == epochs
    settings = demo.demo_settings("nrws", 3)
    assert (settings.batch_size, settings.samples, settings.damping) == (200, 5, "auto")  # as it comes
    assert settings.lr_schedule == demo.demo_settings("rws", 3).lr_schedule == "linear:0:0.5"


def test_the_demo_says_first_who_is_ahead() -> None:
    rws = plots.Curve("RWS", [1, 2, 3], [10, 20, 30], [-34.0, -32.0, -31.0])
    nrws = plots.Curve("NRWS", [2, 4, 6], [9, 18, 28], [-33.0, -31.0, -29.5])
    assert demo.outcome([rws, nrws], [-30.9, -29.4]) == (
        "At equal seconds NRWS is 1.5 nats ahead of RWS: -29.40 after 28 seconds of training, -30.90 after 30 seconds. "
        "It was there after 18 seconds."
    )
    assert demo.outcome([rws, nrws], [-29.4, -30.4]).startswith("At equal seconds RWS is 1.0 nat ahead of NRWS: -29.40")
    assert demo.outcome([rws, nrws], [-29.42, -29.4]).startswith("At equal seconds NRWS and RWS are level: ")
    short = nrws._replace(seconds=[0.3, 0.6, 1.0])
    assert demo.outcome([rws, short], [-30.9, -29.4]).startswith(
        "NRWS is 1.5 nats ahead of RWS: -29.40 after 1 second of"
    )


def test_complete_draws_halves_and_says_whether_they_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("runs/a") == 0
    capsys.readouterr()
    for hide in ("bottom", "top", "left", "right", "random"):
        assert main(["complete", "runs/a", "--hide", hide, "--sweeps=4", "--number=9", "--out", f"{hide}.png"]) == 0
        assert Path(f"{hide}.png").read_bytes().startswith(PNG)
    assert "is p(unknown | known);" in capsys.readouterr().out
    assert main(["complete", "runs/a", "--candidates", "0", "--sweeps=2"]) == 0
    assert "if q is the posterior" in capsys.readouterr().out
    assert Path("runs/a/completions.png").exists()


@pytest.mark.parametrize("code", [0, 2])
def test_a_process_of_torchrun_ends_without_taking_down_what_is_left(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr("dagfisher.app.cli.main", lambda: code)
    monkeypatch.setattr("dagfisher.app.cli.leave", lambda: done.append("left the group"))
    monkeypatch.setattr("os._exit", done.append)
    for launched, expected in ((False, []), (True, ["left the group", code])):
        monkeypatch.setattr("dagfisher.app.cli.is_launched", lambda launched=launched: launched)
        with pytest.raises(SystemExit) as ended:
            cli.run()
        assert ended.value.code == code and done == expected
