"""Dense and convolutional bottom layers, trained by RWS and by NRWS: a table and a picture.

    python examples/conv_helmholtz.py                         # MNIST, 400 steps of each of the eight; ten minutes
    python examples/conv_helmholtz.py --data fashion-mnist --kinds conv/deconv --steps 5000

Each name says recognition/generative: conv/dense recognises with a convolution and generates with a dense layer. The
first hidden layer has 8 channels of 14×14 units in all of them; convolutions have 3×3 filters and stride 2. Above it
all machines are the same. So what differs is how many weights see how much of an image.
"""

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch

from dagfisher import datasets, plots
from dagfisher.app import Bar, table
from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.helmholtz.pictures import display
from dagfisher.nn import BernoulliConv2d, BernoulliConvTranspose2d, BernoulliLinear, Prior

KINDS = ("dense/dense", "conv/dense", "dense/deconv", "conv/deconv")
CHANNELS, ABOVE = 8, (200, 100, 50, 20)
STATES = (-1.0, 1.0)
RATES = {"rws": dict.fromkeys(KINDS, 0.01), "nrws": dict(zip(KINDS, (0.01, 0.01, 0.03, 0.03), strict=True))}
"""Chosen after 150 or 200 steps on 200 validation images, one seed; not every rate was tried for every machine."""


def bottom_pair(kind: str, shape: tuple[int, int]):
    """The generative and the recognition layer between the image and 8 channels of half its size."""
    recognition, generative = kind.split("/")
    pixels, hidden = shape[0] * shape[1], CHANNELS * (shape[0] // 2) * (shape[1] // 2)
    filters = {"kernel_size": 3, "stride": 2, "padding": 1, "states": STATES}
    down = (
        BernoulliConvTranspose2d(CHANNELS, 1, output_padding=1, **filters)
        if generative == "deconv"
        else BernoulliLinear(hidden, pixels, states=STATES)
    )
    up = (
        BernoulliConv2d(1, CHANNELS, **filters)
        if recognition == "conv"
        else BernoulliLinear(pixels, hidden, states=STATES)
    )
    return down, up


def make(kind: str, shape: tuple[int, int], seed: int) -> HelmholtzMachine:
    """The machine; it reshapes between flat and spatial layers by itself."""
    widths = (CHANNELS * (shape[0] // 2) * (shape[1] // 2), *ABOVE)
    pairs = [bottom_pair(kind, shape)]
    for below, above in pairwise(widths):
        pairs.append((BernoulliLinear(above, below, states=STATES), BernoulliLinear(below, above, states=STATES)))
    machine = HelmholtzMachine(pairs, prior=Prior(widths[-1], states=STATES), shape=(1, *shape))
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    return machine


def train(kind, algorithm, data, options):
    """Train one machine; gives its curve and the machine."""
    machine = make(kind, data.shape, options.seed)
    trainer = Trainer(machine, algorithm, lr=options.lr or RATES[algorithm][kind], seed=options.seed)
    x = data.evaluation("test")[: options.examples]
    epochs, seconds, values = [], [], []
    spent, done, count = 0.0, 0, data.batch_count(32)
    with Bar(options.steps, f"{kind} {algorithm}") as bar:
        while done < options.steps:
            for batch in data.batches(32, seed=options.seed, epoch=done // count, start=done % count):
                start = time.perf_counter()
                trainer.step(batch)
                spent += time.perf_counter() - start
                done += 1
                bar.update(1)
                if done % max(1, options.steps // 10) == 0 or done == options.steps:
                    generator = torch.Generator().manual_seed(done)
                    values.append(estimate(machine, x, options.samples, generator=generator).mean)
                    epochs.append(done / count)
                    seconds.append(spent)
                if done == options.steps:
                    break
    name = f"{kind} {display(algorithm)}"
    return plots.Curve(name, epochs, seconds, values), machine


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="mnist", help="a dataset of square images (mnist)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="bottom layers, with commas between them (all four)")
    parser.add_argument("--algorithms", default="rws,nrws", help="with commas between them (rws,nrws)")
    parser.add_argument("--steps", type=int, default=400, help="minibatches for each machine (400)")
    parser.add_argument("--lr", type=float, help="one learning rate for all, instead of those in the program")
    parser.add_argument("--examples", type=int, default=200, help="test images for a point of a curve (200)")
    parser.add_argument("--samples", type=int, default=50, help="samples for each of them (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/conv_helmholtz.png"), help="the picture")
    options = parser.parse_args()
    data = datasets.load(options.data)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    curves, lines = [], []
    for kind in options.kinds.split(","):
        if kind not in KINDS:
            sys.exit(f"there is no {kind!r}; choose from {', '.join(KINDS)}.")
        for algorithm in options.algorithms.split(","):
            curve, machine = train(kind, algorithm, data, options)
            bottom = (machine.generative[0], machine.recognition[0])
            weights = sum(p.numel() for layer in bottom for p in layer.parameters())
            curves.append(curve)
            each = 1000 * curve.seconds[-1] / options.steps
            lines.append([kind, display(algorithm), f"{weights:,}", f"{each:.0f}", f"{curve.values[-1]:.2f}"])
            plots.draw_curves(
                curves, options.out, title=f"{data.label}: bottom layers", quantity="test log-likelihood (nats)"
            )
    print(table(["bottom", "algorithm", "its weights", "ms/step", f"test log-likelihood, {data.label}"], lines))
    print(options.out)
