"""Presets are the published rows: settings as printed, figures beside them, and they train."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dagfisher import datasets
from dagfisher.app import main
from dagfisher.errors import SettingError
from dagfisher.helmholtz import PRESETS, Settings, preset_named
from dagfisher.helmholtz.folders import read_settings
from dagfisher.helmholtz.presets import Preset

from .published_rows import expected

BARS = datasets.load("three-by-three")


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
