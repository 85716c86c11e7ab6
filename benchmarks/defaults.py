"""Does one setting do on every dataset? NRWS with adaptive damping as it comes, against what is tuned for each.

    python benchmarks/defaults.py            # tunes, then compares; an hour on two cores, resumes where it stopped
    python benchmarks/defaults.py --table    # only the table, from the results so far

Each dataset has its own network; B = 32, S = 10, K = 100, and the learning rate stays for half of the epochs and then
falls linearly to zero. The default is that of `Trainer(machine, "nrws")`. Tuned is the best of
the grid of learning rates and fixed dampings after three epochs, judged on 1,000 validation images with 1,000 samples;
both then have ten epochs, one seed, judged on 1,000 test images with 1,000 samples.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from mini_mnist import RESULTS, Results

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer, estimate

NETWORKS = {
    "three-by-three": [12, 6],
    "mini-mnist": [100, 50, 20, 10, 10],
    "mnist": [100, 50],
    "fashion-mnist": [100, 50],
}
GRID = [(0.05, 0.2), (0.1, 0.1), (0.1, 0.2), (0.2, 0.2), (0.2, 0.5)]
"""Learning rates and dampings."""


def run(name: str, setting: Any, seed: int, epochs: int, split: str) -> dict[str, Any]:
    """One training; `setting` is "default", or the learning rate and the damping."""
    torch.set_num_threads(1)
    data = datasets.load(name)
    machine = HelmholtzMachine([data.pixels, *NETWORKS[name]])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    chosen: dict[str, Any] = {}
    if setting != "default":
        lr, damping = map(float, setting.split(","))
        chosen = {"lr": lr, "damping": damping}
    trainer = Trainer(machine, "nrws", seed=seed, schedules={"lr": Schedule("linear:0:0.5")}, **chosen)
    start = time.process_time()
    trainer.fit(data, epochs)
    seconds = time.process_time() - start
    found = estimate(machine, data.evaluation(split)[:1000], 1000, generator=torch.Generator().manual_seed(0))
    dampings = [group["damping"] for group in trainer.optimizer.param_groups]
    row = {"epoch": epochs, "seconds": seconds, "log_p": found.mean, "dampings": dampings}
    return {"name": name, "lr": setting, "seed": seed, "split": split, "epochs": epochs, "rows": [row]}


def best(results: Results, name: str) -> str:
    """The setting of the grid with the best validation log-likelihood."""
    tuned = [r for r in results.runs if r["name"] == name and r["split"] == "valid"]
    return str(max(tuned, key=lambda r: r["rows"][-1]["log_p"])["lr"])


def show(results: Results) -> str:
    """Default and tuned, side by side."""
    lines = []
    for name in NETWORKS:
        runs = {r["lr"]: r["rows"][-1] for r in results.final(name, 10)}
        tuned = next((setting for setting in runs if setting != "default"), None)
        if tuned is not None and "default" in runs:
            default, other = runs["default"]["log_p"], runs[tuned]["log_p"]
            dampings = ", ".join(f"{d:.2g}" for d in runs["default"]["dampings"])
            lines.append([name, f"{default:.2f}", dampings, f"{other:.2f}", tuned, f"{default - other:+.2f}"])
    return table(["", "default", "its dampings of p, q", "tuned", "lr, damping", "ahead by"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "defaults.json")
    arguments = parser.parse_args()
    results = Results(arguments.out, {"batch": 32, "samples": 10, "update_every": 100})
    if not arguments.table:
        results.execute([(n, f"{a:g},{b:g}", 0, 3, "valid") for n in NETWORKS for a, b in GRID], arguments.workers, run)
        settings = [(n, s) for n in NETWORKS for s in ("default", best(results, n))]
        results.execute([(n, s, 1, 10, "test") for n, s in settings], arguments.workers, run)
    print(show(results))


if __name__ == "__main__":
    main()
