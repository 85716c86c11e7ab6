"""What each ingredient is worth: NRWS on miniMNIST with one thing changed at a time.

    python benchmarks/ablation.py            # tunes, then compares; hours on two cores, resumes where it stopped
    python benchmarks/ablation.py --table    # only the table, from the results so far

Network 196-100-50-20-10-10, B = 32, S = 10, damping 0.2, K = 100, learning rate 0.1 unless said otherwise, constant for
half of the epochs and then falling linearly to zero. The strength of an ingredient is the best of its grid after three
epochs at a constant rate, judged on 1,000 validation images with 1,000 samples, one seed; the comparison has 3 seeds
and 20 epochs, judged on the first 1,000 test images with 1,000 samples. Seconds are those of 20 epochs on one
thread, from the median step of all variants taking turns in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from mini_mnist import BATCH, LAYERS, NATURAL, RESULTS, SAMPLES, SETTINGS, Results

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import L1, L2, Entropy, HelmholtzMachine, Schedule, Trainer, estimate

ALONE: dict[str, Any] = {"momentum": 0.0, "trust_region": None, "tolerance": 0.02}
"""What a damping that is found brings along, taken away again."""
VARIANTS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "none": ({}, (0.1,)),
    "momentum 0.9": ({"momentum": 0.9}, (0.005, 0.01, 0.02)),
    "Nesterov 0.95": ({"momentum": 0.95, "nesterov": True}, (0.0025, 0.005, 0.01)),
    "Adam": ({"betas": (0.9, 0.999)}, (0.003, 0.01, 0.03)),
    "L1": ({"lr": 0.1}, (1e-6, 1e-5, 1e-4)),
    "L2": ({"lr": 0.1}, (1e-5, 1e-4, 1e-3)),
    "entropy": ({"lr": 0.1}, (1e-4, 1e-3, 1e-2)),
    "rescaled-sleep 3": ({"sleep_scale": 3.0}, (0.05, 0.1)),
    "sleep-well 3": ({"sleep_steps": 3}, (0.05, 0.1)),
    "moving Fisher 4": ({"window": 4}, (0.1,)),
    "trust region": ({"lr": 0.1}, (1e-2, 1e-1, 1.0)),
    "found damping": ({**ALONE, "damping": "auto"}, (0.1, 0.2)),
    "best combination": (
        {**ALONE, "damping": "auto", "momentum": 0.95, "nesterov": True, "sleep_scale": 3.0},
        (0.005, 0.01),
    ),
}
"""Settings, and the grid of what is tuned: the learning rate, or, where that is given, the ingredient's strength."""
STEPS = 50_000 // BATCH + 1
"""Of one epoch."""


def trainer_of(name: str, value: float, machine: HelmholtzMachine, seed: int, falling: bool) -> Trainer:
    """The trainer of a variant with the tuned number filled in."""
    settings = dict(VARIANTS[name][0])
    regularisers = {"L1": [L1(value)], "L2": [L2(value)], "entropy": [Entropy(value)]}.get(name, [])
    if name == "trust region":
        settings["trust_region"] = value
    settings.setdefault("lr", value)
    schedules = {"lr": Schedule("linear:0:0.5")} if falling else {}
    settings = {**NATURAL, "samples": SAMPLES, **settings}
    return Trainer(machine, "nrws", seed=seed, regularisers=regularisers, schedules=schedules, **settings)


def run(name: str, value: float, seed: int, epochs: int, split: str) -> dict[str, Any]:
    """One training; a row for every fifth epoch and the last."""
    torch.set_num_threads(1)
    data = datasets.load("mini-mnist")
    machine = HelmholtzMachine([data.pixels, *LAYERS])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    trainer = trainer_of(name, value, machine, seed, falling=split == "test")
    x = data.evaluation("test" if split == "test" else "valid")[:1000]
    rows: list[dict[str, float]] = []
    seconds, start = 0.0, time.process_time()

    def on_epoch(epoch: int, train: float) -> None:
        nonlocal seconds, start
        seconds += time.process_time() - start
        if epoch % 5 == 0 or epoch == epochs:
            found = estimate(machine, x, 1000, generator=torch.Generator().manual_seed(epoch))
            rows.append({"epoch": epoch, "seconds": seconds, "train": train, "log_p": found.mean})
        start = time.process_time()

    trainer.fit(data, epochs, batch_size=BATCH, on_epoch=on_epoch)
    return {"name": name, "lr": value, "seed": seed, "split": split, "epochs": epochs, "rows": rows}


def costs(tuned: dict[str, float], rounds: int = 6, steps: int = 100) -> list[dict[str, Any]]:
    """Milliseconds of a step of every variant, which take turns: the median of rounds that hold one refresh each."""
    torch.set_num_threads(1)
    data = datasets.load("mini-mnist")
    batches = [x for _, x in zip(range(steps), data.batches(BATCH, seed=0, epoch=0), strict=False)]
    trainers = {n: trainer_of(n, v, HelmholtzMachine([data.pixels, *LAYERS]), 0, False) for n, v in tuned.items()}
    taken: dict[str, list[float]] = {name: [] for name in tuned}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            start = time.process_time()
            for x in batches:
                trainer.step(x)
            taken[name].append(1000 * (time.process_time() - start) / steps)
    found = {name: statistics.median(times[1:]) for name, times in taken.items()}
    return [
        {"name": n, "lr": tuned[n], "seed": 0, "split": "cost", "epochs": 0, "rows": [{"milliseconds": ms}]}
        for n, ms in found.items()
    ]


def show(results: Results) -> str:
    """The final runs as a table."""
    lines = []
    for name in VARIANTS:
        runs = results.final(name)
        if runs:
            last = [r["rows"][-1]["log_p"] for r in runs]
            half = statistics.fmean(row["log_p"] for r in runs for row in r["rows"] if row["epoch"] == 10)
            spread = f" ± {statistics.stdev(last):.2f}" if len(last) > 1 else ""
            cost = [r["rows"][0]["milliseconds"] for r in results.runs if r["name"] == name and r["split"] == "cost"]
            seconds = f"{cost[-1] * STEPS * 20 / 1000:.0f}" if cost else ""
            figure = f"{statistics.fmean(last):.2f}{spread}"
            lines.append([name, f"{runs[0]['lr']:g}", f"{len(last)}", f"{half:.2f}", figure, seconds])
    return table(["ingredient", "tuned", "seeds", "after 10 epochs", "after 20 epochs", "seconds"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "ablation.json")
    arguments = parser.parse_args()
    results = Results(arguments.out, SETTINGS)
    if not arguments.table:
        tuning = [(name, value, 0, 3, "valid") for name, (_, grid) in VARIANTS.items() for value in grid]
        results.execute(tuning, arguments.workers, run)
        best = {name: results.best_rate(name) for name in VARIANTS}
        seeds = range(1, arguments.seeds + 1)
        wanted = [(name, best[name], seed, arguments.epochs, "test") for seed in seeds for name in VARIANTS]
        results.execute(wanted, arguments.workers, run)
        if not any(r["split"] == "cost" for r in results.runs):
            for timed in costs(best):
                results.add(timed)
    print(show(results))


if __name__ == "__main__":
    main()
