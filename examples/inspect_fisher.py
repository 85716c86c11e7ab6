"""What the Fisher matrix of a Helmholtz machine looks like: zeros, eigenvalues, ageing, and what steps do.

    python examples/inspect_fisher.py                     # pictures in runs/inspect; two minutes
    python examples/inspect_fisher.py --quick --out my    # a machine that has hardly learned

A machine learns miniMNIST by NRWS while its steps are followed. Then its Fisher blocks are looked at. The whole Fisher
matrix, with all its zeros, is of a machine that is small enough to sum over all states of its units.
"""

import argparse
from itertools import chain, repeat
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import datasets, inspect
from dagfisher.helmholtz import HelmholtzMachine, Trainer

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/inspect"), help="the folder of the pictures")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures = {}

    tiny = HelmholtzMachine([6, 4, 3], states=(0, 1))
    with torch.no_grad():
        for p in tiny.parameters():
            p.normal_()
    whole = inspect.structure(tiny)
    figures["structure"] = whole.figure()
    print(f"{len(whole.fisher)} parameters; largest entry outside the blocks {whole.outside:.1e} of the largest inside")

    data = datasets.load("mini-mnist")
    machine = HelmholtzMachine([196, 40, 20, 10] if options.quick else [196, 100, 50, 20, 10])
    trainer = Trainer(machine, "nrws", seed=0, schedules={})
    follower = inspect.follow(trainer.optimizer)
    minibatches = chain.from_iterable(data.batches(200, seed=0, epoch=epoch) for epoch in range(1000))
    for x, _ in zip(minibatches, repeat(None, 20 if options.quick else 600)):
        trainer.step(x)
    follower.close()
    figures["trace"] = follower.trace().figure()

    spectrum = inspect.spectrum(trainer.optimizer)
    figures["spectrum"] = spectrum.figure()
    total = sum(layer.parameters for layer in spectrum.layers)
    print(f"effective number of parameters: {spectrum.effective:,.0f} of {total:,}")

    images = data.evaluation("test")[:500]
    saturation = inspect.saturation(machine, lambda: machine.reconstruct(images, depth=len(machine.recognition)))
    figures["saturation"] = saturation.figure()

    def closure():
        trainer.backward(next(minibatches))

    staleness = inspect.staleness(trainer.optimizer, closure, ages=(0, 1, 2, 5) if options.quick else inspect.AGES)
    figures["staleness"] = staleness.figure()
    print("angle between reused and fresh natural gradient, by the steps since the refresh:")
    for age, angle in zip(staleness.ages, staleness.whole):
        print(f"  {age:3d}: {angle:.0f}°")

    trainer.optimizer.zero_grad()
    closure()
    cosines = inspect.cosines(trainer.optimizer)
    figures["cosines"] = cosines.figure()
    print(f"cosine of natural and plain gradient: {cosines.whole:.2f}")

    top, bottom = images[:, :98], images[:, 98:]
    half = dagfisher.declare(nn.Linear(98, 98), "bernoulli")  # the lower half of a digit, given the upper
    opt = dagfisher.DAGNaturalGradient(half.parameters())
    for _ in range(20):
        opt.zero_grad()
        with opt.example_norms() as examples:
            binary_cross_entropy_with_logits(half(top), bottom, reduction="none").sum(1).mean().backward()
        opt.step()
    found = inspect.examples(examples)
    figures["examples"] = found.figure()
    print(f"of the examples, {found.ideal['natural']:.0%} would do")

    options.out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(options.out / f"{name}.png", dpi=110)
    print(options.out)
