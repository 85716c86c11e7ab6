"""What lateral connections inside the layers are worth: NRWS as it comes, on miniMNIST, with and without them.

    python benchmarks/lateral.py            # 15 minutes of one core, resumes where it stopped
    python benchmarks/lateral.py --table    # only the table, from the results so far

All machines have the layers 196-100-50-20-10-10, but for the wider one, which has as many parameters as the machine
with generative lateral connections. Everything is the default of `Trainer(machine, "nrws")`, three epochs, and for the
plain machine once more as many as take the seconds of the one with generative lateral connections. Parameters under a
mask do not count. Judged on the first 1,000 test images with 1,000 samples, one seed; seconds are of training alone,
and of the processor.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from mini_mnist import LAYERS, RESULTS, Results

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.nn import MaskedLinear

EPOCHS, LONGER = 3, 8
WIDER = [141, 66, 20, 10, 10]
CONTENDERS: dict[str, dict[str, Any]] = {
    "plain": {"layers": LAYERS},
    "plain, wider": {"layers": WIDER},
    "recognition": {"layers": LAYERS, "lateral": "recognition"},
    "generative": {"layers": LAYERS, "lateral": "generative"},
    "both": {"layers": LAYERS, "lateral": "both"},
}


def machine_of(name: str) -> HelmholtzMachine:
    """The untrained machine of a contender."""
    contender = CONTENDERS[name]
    return HelmholtzMachine([196, *contender["layers"]], lateral=contender.get("lateral"))


def parameters(machine: HelmholtzMachine) -> int:
    """How many numbers are trained."""
    under_masks = sum(int((~m.mask).sum()) for m in machine.modules() if isinstance(m, MaskedLinear))
    return sum(p.numel() for p in machine.parameters()) - under_masks


def run(name: str, lr: str, seed: int, epochs: int, split: str) -> dict[str, Any]:
    """One training; a row per epoch with seconds of training and the log-likelihood of the split."""
    torch.set_num_threads(1)
    data, machine = datasets.load("mini-mnist"), machine_of(name)
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    trainer = Trainer(machine, "nrws", seed=seed)
    rows: list[dict[str, Any]] = []
    spent, began = 0.0, time.process_time()

    def evaluate(epoch: int, train: float) -> None:
        nonlocal spent, began
        spent += time.process_time() - began
        found = estimate(machine, data.evaluation(split)[:1000], 1000, generator=torch.Generator().manual_seed(0))
        row = {"epoch": epoch, "seconds": round(spent, 1), "log_p": found.mean, "error": found.standard_error}
        rows.append({**row, "effective": float(found.effective_samples.mean()), "train": train})
        began = time.process_time()

    trainer.fit(data, epochs, on_epoch=evaluate)
    found = {"name": name, "lr": lr, "seed": seed, "split": split, "epochs": epochs}
    return {**found, "parameters": parameters(machine), "rows": rows}


def show(results: Results) -> str:
    """A line for each machine: its test log-likelihood, effective samples of that estimate, seconds of training."""
    lines = []
    for name, contender in CONTENDERS.items():
        for each in [*results.final(name, EPOCHS), *results.final(name, LONGER)]:
            last, layers = each["rows"][-1], "-".join(map(str, contender["layers"]))
            figures = [f"{last['log_p']:.2f}", f"{last['effective']:.0f}", f"{last['seconds']:.0f}"]
            lines.append([name, layers, f"{each['parameters']:,}", str(each["epochs"]), *figures])
    heads = ["lateral", "hidden units", "parameters", "epochs", "log-likelihood", "effective samples", "seconds"]
    return table(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "lateral.json")
    arguments = parser.parse_args()
    results = Results(arguments.out, {"batch": 100, "samples": 5, "epochs": EPOCHS, "data": "mini-mnist B"})
    if not arguments.table:
        wanted = [*((name, EPOCHS) for name in CONTENDERS), ("plain", LONGER)]
        results.execute([(name, "default", 0, epochs, "test") for name, epochs in wanted], arguments.workers, run)
    print(show(results))


if __name__ == "__main__":
    main()
