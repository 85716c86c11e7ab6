"""Digits of which one half is hidden, completed by a Helmholtz machine.

    python examples/complete_digits.py                       # a table, and runs/complete_digits.png; a minute
    python examples/complete_digits.py --quick --out my.png  # a machine that has hardly learned

A machine learns miniMNIST by NRWS. Then it sees halves of test digits and fills in the rest, in sweeps up with q and
down with p: once with hidden states as q draws them, once with draws of q that compete by their importance weights,
whose limit is the machine's own p(unknown | known). The table has the mean log-probability of the hidden pixels, each
under its expectation, after a few sweeps and after many; a baseline knows the mean of each pixel over the training
images and nothing else. The picture is that of many sweeps.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.plots import Panel, draw_panels

SIDE = 14
HALVES = {"bottom": torch.arange(SIDE * SIDE) < SIDE * SIDE // 2, "right": torch.arange(SIDE * SIDE) % SIDE < SIDE // 2}


def score(expected: Tensor, truth: Tensor, known: Tensor) -> float:
    """The mean over images of Σ log-probability of the hidden pixels, in nats."""
    odds = expected[:, ~known].clamp(0.005, 0.995)
    hidden = truth[:, ~known]
    return float((hidden * odds.log() + (1 - hidden) * (1 - odds).log()).sum(1).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/complete_digits.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = datasets.load("mini-mnist")
    machine = HelmholtzMachine([SIDE * SIDE, 100, 50, 20, 10, 10])
    machine.reset_parameters(generator=torch.Generator().manual_seed(0))
    trainer, generator = Trainer(machine, "nrws", seed=0), torch.Generator().manual_seed(1)
    if options.quick:
        for x in data.evaluation("train")[:1000].split(100):
            trainer.step(x)
    else:
        trainer.fit(data, 5)
    images = data.evaluation("test")[: 25 if options.quick else 100]
    pixels = data.evaluation("train")[:10_000].mean(0).expand_as(images)
    rows, lines = [], []
    for name, known in HALVES.items():
        for sweeps in (10, 100) if options.quick else (100, 1000):
            plain = machine.complete(images, known, sweeps=sweeps, candidates=0, generator=generator)
            exact = machine.complete(images, known, sweeps=sweeps, candidates=10, generator=generator)
            scores = [score(guess, images, known) for guess in (pixels, plain.mean, exact.mean)]
            lines.append([name, f"{sweeps:,}", *(f"{value:.1f}" for value in scores), f"{exact.moved:.0%}"])
        hidden = torch.where(known, images, torch.full_like(images, 0.35))
        titles = (
            f"without the {name} half",
            "expectation, alternating",
            "expectation, candidates",
            "a draw, candidates",
        )
        shown = (hidden, plain.mean, exact.mean, exact.sample)
        rows.append([Panel(title, image[:25]) for title, image in zip(titles, shown)])
    print(table(["hidden half", "sweeps", "means of pixels", "alternating", "candidates", "moved"], lines))
    draw_panels(rows, (SIDE, SIDE), options.out, title="Halves of digits, completed")
    print(options.out)
