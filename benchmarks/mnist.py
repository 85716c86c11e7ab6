"""The twelve-layer machine on MNIST: RWS and the best natural algorithm after the same processor seconds.

    python benchmarks/mnist.py               # tunes, then two hours of one core for each, both at a time; resumes
    python benchmarks/mnist.py --hours 0.5   # half an hour for each
    python benchmarks/mnist.py --table       # only the table and the picture, from the results so far

Network 784-300-200-100-75-50-35-30-25-20-15-10-10, MNIST B, one thread each; the learning rate stays for half of the
training and then falls linearly to zero. The natural contenders are NRWS as it comes (B = 100, S = 5, found damping),
but for its rate, and the same with rescaled sleep; RWS has B = 32, S = 10. The learning rate of each is the best of its
grid after two epochs, judged on 500 validation images with 300 samples; the natural contender that was best there is
trained. Each has as many epochs as fit into its seconds. Rows are of 500 test images with 100 samples, the last figure
is of 1,000 with 10,000. Results: benchmarks/results/mnist.json, mnist.png; what is there of "nrws" and "combination"
was measured with B = 32, S = 10, K = 100 and a damping that was adapted by another rule.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from extras import need
from mini_mnist import RESULTS, Results

from dagfisher import datasets
from dagfisher._files import replacing
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer, estimate
from dagfisher.plots import line_styles

LAYERS = [300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
CONTENDERS: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "rws": ("rws", {}, (0.01, 0.03, 0.1)),
    "natural": ("nrws", {}, (0.05, 0.1, 0.2)),
    "rescaled": ("nrws", {"sleep_scale": 3.0}, (0.05, 0.1, 0.2)),
}
"""Algorithm, settings and the grid of the learning rate."""
LABELS = {
    "rws": "RWS",
    "natural": "NRWS",
    "rescaled": "NRWS, rescaled-sleep",
    "nrws": "NRWS, adapted damping",
    "combination": "NRWS, Nesterov, rescaled-sleep, adapted damping",
}
TUNED = 2
"""Epochs of the tuning."""
FALLING = Schedule("linear:0:0.5")


def run(name: str, lr: float, seed: int, length: float, split: str, folder: Path) -> dict[str, Any]:
    """One training, of so many epochs to tune and of so many hours to test, from its checkpoint if there is one."""
    torch.set_num_threads(1)
    data = datasets.load("mnist")
    machine = HelmholtzMachine([data.pixels, *LAYERS])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    algorithm, settings, _ = CONTENDERS[name]
    tuning = split == "valid"
    schedules = {"lr": FALLING} if tuning else {}
    trainer = Trainer(machine, algorithm, lr=lr, seed=seed, schedules=schedules, **settings)
    rows: list[dict[str, Any]] = []
    path = folder / f"{name}-{lr:g}-{split}-{length:g}-{seed}.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        trainer.load_state_dict(saved["trainer"])
        rows = saved["rows"]
    seconds, start = rows[-1]["seconds"] if rows else 0.0, time.process_time()
    x = data.evaluation(split)

    def figure(epoch: int) -> float:
        return estimate(machine, x[:500], 300 if tuning else 100, generator=torch.Generator().manual_seed(epoch)).mean

    def on_epoch(epoch: int, train: float) -> None:
        nonlocal seconds, start
        seconds += time.process_time() - start
        rows.append({"epoch": epoch, "seconds": seconds, "train": train})
        if tuning or epoch % 5 == 0:
            rows[-1]["log_p"] = figure(epoch)
        print(f"{name} {lr:g} epoch {epoch}  {seconds:.0f} s  {split} {rows[-1].get('log_p', '')}", flush=True)
        with replacing(path) as file:
            torch.save({"trainer": trainer.state_dict(), "rows": rows}, file)
        start = time.process_time()

    if tuning:
        trainer.fit(data, int(length), on_epoch=on_epoch)
    limit = 3600 * length
    while not tuning and seconds * (1 + 1 / max(1, len(rows))) <= limit:
        for group in trainer.optimizer.param_groups:
            group["lr"] = lr * FALLING.factor(seconds, limit)
        trainer.fit(data, trainer.epoch + 1, on_epoch=on_epoch)
    result = {"name": name, "lr": lr, "seed": seed, "split": split, "epochs": trainer.epoch, "rows": rows}
    if not tuning:
        rows[-1]["log_p"] = figure(trainer.epoch)
        found = estimate(machine, x[:1000], 10_000, generator=torch.Generator().manual_seed(0))
        result["hours"] = length
        result["final"] = {"log_p": found.mean, "standard_error": found.standard_error, "samples": 10_000}
    return result


def best_natural(results: Results) -> str:
    """The natural contender with the best figure of the tuning."""
    tuned = [r for r in results.runs if r["split"] == "valid" and r["name"] in ("natural", "rescaled")]
    return str(max(tuned, key=lambda r: r["rows"][-1]["log_p"])["name"])


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


def plot(results: Results, path: Path) -> None:
    """Log-likelihood against seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
    runs = [r for r in results.runs if r["split"] == "test"]
    for r, style in zip(runs, line_styles([LABELS[r["name"]] for r in runs]), strict=True):
        rows = [row for row in r["rows"] if "log_p" in row]
        final = f"{r['final']['log_p']:.1f}".replace("-", "−")
        label = f"{LABELS[r['name']]}: {r['epochs']} epochs, finally {final}"
        axis.plot([row["seconds"] / 60 for row in rows], [row["log_p"] for row in rows], label=label, **style)
    axis.set(xlabel="processor minutes of training (one thread)", ylabel="test log-likelihood (nats)")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("MNIST B, twelve layers; 100 samples, finally 10,000", fontsize=11)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print and draw what is there, run nothing")
    parser.add_argument("--hours", type=float, default=2.0, help="of one core, for each algorithm")
    parser.add_argument("--folder", type=Path, default=Path("runs/mnist-benchmark"), help="for the checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS / "mnist.json")
    arguments = parser.parse_args()
    need(["matplotlib"])
    results = Results(arguments.out, {"layers": LAYERS, "data": "mnist B"})
    if not arguments.table:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        train = partial(run, folder=arguments.folder)
        results.execute([(n, lr, 0, TUNED, "valid") for n in CONTENDERS for lr in CONTENDERS[n][2]], 2, train)
        finished = [r["name"] for r in results.runs if r.get("hours") == arguments.hours]
        missing = [n for n in ("rws", best_natural(results)) if n not in finished]
        results.execute([(n, results.best_rate(n), 1, arguments.hours, "test") for n in missing], 2, train)
    print(show(results))
    plot(results, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
