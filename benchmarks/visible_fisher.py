"""An experiment: NRWS with the Fisher of the visible distribution p(x) in place of that of the joint p(x, h).

    python benchmarks/visible_fisher.py             # ten minutes of one core; resumes
    python benchmarks/visible_fisher.py --table     # only the table, from the results so far

miniMNIST B, machine 196-50-20, 300 steps of 100 examples and 10 samples each. q learns as in NRWS in every run. p takes
steps along its gradient times the inverse of one of three Fishers, each with the rates and dampings of the same grid:
the joint one (the library's, refreshed at every step), that of p(x) from 100 dreams, and the empirical one, from the
examples of the minibatch themselves. Test log-likelihood of 1,000 images with 200 samples, one seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.helmholtz.visible import ascend, visible_natural_gradient, visible_scores

RESULTS = Path(__file__).parent / "results" / "visible_fisher.jsonl"
STEPS, BATCH, SAMPLES = 300, 100, 10
FISHERS = ("joint", "visible", "empirical")
RATES, DAMPINGS = (0.03, 0.1, 0.3), (0.03, 0.1, 0.3)


def run(fisher: str, lr: float, damping: float) -> dict[str, Any]:
    """Train, and evaluate at the end."""
    data, generator = datasets.load("mini-mnist"), torch.Generator().manual_seed(0)
    machine = HelmholtzMachine([196, 50, 20])
    machine.reset_parameters(generator=generator)
    trainer = Trainer(machine, "nrws", lr=0.1, damping=0.1, samples=SAMPLES, update_every=10, seed=0)
    generative, _ = trainer.optimizer.param_groups
    generative.update(lr=lr if fisher == "joint" else 0.0, damping=damping, update_every=1)
    began = time.process_time()
    for _, x in zip(range(STEPS), data.batches(BATCH, seed=0, epoch=0), strict=False):
        if fisher != "joint":
            scores = visible_scores(machine, x, SAMPLES, generator)
            gradients = [score.mean(0) for score in scores]
            if fisher == "visible":
                scores = visible_scores(machine, machine.sample(BATCH, generator=generator), SAMPLES, generator)
            vectors = visible_natural_gradient(gradients, scores, damping)
        trainer.step(x)
        if fisher != "joint":
            ascend(machine, vectors, lr)
    seconds = time.process_time() - began
    found = estimate(machine, data.evaluation("test")[:1000], 200, generator=generator)
    return {"fisher": fisher, "lr": lr, "damping": damping, "log_p": round(found.mean, 3), "seconds": round(seconds, 1)}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show(records: list[dict[str, Any]]) -> str:
    """The best setting of each Fisher, and how many of its settings ended above −45 nats."""
    lines = []
    for fisher in FISHERS:
        runs = [r for r in records if r["fisher"] == fisher]
        if runs:
            best = max(runs, key=lambda r: r["log_p"] if r["log_p"] == r["log_p"] else float("-inf"))
            good = f"{sum(r['log_p'] > -45 for r in runs)} of {len(runs)}"
            lines.append(
                [
                    fisher,
                    f"{best['lr']:g}",
                    f"{best['damping']:g}",
                    f"{best['log_p']:.2f}",
                    f"{best['seconds']:.0f}",
                    good,
                ]
            )
    return table(["Fisher of p", "best rate", "damping", "log-likelihood", "seconds", "settings above −45"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = {(r["fisher"], r["lr"], r["damping"]) for r in read(arguments.out)}
    for wanted in itertools.product(FISHERS, RATES, DAMPINGS) if not arguments.table else ():
        if wanted not in done:
            record = run(*wanted)
            with arguments.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(record, flush=True)
    print(show(read(arguments.out)))


if __name__ == "__main__":
    main()
