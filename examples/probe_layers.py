"""What the layers of a Helmholtz machine know of the classes, which it was never told: linear probes.

    python examples/probe_layers.py                        # a table, and runs/probe_layers.png; two minutes
    python examples/probe_layers.py --quick --out my.png   # a machine that has hardly learned

A machine learns the images of miniMNIST by NRWS, without labels. Then a softmax regression is fitted to the means of
each layer, by coupled natural steps, and to those of a machine of the same shape that never learned.
"""

import argparse
from pathlib import Path

import torch

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.probes import draw_probes, probe_layers

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/probe_layers.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = datasets.load("mini-mnist")
    machine = HelmholtzMachine([196, 100, 50, 20, 10, 10])
    machine.reset_parameters(generator=torch.Generator().manual_seed(0))
    trainer = Trainer(machine, "nrws", seed=0)
    if options.quick:
        for x in data.evaluation("train")[:2000].split(100):
            trainer.step(x)
    else:
        trainer.fit(data, 5)
    rows = probe_layers(machine, data, examples=500 if options.quick else 10_000)
    shown = [(row.train_error, row.test_error, row.untrained_error) for row in rows]
    lines = [
        [f"{row.layer}", f"{row.units}", *(f"{100 * e:.1f} %" for e in errors)] for row, errors in zip(rows, shown)
    ]
    print(table(["layer", "units", "training error", "test error", "test error, untrained"], lines))
    draw_probes(rows, options.out, title="Linear probes of a machine that learned without labels")
    print(options.out)
