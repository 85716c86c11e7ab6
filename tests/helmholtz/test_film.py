"""The film of dreams: one fixed noise, few frames, kept across a resume."""

from __future__ import annotations

from pathlib import Path

import torch

from dagfisher.helmholtz import Run, Settings
from dagfisher.helmholtz.runs import FRAMES


def settings(**given: object) -> Settings:
    common = {"data": "three-by-three", "layers": (4, 2), "samples": 2, "threads": torch.get_num_threads()}
    return Settings.resolve(**{**common, "eval_examples": 2, "eval_samples": 2, **given})


def test_frames_differ_by_the_weights_alone(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a", settings(epochs=2, batch_size=900))
    run.train()
    assert list(run.film) == [2, 4]
    again = run.machine.sample(16, means=True, generator=run.settings.stream("film"))
    assert torch.equal(run.film[4], again.mul(255).round().byte())
    assert not torch.equal(run.film[2], run.film[4])
    opened = Run.open(tmp_path / "a")
    assert list(opened.film) == [2, 4] and torch.equal(opened.film[2], run.film[2])


def test_a_long_film_keeps_its_first_and_last_frames(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a", settings(epochs=1, batch_size=20, eval_every=1))
    run.train()
    kept = list(run.film)
    assert FRAMES // 2 <= len(kept) <= FRAMES
    assert kept[0] == 1 and kept[-1] == 90
