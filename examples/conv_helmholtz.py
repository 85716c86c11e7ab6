"""Dense and convolutional bottom layers, trained by RWS and by NRWS: a table and a picture.

    python examples/conv_helmholtz.py                         # MNIST, half a minute for each of the eight
    python examples/conv_helmholtz.py --data fashion-mnist --kinds conv/deconv --seconds 300

Each name says recognition/generative: conv/dense recognises with a convolution and generates with a dense layer. The
first hidden layer has 8 channels of 14×14 units in all of them; convolutions have 3×3 filters and stride 2. Above it
all machines are the same. So what differs is how many weights see how much of an image. Each machine has the same
seconds of the processor, in whose second half its learning rate falls to zero; NRWS runs as it comes, RWS at the rates
below.
"""

import argparse
import itertools
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR

from dagfisher import datasets, plots
from dagfisher.app import Bar, table
from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.helmholtz.pictures import display
from dagfisher.nn import BernoulliConv2d, BernoulliConvTranspose2d, BernoulliLinear, Prior

KINDS = ("dense/dense", "conv/dense", "dense/deconv", "conv/deconv")
CHANNELS, ABOVE, POINTS = 8, (200, 100, 50, 20), 10
STATES = (-1.0, 1.0)
RATES = dict(zip(KINDS, (0.04, 0.04, 0.04, 0.01), strict=True))
"""Of RWS, the best of 0.005, 0.01, 0.02, 0.04 and 0.08 after ten seconds, on 200 validation images, one seed."""


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
    """Train one machine for some seconds of the processor; gives its curve, the machine and the number of steps."""
    machine = make(kind, data.shape, options.seed)
    trainer = Trainer(machine, algorithm, lr=RATES[kind] if algorithm == "rws" else None, seed=options.seed)
    size, x = trainer.algorithm.batch_size, data.evaluation("test")[: options.examples]
    batches = (batch for epoch in itertools.count() for batch in data.batches(size, seed=options.seed, epoch=epoch))
    spent, done, points = 0.0, 0, []
    falling = LambdaLR(trainer.optimizer, lambda step: min(1.0, max(0.0, 2 * (1 - spent / options.seconds))))
    with Bar(options.seconds, f"{kind} {algorithm}") as bar:
        while spent < options.seconds:
            batch, start = next(batches), time.process_time()
            trainer.step(batch)
            falling.step()
            took = time.process_time() - start
            spent, done = spent + took, done + 1
            bar.update(took)
            if spent >= options.seconds * (len(points) + 1) / POINTS:
                value = estimate(machine, x, options.samples, generator=torch.Generator().manual_seed(done)).mean
                points.append((done * size / len(data.train), spent, value))
    return plots.Curve(f"{kind} {display(algorithm)}", *zip(*points)), machine, done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="mnist", help="a dataset of square images (mnist)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="bottom layers, with commas between them (all four)")
    parser.add_argument("--algorithms", default="rws,nrws", help="with commas between them (rws,nrws)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the processor, for each machine (30)")
    parser.add_argument("--examples", type=int, default=200, help="test images for a point of a curve (200)")
    parser.add_argument("--samples", type=int, default=50, help="samples for each of them (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/conv_helmholtz.png"), help="the picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = datasets.load(options.data)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    curves, lines = [], []
    for kind in options.kinds.split(","):
        if kind not in KINDS:
            sys.exit(f"there is no {kind!r}; choose from {', '.join(KINDS)}.")
        for algorithm in options.algorithms.split(","):
            curve, machine, steps = train(kind, algorithm, data, options)
            bottom = (machine.generative[0], machine.recognition[0])
            weights = sum(p.numel() for layer in bottom for p in layer.parameters())
            curves.append(curve)
            each = 1000 * curve.seconds[-1] / steps
            lines.append([kind, display(algorithm), f"{weights:,}", f"{each:.0f}", f"{curve.values[-1]:.2f}"])
            plots.draw_curves(
                curves, options.out, title=f"{data.label}: bottom layers", quantity="test log-likelihood (nats)"
            )
    print(table(["bottom", "algorithm", "its weights", "ms/step", f"test log-likelihood, {data.label}"], lines))
    print(options.out)
