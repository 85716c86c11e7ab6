"""Presets are the published rows: settings as printed, figures beside them, and they train."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from dagfisher import datasets
from dagfisher.app import main
from dagfisher.errors import SettingError
from dagfisher.helmholtz import PRESETS, Settings, preset_named
from dagfisher.helmholtz.folders import read_preset, read_settings
from dagfisher.helmholtz.presets import Preset

from .published_rows import expected

BARS = datasets.load("three-by-three")
SMALL = ["--data=three-by-three", "--layers=3,1", "--threads=1", "--samples=2", "--batch-size=200", "--eval-samples=2"]


def resolved(preset: Preset, **given: object) -> Settings:
    own = {} if "data" in preset.settings else {"data": "mini-mnist"}
    return Settings.resolve(**preset.completed({**own, **given}))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_is_what_its_source_prints_and_nothing_of_ours(preset: Preset) -> None:
    settings = resolved(preset)
    assert (settings.batch_size, settings.samples, settings.states) == (32, 10, "plus-minus")
    assert settings.lr_schedule == "constant" and preset.published < 0
    assert preset.source.startswith(preset.name.partition("-")[0])
    if settings.damping is not None:
        assert isinstance(settings.damping, float) and isinstance(settings.update_every, int)
        assert settings.trust_region == "none" and settings.momentum in (0.0, 0.95, "auto")
        optimizer = settings.build(BARS).optimizer
        for group in optimizer.param_groups:
            assert group["trust_region"] is None
            assert group["momentum"] == (0.0 if settings.adam or settings.momentum == 0 else 0.95)


def test_there_is_a_preset_for_every_published_row_with_what_is_printed() -> None:
    rows = expected()
    assert rows.keys() == PRESETS.keys()
    for name, row in rows.items():
        preset, settings = PRESETS[name], resolved(PRESETS[name])
        found = {key: getattr(preset if key in ("source", "published") else settings, key) for key in row}
        found["momentum"] = 0.0 if found["momentum"] == "auto" and settings.adam else found["momentum"]
        assert found == row, name


@pytest.mark.parametrize(
    ("name", "small"), [("thesis-mnist-bihm", True), ("thesis-mnist-nbihm", True), ("thesis-mnist-nrws", False)]
)
def test_only_the_weights_of_bidirectional_presets_begin_near_zero(name: str, small: bool) -> None:
    machine = resolved(preset_named(name), data="three-by-three", layers=(6, 5)).build(BARS).machine
    for parameter_name, parameter in machine.named_parameters():
        if parameter_name.endswith("bias"):
            assert bool((parameter == -1).all()), parameter_name
        elif parameter.numel() > 1:
            assert (float(parameter.detach().abs().max()) <= 0.002) == small, parameter_name


def test_some_rows_in_full() -> None:
    row = resolved(preset_named("thesis-mnist-nrws"), data="mini-mnist")
    assert (row.lr, row.damping, row.update_every, row.epochs, row.binarisation) == (0.002, 0.2, 1000, 2000, "F")
    assert row.layers == (300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10)
    assert preset_named("thesis-mnist-nrws").published == -84.91
    assert resolved(preset_named("thesis-mnist-dnrws")).update_every == 1
    best = resolved(preset_named("thesis-fashion-mnist-nrws-best"))
    assert (best.entropy, best.warm_up_epochs, best.momentum, best.nesterov) == (0.5, 50, 0.95, True)


@pytest.mark.parametrize("epochs", [0.5, 3])
def test_a_warm_up_in_epochs_counts_their_minibatches(epochs: float) -> None:
    given = {"data": "three-by-three", "entropy": 0.1, "batch_size": 32, "warm_up_epochs": epochs}
    (entropy,) = Settings.resolve(**given).build(BARS).regularisers
    assert entropy.warm_up == round(epochs * math.ceil(1800 / 32))
    with pytest.raises(SettingError, match="give one of them"):
        Settings.resolve(**given, warm_up=5)


def test_the_order_is_a_setting() -> None:
    settings = Settings.resolve(data="three-by-three", order="alternating")
    assert settings.build(BARS).order == "alternating"
    with pytest.raises(SettingError, match="together"):
        Settings.resolve(order="sideways")


def test_names_that_are_not_there_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError, match="`dagfisher presets` lists them"):
        preset_named("thesis")
    assert main(["presets", "nonsense"]) == 2
    assert "no preset has 'nonsense'" in capsys.readouterr().err


def test_faces_need_the_users_own_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "thesis-faces-nrws", "--out", str(tmp_path / "a")]) == 2
    assert "--data" in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_the_list_has_a_header_a_line_for_each_preset_and_says_what_its_columns_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = lines[0].split()
    assert heads == ["preset", "data", "algorithm", "rate", "damping", "K", "epochs", "published", "source"]
    assert [line.split()[0] for line in lines[2 : 2 + len(PRESETS)]] == list(PRESETS)
    row = next(line for line in lines if line.startswith("thesis-mnist-nrws "))
    assert row.split()[-4:] == ["-84.91", "thesis,", "Table", "5.1"]
    explained = "\n".join(lines[2 + len(PRESETS) :])
    assert all(f"\n{head} " in explained for head in ("data", "rate", "epochs", "published"))


def test_flags_override_a_preset(tmp_path: Path) -> None:
    bars = ["--data", "three-by-three", "--layers", "3,1", "--epochs", "1", "--threads", "1", "--lr", "0.01"]
    out = tmp_path / "a"
    assert main(["train", "--preset", "thesis-mini-mnist-b-nrws", "--out", str(out), *bars]) == 0
    kept = read_settings(out)
    assert (kept.lr, kept.damping, kept.epochs, kept.data) == (0.01, 0.05, 1, "three-by-three")


@pytest.mark.parametrize("part", ["tfd", "TFD", "your tfd", "FACES"])
def test_the_list_is_searched_by_name_data_and_source_without_regard_to_case(
    part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["presets", part]) == 0
    found = [line.split()[0] for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[2:]]
    assert found == [name for name in PRESETS if "faces" in name]
    assert main(["presets", "table 5.1"]) == 0
    found = [line.split()[0] for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[2:]]
    assert found == ["thesis-mnist-ws", "thesis-mnist-rws", "thesis-mnist-dnrws", "thesis-mnist-nrws"]


def test_the_page_names_the_rows_with_a_momentum() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "presets.rst").read_text(encoding="utf-8").split())
    suffixes = set(re.findall(r"``(-\w+)``", re.findall(r"momentum is 0\.95 in rows named ([^;]+);", text)[0]))
    for name, preset in PRESETS.items():
        named = any(f"{suffix}-" in f"{name}-" for suffix in suffixes)
        assert preset.settings.get("momentum", 0.0) == (0.95 if named else 0.0), name


def test_a_resumed_run_keeps_its_own_number_of_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["train", "--preset=thesis-mini-mnist-b-nrws", f"--out={tmp_path / 'a'}", *SMALL]
    assert main([*run, "--epochs=1"]) == 0
    assert main([*run, "--resume"]) == 0
    assert "has done its 1 epoch;" in capsys.readouterr().out
    assert read_settings(tmp_path / "a").epochs == 1
    (tmp_path / "more.toml").write_text("epochs = 2\n")
    assert main([*run, "--resume", f"--config={tmp_path / 'more.toml'}"]) == 0
    assert main([*run, "--resume", "--epochs=3"]) == 0
    assert read_settings(tmp_path / "a").epochs == 3


def test_a_plain_algorithm_leaves_out_what_only_natural_ones_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "--preset=thesis-mini-mnist-b-nrws", *SMALL, "--epochs=1"]
    assert main([*run, f"--out={tmp_path / 'a'}", "--algorithm=rws"]) == 0
    assert capsys.readouterr().err == (
        "dagfisher: rws is a plain algorithm, so these settings of thesis-mini-mnist-b-nrws are left out: "
        "damping, update_every, trust_region, fisher.\n"
    )
    kept = read_settings(tmp_path / "a")
    assert (kept.algorithm, kept.lr, kept.damping, kept.states) == ("rws", 0.004, None, "plus-minus")
    assert main([*run, f"--out={tmp_path / 'b'}", "--algorithm=dnrws"]) == 0
    assert capsys.readouterr().err == "" and read_settings(tmp_path / "b").damping == 0.05
    assert main([*run, f"--out={tmp_path / 'c'}", "--algorithm=rws", "--damping=0.1"]) == 2
    assert "damping belongs to natural algorithms" in capsys.readouterr().err and not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_trained_by_plain_and_by_natural_algorithms(name: str) -> None:
    preset = preset_named(name)
    for algorithm in ("rws", "nrws", "bihm"):
        assert resolved(preset, algorithm=algorithm, data="three-by-three").algorithm == algorithm
    assert resolved(preset).without_effect is None


def test_a_warm_up_of_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["train", *SMALL, "--epochs=1"]
    for number, flag in enumerate(("--warm-up=5", "--warm-up-epochs=0.5")):
        assert main([*run, f"--out={tmp_path / str(number)}", flag]) == 0
        name = flag[2:].partition("=")[0].replace("-", "_")
        told = f"dagfisher: {name} does nothing without an l1, l2 or entropy above 0.\n"
        assert capsys.readouterr().err == told
        assert main([*run, f"--out={tmp_path / 'with'}{number}", flag, "--l2=0.001"]) == 0
        assert capsys.readouterr().err == ""
    sweep = ["sweep", *SMALL, "--epochs=1", "--warm-up=5"]
    assert main([*sweep, f"--out={tmp_path / 'c'}", "--vary", "entropy", "0", "0.1"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*sweep, f"--out={tmp_path / 'd'}", "--vary", "lr", "0.1", "0.2"]) == 0
    assert capsys.readouterr().err == told.replace("warm_up_epochs", "warm_up")


def test_evaluate_shows_the_published_figure_and_what_the_run_differs_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, name = str(tmp_path / "a"), "thesis-mini-mnist-b-nrws-100"
    assert main(["train", f"--preset={name}", "--out", out, *SMALL, "--epochs=1"]) == 0
    assert main(["train", "--resume", "--out", out, "--epochs=2"]) == 0
    assert read_preset(tmp_path / "a") == name
    capsys.readouterr()
    assert main(["evaluate", out, "--samples=2"]) == 0
    *_, figure, note = capsys.readouterr().out.splitlines()
    assert figure == "published          -28.39 (thesis, Appendix D (24 seeds); 10,000 samples each)"
    differing = note.split(" but this run differs in ")[1].split(", ", 5)
    own = {"data", "layers", "epochs", "batch_size", "samples"}
    assert set(differing) == own | {"pixels (3×3, not 14×14)"}
    assert main(["evaluate", out, "--samples=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["preset"], found["published"]) == (name, -28.39)
    assert main(["evaluate", out, "--samples=2", "--split=valid"]) == 0  # published figures are of test images
    assert "published" not in capsys.readouterr().out


def test_a_run_of_the_presets_own_data_and_settings_differs_in_nothing() -> None:
    preset = preset_named("thesis-mini-mnist-b-nrws-100")
    assert preset.unlike(resolved(preset), (14, 14)) == []
    assert preset.unlike(resolved(preset, algorithm="rws"), (14, 14)) == ["algorithm"]
    faces = preset_named("thesis-faces-nrws")
    own = resolved(faces, data="three-by-three")
    assert faces.unlike(own, (24, 24)) == [] and faces.unlike(own, (48, 48)) == ["pixels (48×48, not 24×24)"]
    rounded = resolved(preset_named("thesis-mnist-nrws"), data="mini-mnist", binarisation="B")
    assert set(preset_named("thesis-mnist-nrws").unlike(rounded, (28, 28))) == {"data", "binarisation"}


def test_a_run_without_a_preset_has_no_published_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"--out={tmp_path / 'a'}", *SMALL, "--epochs=1"]) == 0
    assert main(["evaluate", str(tmp_path / "a"), "--samples=2"]) == 0
    assert "published" not in capsys.readouterr().out and read_preset(tmp_path / "a") is None
