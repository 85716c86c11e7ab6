"""Plain algorithms have lower rates on larger images, natural ones the same everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from dagfisher.datasets import NAMES
from dagfisher.helmholtz import HelmholtzMachine, Settings, Trainer
from dagfisher.helmholtz.settings import PIXELS


@pytest.mark.parametrize(("data", "share"), [("three-by-three", 1.0), ("mini-mnist", 1.0), ("mnist", 0.25)])
@pytest.mark.parametrize(("algorithm", "rate"), [("ws", 0.05), ("rws", 0.2), ("bihm", 0.1)])
def test_the_rate_of_a_plain_algorithm_falls_in_proportion_to_the_pixels(
    data: str, share: float, algorithm: str, rate: float
) -> None:
    assert Settings.resolve(data=data, algorithm=algorithm).lr == pytest.approx(share * rate)
    assert Settings.resolve(data=data, algorithm=f"n{algorithm}").lr == 0.2
    assert Settings.resolve(data=data, algorithm=algorithm, momentum=0.9).lr == pytest.approx(0.1 * share * rate)
    assert Settings.resolve(data=data, algorithm=algorithm, lr=0.3).lr == 0.3
    trainer = Trainer(HelmholtzMachine([PIXELS[data], 4]), algorithm)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(share * rate)


def test_images_of_ones_own_count_by_their_pixels(tmp_path: Path) -> None:
    images = (numpy.random.default_rng(0).random((40, 28, 14)) * 255).astype("uint8")
    numpy.save(tmp_path / "own.npy", images)
    assert Settings.resolve(data=str(tmp_path / "own.npy"), algorithm="rws").lr == pytest.approx(0.1)


def test_every_named_dataset_has_its_number_of_pixels() -> None:
    assert PIXELS.keys() == set(NAMES)
