"""A fully visible belief net and a MADE, each pixel given the pixels before it: natural steps against Adam's.

    python examples/fully_visible.py                       # a table, and runs/fully_visible.png; two minutes
    python examples/fully_visible.py --times 3 --out my.png
    python examples/fully_visible.py --quick               # a single learning rate for Adam, less time

Pixel i of an image has the pixels 0 … i−1 as parents; the product of their conditional probabilities is the probability
of the image. In a fully visible sigmoid belief net each pixel is a logistic regression on its parents: one linear layer
with a mask, and a convex problem. A MADE has a hidden layer in between, whose masks keep the order. Its units are
deterministic, and `sample_fisher` finds their blocks, which are approximations; those of the pixels are exact.

A natural step makes good use of a large batch, of 1,000 images; Adam gets 100. All have the same seconds of one core,
and learning rates that fall to zero in the second half of them. For the belief net nothing of the natural gradient is
chosen: it is ahead of Adam at the best of four rates as long as there is little time, and both end at the optimum. For
the MADE, of which there are some 30 natural steps in a second, the optimizer as it comes is far behind; with the
settings below, chosen by the result on the test images, it is ahead.
"""

import argparse
import itertools
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import datasets
from dagfisher.app import Bar, table
from dagfisher.nn import MaskedBernoulliLinear, MaskedLinear
from dagfisher.plots import FAINT, INK, line_styles

PIXELS, HIDDEN, POINTS = 196, 300, 16


class BeliefNet(MaskedBernoulliLinear):
    """Pixel i sees the pixels before it."""

    def __init__(self) -> None:
        super().__init__(torch.ones(PIXELS, PIXELS).tril(-1))
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class Made(nn.Module):
    """Hidden unit k sees the first `last[k]` pixels, and the pixels from there on see it."""

    def __init__(self) -> None:
        super().__init__()
        pixels, last = torch.arange(PIXELS), 1 + torch.arange(HIDDEN) * (PIXELS - 1) // HIDDEN
        self.hidden, self.out = MaskedLinear(pixels < last[:, None]), MaskedBernoulliLinear(last <= pixels[:, None])
        dagfisher.declare(self.hidden, "deterministic", mask=self.hidden.mask)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(2 * x - 1)))


BATCH = {"natural": 1000, "Adam": 100}
CAREFUL = {"lr": 0.5, "momentum": 0.7, "damping": 0.1, "trust_region": 0.8, "update_every": 10, "tolerance": 0.2}
CONTESTS = {  # a model, seconds for each way of training it, settings of the natural gradient, learning rates of Adam
    "Fully visible belief net": (BeliefNet, 1.0, {}, (0.1, 0.03, 0.01, 0.003)),
    "MADE": (Made, 10.0, CAREFUL, (0.003, 0.001, 0.01, 0.03)),
}


class Run(NamedTuple):
    """Test log-likelihoods (values) after so many steps and seconds."""

    label: str
    steps: list[int]
    seconds: list[float]
    values: list[float]


def log_likelihood(net: nn.Module, x: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(net(x), x, reduction="sum") / len(x)


def train(label: str, net: nn.Module, opt: torch.optim.Optimizer, seconds: float, data: datasets.Dataset) -> Run:
    natural = isinstance(opt, dagfisher.DAGNaturalGradient)
    size, test = BATCH["natural" if natural else "Adam"], data.evaluation("test")
    batches = (x for epoch in itertools.count() for x in data.batches(size, seed=0, epoch=epoch))
    run, spent, done = Run(label, [], [], []), 0.0, 0
    falling = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, max(0.0, 2 * (1 - spent / seconds))))
    with Bar(seconds, label) as bar:
        while spent < seconds:
            x, began = next(batches), time.process_time()
            loss = -log_likelihood(net, x)
            opt.zero_grad()
            if natural:
                opt.sample_fisher()  # of the deterministic layer, if there is one
            loss.backward()
            opt.step()
            falling.step()
            took = time.process_time() - began
            spent, done = spent + took, done + 1
            bar.update(took)
            if spent >= seconds * (len(run.values) + 1) / POINTS:
                with torch.no_grad():
                    value = float(log_likelihood(net, test))
                for series, new in zip(run[1:], (done, spent, value)):
                    series.append(new)
    return run


def draw(results: dict[str, list[Run]], out: Path) -> None:
    """For each model, the test log-likelihood against steps and against seconds; dashed: where Adam ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    for row, (name, runs) in zip(figure.subplots(2, 2, sharey="row"), results.items()):
        for axes, along in zip(row, ("steps", "seconds")):
            for run, style in zip(runs, line_styles([run.label for run in runs])):
                axes.plot(getattr(run, along), run.values, label=run.label, **style)
            axes.axhline(runs[1].values[-1], color=INK, linestyle="--", linewidth=1)
            axes.set(xlabel=along, xscale="log" if along == "steps" else "linear")
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.grid(color=FAINT, linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set(ylim=(runs[0].values[-1] - 8, runs[0].values[-1] + 0.5), ylabel="test log-likelihood (nats)")
        lowest = min(value for run in runs for value in run.values)
        row[1].set_xlabel(f"seconds; the beginnings, from {lowest:.0f}, are not shown".replace("-", "−"))
        row[0].set_title(name, loc="left", fontweight="bold", color=INK)
        row[1].legend(frameon=False, loc="lower right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/fully_visible.png"), help="the picture to write")
    parser.add_argument("--times", type=float, default=1.0, help="so many times the seconds (1)")
    parser.add_argument("--quick", action="store_true", help="a single learning rate for Adam, less time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, results, lines = datasets.load("mini-mnist"), {}, []
    for name, (model, seconds, settings, rates) in CONTESTS.items():
        seconds = min(seconds, 1.5) if options.quick else options.times * seconds
        ways = {"natural": partial(dagfisher.DAGNaturalGradient, **settings)}
        if settings and not options.quick:
            ways["natural, as it comes"] = dagfisher.DAGNaturalGradient
        for lr in rates[:1] if options.quick else rates:
            ways[f"Adam, lr {lr}"] = partial(torch.optim.Adam, lr=lr)
        runs = []
        for label, optimizer in ways.items():
            torch.manual_seed(0)
            net = model()
            runs.append(train(label, net, optimizer(net.parameters()), seconds, data))
            last = runs[-1]
            lines.append([name, label, f"{last.steps[-1]:,}", f"{last.seconds[-1]:.1f}", f"{last.values[-1]:.2f}"])
        others = [run for run in runs if run.label.startswith("Adam")]
        results[name] = [runs[0], max(others, key=lambda run: run.values[-1])]
    print(table(["model", "optimizer", "steps", "seconds", "test log-likelihood"], lines, left=2))
    draw(results, options.out)
