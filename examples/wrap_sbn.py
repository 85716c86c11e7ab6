"""A sigmoid belief network in plain PyTorch, trained by reweighted wake-sleep; dagfisher is added to what is there.

    python examples/wrap_sbn.py                            # a table, and runs/wrap_sbn.png; a minute
    python examples/wrap_sbn.py --seconds 30 --out my.png
    python examples/wrap_sbn.py --quick                    # a second and a half for each

The network and the training step are written as for any PyTorch optimizer; units are 0 or 1. The natural version has
the same start, the same batches and the same step. What is new are the two lines that declare the layers and make the
optimizer, and in the step the two contexts that say which samples the Fisher matrices are made of: those of p carry the
importance weights, as the gradient of p does, and those of q are made of the wake samples alone, not of the dreams.
With any other optimizer the contexts do nothing.

All have the same seconds of the processor, and a learning rate that falls to zero in the second half of them. Nothing
of the natural version is tuned: larger minibatches with fewer samples suit it. The others have the best rates found:
SGD 1 (of 0.5, 1 and 1.5), Adam 0.03 (of 0.003, 0.01 and 0.03).
"""

import argparse
import copy
import itertools
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import LambdaLR

import dagfisher
from dagfisher import datasets
from dagfisher.app import table
from dagfisher.plots import Curve, draw_curves

SIZES = (196, 100, 50, 20)  # pixels at the bottom
PLAIN_LR, ADAM_LR = 1.0, 0.03


def log_prob(logits: Tensor, units: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(logits, units, reduction="none").sum(-1)


class BeliefNetwork(nn.Module):
    """The generative network p(x, h), and a recognition network q(h|x) of the same shape upside down."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip(SIZES, SIZES[1:]))
        self.up = nn.ModuleList(nn.Linear(below, above) for below, above in pairs)
        self.down = nn.ModuleList(nn.Linear(above, below) for below, above in pairs)
        self.top = nn.Linear(1, SIZES[-1], bias=False)  # the only parent of the top units is the constant 1

    def infer(self, x: Tensor) -> list[Tensor]:
        """All layers, from x up, with h ~ q(h|x)."""
        units = [x]
        for layer in self.up:
            units.append(torch.bernoulli(torch.sigmoid(layer(units[-1]))))
        return units

    def dream(self, n: int) -> list[Tensor]:
        """All layers, with x, h ~ p(x, h)."""
        units = [torch.bernoulli(torch.sigmoid(self.top(torch.ones(n, 1))))]
        for layer in reversed(self.down):
            units.insert(0, torch.bernoulli(torch.sigmoid(layer(units[0]))))
        return units

    def log_q(self, units: list[Tensor]) -> Tensor:
        given = [log_prob(layer(below), above) for layer, below, above in zip(self.up, units, units[1:])]
        return torch.stack(given).sum(0)

    def log_p(self, units: list[Tensor]) -> Tensor:
        prior = log_prob(self.top(torch.ones(len(units[0]), 1)), units[-1])
        return prior + sum(log_prob(layer(above), below) for layer, below, above in zip(self.down, units, units[1:]))

    @torch.no_grad()
    def log_likelihood(self, x: Tensor, samples: int) -> float:
        """The importance-sampled estimate of log p(x), averaged over the images."""
        units = self.infer(x.repeat(samples, 1))
        ratios = (self.log_p(units) - self.log_q(units)).view(samples, -1)
        return float((torch.logsumexp(ratios, 0) - math.log(samples)).mean())


def step(net: BeliefNetwork, opt: torch.optim.Optimizer, x: Tensor, samples: int) -> None:
    """One step of reweighted wake-sleep."""
    with torch.no_grad():
        wake = net.infer(x.repeat(samples, 1))
        ratios = (net.log_p(wake) - net.log_q(wake)).view(samples, -1)
        weights = torch.softmax(ratios, 0).view(-1) / len(x)
        dream = net.dream(len(weights))
    opt.zero_grad()
    with dagfisher.sample_weights(weights):  # <- the Fisher matrices of p see the samples with their weights
        loss = -(weights * net.log_p(wake)).sum()
    loss = loss - 0.5 * (weights * net.log_q(wake)).sum()
    with dagfisher.no_capture():  # <- those of q do not see the dreams
        loss = loss - 0.5 * net.log_q(dream).mean()
    loss.backward()
    opt.step()


def plain(net: BeliefNetwork) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=PLAIN_LR)


def adam(net: BeliefNetwork) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=ADAM_LR)


def natural(net: BeliefNetwork) -> torch.optim.Optimizer:
    for layer in (net.top, *net.down, *net.up):
        dagfisher.declare(layer, "bernoulli")  # <- the two lines
    return dagfisher.DAGNaturalGradient(net.parameters())  # <- the two lines


WAYS = {"natural, NRWS": (natural, 100, 5), "SGD, RWS": (plain, 32, 10), "Adam, RWS": (adam, 32, 10)}
"""An optimizer, examples in a minibatch, and samples of each."""


def train(label: str, net: BeliefNetwork, data: datasets.Dataset, options) -> tuple[Curve, int]:
    """The test log-likelihood against epochs and seconds of the processor, at ten points, and the number of steps."""
    torch.manual_seed(options.seed)
    make, size, samples = WAYS[label]
    opt, test = make(net), data.evaluation("test")[: 200 if options.quick else 500]
    batches = (x for epoch in itertools.count() for x in data.batches(size, seed=options.seed, epoch=epoch))
    points, spent, done = [], 0.0, 0
    cooling = LambdaLR(opt, lambda step: min(1.0, max(0.0, 2 * (1 - spent / options.seconds))))
    while spent < options.seconds:
        x, began = next(batches), time.process_time()
        step(net, opt, x, samples)
        cooling.step()
        spent, done = spent + time.process_time() - began, done + 1
        if spent >= options.seconds * (len(points) + 1) / 10:
            value = net.log_likelihood(test, 20 if options.quick else 100)
            points.append((done * size / len(data.train), spent, value))
    return Curve(label, *zip(*points)), done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/wrap_sbn.png"), help="the picture to write")
    parser.add_argument("--seconds", type=float, default=15.0, help="of the processor, for each (15)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a second and a half for each")
    options = parser.parse_args()
    options.seconds = 1.5 if options.quick else options.seconds
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data, start = datasets.load("mini-mnist"), BeliefNetwork()
    curves, lines = [], []
    for label in WAYS:
        curve, steps = train(label, copy.deepcopy(start), data, options)
        curves.append(curve)
        lines.append([label, f"{steps:,}", f"{curve.seconds[-1]:.1f}", f"{curve.values[-1]:.2f}"])
    print(table(["gradient", "steps", "seconds", "test log-likelihood"], lines))
    title = f"A belief network on {data.label}, by reweighted wake-sleep"
    draw_curves(curves, options.out, title=title, quantity="test log-likelihood (nats)")
    print(options.out)
