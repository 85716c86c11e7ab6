"""Which images a classifier still learns from, and what drawing those more often could save.

    python examples/which_examples.py                        # a table, and runs/which_examples.png; half a minute
    python examples/which_examples.py --quick --out my.png

A network learns the digits of miniMNIST with minibatches from an ImportanceSampler. Now and then the norms of the
gradients of 500 training images are found in three metrics, from one backward pass of all of them. The picture has the
variance of a step over that of uniform minibatches, with ideal and with stale weights, and the images with the longest
steps.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dagfisher
from dagfisher import DAGNaturalGradient, datasets, inspect
from dagfisher.app import table
from dagfisher.importance import ImportanceSampler
from dagfisher.plots import COLOURS, FAINT, INK, NATURAL, PLAIN, tile

LOOKED_AT = 500


def looked_at(opt, net, x, y, stale):
    """The norms of each image in three metrics, and what drawing by them, or by stale ones, leaves of the variance."""
    opt.zero_grad()
    with opt.example_norms() as norms:
        F.cross_entropy(net(x), y).backward()
    opt.zero_grad()
    return inspect.examples(norms, stale)


def draw(steps, rows, hard, easy, out):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained", facecolor="white")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    names = ("ideal, ‖g‖", "ideal, ‖F̃⁻¹g‖", "ideal, √gᵀF̃⁻¹g", "stale weights, ‖g‖")
    colours, dashes = (PLAIN, NATURAL, COLOURS[5], PLAIN), ("-", "--", ":", "-.")
    for i, (name, colour, style) in enumerate(zip(names, colours, dashes)):
        left.plot(steps, [row[i] for row in rows], style, color=colour, label=name, linewidth=2)
    left.axhline(1, color=FAINT)
    left.set_yscale("log")
    left.set_xlabel("steps", color=INK)
    left.set_ylabel("variance, uniform minibatches = 1", color=INK)
    left.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    for axes, images, title in ((middle, hard, "longest natural steps"), (right, easy, "shortest")):
        axes.imshow(tile(images, (14, 14)), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, color=INK, fontsize=11)
        axes.set_axis_off()
    figure.suptitle("Which examples matter", x=0.01, ha="left", fontweight="bold", color=INK)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/which_examples.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = datasets.load("mini-mnist")
    x, y = data.evaluation("train")[:5000].float(), data.labels("train")[:5000]
    net = nn.Sequential(nn.Linear(196, 100), nn.ReLU(), nn.Linear(100, 10))
    dagfisher.declare(net[0], "deterministic", fisher="empirical")
    dagfisher.declare(net[2], "categorical", classes=10)
    opt = DAGNaturalGradient(net.parameters())
    sampler = ImportanceSampler(len(x), 500)
    loader = DataLoader(TensorDataset(x, y, torch.arange(len(x))), batch_sampler=sampler)
    steps, rows = [], []
    for epoch in range(4 if options.quick else 40):
        for images, labels, numbers in loader:
            weights = sampler.weights(numbers)
            opt.zero_grad()
            with opt.example_norms() as norms, dagfisher.sample_weights(weights):
                (weights * F.cross_entropy(net(images), labels, reduction="none")).mean().backward()
            opt.step()
            sampler.update(numbers, norms.gradient / weights)
        if epoch % 4 == 3:
            found = looked_at(opt, net, x[:LOOKED_AT], y[:LOOKED_AT], sampler.probabilities()[:LOOKED_AT])
            steps.append(len(loader) * (epoch + 1))
            rows.append([*found.ideal.values(), found.stale["gradient"]])
    lines = [[f"{step}", *(f"{share:.3f}" for share in row)] for step, row in zip(steps, rows)]
    print(table(["steps", "ideal, ‖g‖", "ideal, ‖F̃⁻¹g‖", "ideal, √gᵀF̃⁻¹g", "stale, ‖g‖"], lines))
    order = found.norms["natural"].argsort(descending=True)
    draw(steps, rows, x[order[:16]], x[order[-16:]], options.out)
