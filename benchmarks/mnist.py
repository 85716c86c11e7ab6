"""The twelve-layer machine on MNIST: RWS and NRWS after the same processor seconds.

    python benchmarks/mnist.py               # tunes, then an hour of one core for each, both at a time; resumes
    python benchmarks/mnist.py --hours 2     # two hours of one core for each
    python benchmarks/mnist.py --table       # only the table, from the results so far

Network 784-300-200-100-75-50-35-30-25-20-15-10-10, MNIST B, B = 32, S = 10, one thread each; the learning rate stays
for half of the epochs and then falls linearly to zero. NRWS has K = 100 and adapted damping. The learning rate of each
is the best of a grid after two epochs, judged on 500 validation images with 300 samples. Each then has as many
epochs as fit into the hours, by the seconds that its epochs took during the tuning. Rows are of 500 test images with
100 samples, the last figure is of 1,000 with 10,000. Results: benchmarks/results/mnist.json.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mini_mnist import RESULTS, Results

from dagfisher import datasets
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer, estimate
from dagfisher.progress import table

LAYERS = [300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
GRID = (0.01, 0.03, 0.1)
ALGORITHMS = ("rws", "nrws")
TUNED = 2
"""Epochs of the tuning."""


def run(name: str, lr: float, seed: int, epochs: int, split: str, folder: Path) -> dict[str, Any]:
    """One training, from its checkpoint if there is one; a row per epoch, and for the test split a final figure."""
    torch.set_num_threads(1)
    data = datasets.load("mnist")
    machine = HelmholtzMachine([data.pixels, *LAYERS])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    trainer = Trainer(machine, name, lr=lr, seed=seed, schedules={"lr": Schedule("linear:0:0.5")})
    rows: list[dict[str, Any]] = []
    path = folder / f"{name}-{lr:g}-{epochs}-{seed}.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        trainer.load_state_dict(saved["trainer"])
        rows = saved["rows"]
    seconds, start = rows[-1]["seconds"] if rows else 0.0, time.process_time()
    x = data.evaluation(split)
    samples = 300 if split == "valid" else 100

    def on_epoch(epoch: int, train: float) -> None:
        nonlocal seconds, start
        seconds += time.process_time() - start
        found = estimate(machine, x[:500], samples, generator=torch.Generator().manual_seed(epoch))
        dampings = [group.get("damping") for group in trainer.optimizer.param_groups]
        rows.append({"epoch": epoch, "seconds": seconds, "train": train, "log_p": found.mean, "dampings": dampings})
        print(f"{name} {lr:g} epoch {epoch} of {epochs}  {seconds:.0f} s  {split} {found.mean:.2f}", flush=True)
        torch.save({"trainer": trainer.state_dict(), "rows": rows}, path)
        start = time.process_time()

    trainer.fit(data, epochs, on_epoch=on_epoch)
    result = {"name": name, "lr": lr, "seed": seed, "split": split, "epochs": epochs, "rows": rows}
    if split == "test":
        found = estimate(machine, x[:1000], 10_000, generator=torch.Generator().manual_seed(0))
        result["final"] = {"log_p": found.mean, "standard_error": found.standard_error, "samples": 10_000}
    return result


def epochs_within(results: Results, name: str, hours: float) -> int:
    """As many epochs as fit into the hours, at the pace that the best learning rate had during the tuning."""
    best = (name, results.best_rate(name), "valid")
    tuned = next(r for r in results.runs if (r["name"], r["lr"], r["split"]) == best)
    return int(3600 * hours * TUNED / tuned["rows"][-1]["seconds"])


def show(results: Results) -> str:
    """The rates tried, and the final figures."""
    tuned = [
        [r["name"], f"{r['lr']:g}", f"{r['rows'][-1]['log_p']:.2f}"] for r in results.runs if r["split"] == "valid"
    ]
    final = []
    for r in results.runs:
        if r["split"] == "test":
            figure = f"{r['final']['log_p']:.2f} ± {r['final']['standard_error']:.2f}"
            final.append([r["name"], f"{r['lr']:g}", f"{r['epochs']}", f"{r['rows'][-1]['seconds']:.0f}", figure])
    first = table(["algorithm", "learning rate", f"after {TUNED} epochs, validation"], tuned)
    return f"{first}\n\n{table(['algorithm', 'learning rate', 'epochs', 'seconds', 'test, 10,000 samples'], final)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--hours", type=float, default=1.0, help="of one core, for each algorithm")
    parser.add_argument("--folder", type=Path, default=Path("runs/mnist-benchmark"), help="for the checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS / "mnist.json")
    arguments = parser.parse_args()
    results = Results(arguments.out, {"layers": LAYERS, "batch": 32, "samples": 10, "data": "mnist B"})
    if not arguments.table:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        train = partial(run, folder=arguments.folder)
        results.execute([(n, lr, 0, TUNED, "valid") for lr in GRID for n in ALGORITHMS], 2, train)
        epochs = {n: epochs_within(results, n, arguments.hours) for n in ALGORITHMS}
        print("epochs:", epochs, flush=True)
        results.execute([(n, results.best_rate(n), 1, epochs[n], "test") for n in ALGORITHMS], 2, train)
    print(show(results))


if __name__ == "__main__":
    main()
