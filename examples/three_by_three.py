"""A machine so small that everything about it is known exactly: watch the KL divergence fall.

    python examples/three_by_three.py

The data are 3×3 images of one or two bars, vertical ones twice as likely as horizontal ones. Both p(x) of the machine
and the distribution of the data can be summed over all their states, so KL(data ‖ machine) is exact: no sampling, no
bound. It ends below 0.02 nats. The picture shows the curve, and what the machine dreams beside the data.
"""

import argparse
from pathlib import Path

import torch

from dagfisher import datasets
from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.plots import GUIDE, NATURAL, tile

EPOCHS = 30


def train(epochs: int, seed: int) -> tuple[HelmholtzMachine, list[float]]:
    """The machine after so many epochs of NRWS, and its KL after each."""
    data = datasets.load("three-by-three")
    truth = data.distribution
    assert truth is not None
    machine = HelmholtzMachine([9, 12, 6])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    curve: list[float] = []

    def look(epoch: int, train: float) -> None:
        curve.append(float(truth.kl_from(machine.exact_log_likelihood(truth.support))))
        print(f"epoch {epoch:2}  KL(data ‖ machine) {curve[-1]:.4f} nats", flush=True)

    Trainer(machine, "nrws", seed=seed).fit(data, epochs, on_epoch=look)
    return machine, curve


def draw(machine: HelmholtzMachine, curve: list[float], out: Path) -> None:
    """The curve, the data, and as many dreams."""
    from matplotlib.figure import Figure

    data = datasets.load("three-by-three")
    dreams = machine.sample(36, generator=torch.Generator().manual_seed(0))
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    left.semilogy(range(1, len(curve) + 1), curve, color=NATURAL, linewidth=2)
    left.axhline(0.02, color=GUIDE, linestyle="--", linewidth=1.2)
    left.text(len(curve), 0.0213, "0.02 nats", color=GUIDE, ha="right", va="bottom")
    left.set(xlabel="epochs", ylabel="exact KL(data ‖ machine), nats", title="NRWS, layers 9-12-6")
    left.spines[["top", "right"]].set_visible(False)
    shuffled = data.train[torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:36]]
    for axes, title, images in ((middle, "data", shuffled), (right, "dreams", dreams)):
        axes.imshow(tile(images, data.shape), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/three_by_three.png"), help="the picture to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two epochs only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    draw(*train(2 if options.quick else EPOCHS, options.seed), options.out)
