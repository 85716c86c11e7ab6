"""What the pictures of a run show: its log-likelihoods, and what its machine remembers and dreams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Generator

from ..datasets import Dataset
from ..plots import Curve, Panel, draw_curves, draw_panels
from .machine import HelmholtzMachine
from .metrics import Row

CURVES, SAMPLES = "curves.png", "samples.png"
IMAGES = 64
"""In each panel of samples.png."""


def display(algorithm: str) -> str:
    """The algorithm's name as papers write it."""
    return algorithm.upper().replace("BIHM", "BiHM")


def run_curve(label: str, rows: Sequence[Row]) -> Curve:
    """The test log-likelihood of a run."""
    return _curve(label, rows, [row.test_log_likelihood for row in rows])


def run_panels(machine: HelmholtzMachine, data: Dataset, generator: Generator) -> list[Panel]:
    """Test images, what the first hidden layer keeps of them, and dreams."""
    images = data.evaluation("test")[:IMAGES]
    reconstructions = machine.reconstruct(images, generator=generator)
    dreams = machine.sample(len(images), means=True, generator=generator)
    return [
        Panel(f"{data.label}, test images", images),
        Panel("reconstructions", reconstructions),
        Panel("dreams", dreams),
    ]


def draw_run(
    folder: Path, rows: Sequence[Row], panels: Sequence[Panel], shape: tuple[int, int], *, title: str, algorithm: str
) -> tuple[Any, Any]:
    """Write the curves.png and samples.png of a run, and return their matplotlib figures.

    Args:
        folder: of the run.
        rows: its evaluations so far.
        panels: what `run_panels` gives.
        shape: (rows, columns) of every image.
        title: of both pictures.
        algorithm: of the run; the curves have its colour.
    """
    curves = [
        _curve("test", rows, [row.test_log_likelihood for row in rows]),
        _curve("valid", rows, [row.valid_log_likelihood for row in rows]),
        _curve("train, while learning", rows, [row.train_log_likelihood for row in rows]),
    ]
    drawn = draw_curves(curves, folder / CURVES, title=title, quantity="log-likelihood (nats)", method=algorithm)
    return drawn, draw_panels([panels], shape, folder / SAMPLES, title=title)


def _curve(label: str, rows: Sequence[Row], values: Sequence[float]) -> Curve:
    return Curve(label, [row.epoch for row in rows], [row.seconds for row in rows], values)
