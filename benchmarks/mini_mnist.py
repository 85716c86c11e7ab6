"""How fast each algorithm learns miniMNIST, against epochs and against seconds, each at its own best learning rate.

    python benchmarks/mini_mnist.py            # tunes, then compares; an hour on two cores, resumes where it stopped
    python benchmarks/mini_mnist.py --plot     # only the table and the picture, from the results so far

Network 196-100-50-20-10-10, B = 32, S = 10, damping 0.2, K = 100, miniMNIST B: the same batches and samples for all,
which are not those that natural algorithms come with (`equal_seconds.py` has these). Every contender's learning rate is
the best of a grid of four after three epochs at a constant rate, judged on 1,000 validation images with 1,000 samples;
the final comparison has three seeds, judged on the first 1,000 test images with 1,000 samples; for every contender the
learning rate stays at its best value for half of the epochs and then falls linearly to zero. Since that fall belongs to
the epochs, NRWS also runs for as many epochs as fit into the seconds that RWS took for all of its own. Runs go in
pairs, one thread each; seconds are of training alone, and of the processor, so that other work on the machine counts
little.
Results: benchmarks/results/mini_mnist.json and .png.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from clipped import below
from extras import need

from dagfisher import datasets
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer, estimate
from dagfisher.plots import line_styles

RESULTS = Path(__file__).parent / "results"
LAYERS = [100, 50, 20, 10, 10]
BATCH, SAMPLES = 32, 10
NATURAL = {"damping": 0.2, "update_every": 100}
SETTINGS = {"layers": LAYERS, "batch": BATCH, "samples": SAMPLES, "data": "mini-mnist B", "natural": NATURAL}
PLAIN_GRID, NATURAL_GRID = (0.05, 0.1, 0.2, 0.4), (0.02, 0.05, 0.1, 0.2)
CONTENDERS: dict[str, dict[str, Any]] = {
    "WS": {"algorithm": "ws", "grid": (0.01, 0.02, 0.05, 0.1)},
    "RWS": {"algorithm": "rws", "grid": PLAIN_GRID},
    "RWS, Adam": {"algorithm": "rws", "grid": (1e-3, 3e-3, 1e-2, 3e-2), "adam": True},
    "BiHM": {"algorithm": "bihm", "grid": PLAIN_GRID},
    "DNRWS": {"algorithm": "dnrws", "grid": NATURAL_GRID, "settings": NATURAL},
    "NBiHM": {"algorithm": "nbihm", "grid": NATURAL_GRID, "settings": NATURAL},
    "NRWS": {"algorithm": "nrws", "grid": NATURAL_GRID, "settings": NATURAL},
}


def run(name: str, lr: float, seed: int, epochs: int, split: str) -> dict[str, Any]:
    """One training; a row per epoch with seconds of training and the log-likelihood of the split."""
    torch.set_num_threads(1)
    contender = CONTENDERS[name]
    data = datasets.load("mini-mnist")
    generator = torch.Generator().manual_seed(seed)
    machine = HelmholtzMachine([data.pixels, *LAYERS])
    machine.reset_parameters(bihm="bihm" in contender["algorithm"], generator=generator)
    settings: dict[str, Any] = {"samples": SAMPLES, "seed": seed, **contender.get("settings", {})}
    settings["schedules"] = {"lr": Schedule("linear:0:0.5")} if split == "test" else {}
    if contender.get("adam"):
        settings["optimizer"] = lambda groups: torch.optim.Adam(groups, lr=lr)
    else:
        settings["lr"] = lr
    trainer = Trainer(machine, contender["algorithm"], **settings)
    x = data.evaluation(split)[:1000]
    rows: list[dict[str, float]] = []
    seconds, start = 0.0, time.process_time()

    def on_epoch(epoch: int, train: float) -> None:
        nonlocal seconds, start
        seconds += time.process_time() - start
        found = estimate(machine, x, 1000, generator=torch.Generator().manual_seed(epoch))
        rows.append({"epoch": epoch, "seconds": seconds, "train": train, "log_p": found.mean})
        start = time.process_time()

    trainer.fit(data, epochs, batch_size=BATCH, on_epoch=on_epoch)
    return {"name": name, "lr": lr, "seed": seed, "split": split, "epochs": epochs, "rows": rows}


class Results:
    """Finished runs, in a JSON file that grows by one run at a time."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []

    def missing(self, wanted: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Those of the wanted (name, lr, seed, epochs, split) that are not there yet."""
        done = {(r["name"], r["lr"], r["seed"], r["epochs"], r["split"]) for r in self.runs}
        return [w for w in wanted if w not in done]

    def add(self, finished: dict[str, Any]) -> None:
        """Keep one more run."""
        self.runs.append(finished)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"settings": self.settings, "runs": self.runs}, indent=None)
        self.path.write_text(text.replace('{"name"', '\n{"name"') + "\n")

    def execute(self, wanted: list[tuple[Any, ...]], workers: int, run: Callable[..., dict[str, Any]] = run) -> None:
        """Run what is missing, some at a time."""
        missing = self.missing(wanted)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            for i, future in enumerate(as_completed([pool.submit(run, *w) for w in missing])):
                finished = future.result()
                self.add(finished)
                last = finished["rows"][-1]
                print(
                    f"[{i + 1}/{len(missing)}] {finished['name']:10s} lr {finished['lr']!s:<8} seed {finished['seed']} "
                    f"{last['epoch']} epochs {last['seconds']:.0f} s  {finished['split']} {last['log_p']:.3f}",
                    flush=True,
                )

    def best_rate(self, name: str) -> float:
        """The learning rate of the grid with the best validation log-likelihood."""
        tuned = [r for r in self.runs if r["name"] == name and r["split"] == "valid"]
        return float(max(tuned, key=lambda r: r["rows"][-1]["log_p"])["lr"])

    def final(self, name: str, epochs: int = 20) -> list[dict[str, Any]]:
        """The final runs of a contender."""
        return [r for r in self.runs if r["name"] == name and r["split"] == "test" and r["epochs"] == epochs]

    def shorter(self) -> int:
        """The epochs of NRWS that take no longer than all epochs of RWS."""
        seconds = {n: statistics.median(r["rows"][-1]["seconds"] for r in self.final(n)) for n in ("RWS", "NRWS")}
        return int(20 * seconds["RWS"] / seconds["NRWS"])


def table(results: Results) -> str:
    """The final comparison as text: at equal epochs, and at the seconds that the slowest plain one took."""
    names = [n for n in CONTENDERS if results.final(n)]
    budget = min(statistics.median(r["rows"][-1]["seconds"] for r in results.final(n)) for n in names)
    lines = [f"{'':12s}{'lr':>7s}{'epoch 5':>10s}{'epoch 10':>10s}{'epoch 20':>17s}{f'after {budget:.0f} s':>14s}"]
    lines[0] += f"{'s/epoch':>9s}"
    for name in names:
        runs = results.final(name)

        def at(epoch: int, runs: list[dict[str, Any]] = runs) -> list[float]:
            return [r["rows"][min(epoch, len(r["rows"])) - 1]["log_p"] for r in runs]

        timed = [
            max((row["seconds"], row["log_p"]) for row in r["rows"] if row["seconds"] <= budget * 1.02)[1] for r in runs
        ]
        spread = statistics.stdev(at(20)) if len(runs) > 1 else float("nan")
        pace = statistics.median(r["rows"][-1]["seconds"] / len(r["rows"]) for r in runs)
        mean = statistics.fmean
        lines.append(
            f"{name:12s}{runs[0]['lr']:7g}{mean(at(5)):10.2f}{mean(at(10)):10.2f}{mean(at(20)):10.2f} ± {spread:.2f}"
            f"{mean(timed):14.2f}{pace:9.1f}"
        )
    return "\n".join(lines)


def plot(results: Results, path: Path) -> None:
    """Log-likelihood against epochs and against seconds, the mean over seeds with their range."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = dict(zip(CONTENDERS, line_styles(list(CONTENDERS)), strict=True))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
    for name in CONTENDERS:
        runs = results.final(name)
        if not runs:
            continue
        series = torch.tensor([[row["log_p"] for row in r["rows"]] for r in runs])
        seconds = torch.tensor([[row["seconds"] for row in r["rows"]] for r in runs]).mean(0)
        for axis, across in ((axes[0], torch.arange(1, series.shape[1] + 1)), (axes[1], seconds)):
            axis.plot(across.tolist(), series.mean(0).tolist(), label=name, **styles[name])
            low, high = series.min(0).values.tolist(), series.max(0).values.tolist()
            axis.fill_between(across.tolist(), low, high, color=styles[name]["color"], alpha=0.15, linewidth=0)
    axes[0].set(ylabel="test log-likelihood (nats)", ylim=(-33, None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False)
    for axis, words in zip(axes, ("epochs", "processor seconds of training (one thread)"), strict=True):
        axis.set_xlabel("\n".join(filter(None, [words, below(axis)])))
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("miniMNIST B, 196-100-50-20-10-10: each algorithm at its tuned learning rate; range over seeds")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="draw and print what is there, run nothing")
    parser.add_argument("--tune-epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="contenders, separated by semicolons")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "mini_mnist.json")
    arguments = parser.parse_args()
    need(["matplotlib"])
    results = Results(arguments.out, SETTINGS)
    if not arguments.plot:
        names = [n.strip() for n in arguments.only.split(";")] if arguments.only else list(CONTENDERS)
        tuning = [(n, lr, 0, arguments.tune_epochs, "valid") for n in names for lr in CONTENDERS[n]["grid"]]
        results.execute(tuning, arguments.workers)
        best = {n: results.best_rate(n) for n in names}
        print("best learning rates:", best, flush=True)
        seeds = range(1, arguments.seeds + 1)
        results.execute([(n, best[n], s, arguments.epochs, "test") for s in seeds for n in names], arguments.workers)
        if results.final("RWS") and results.final("NRWS"):
            fewer = results.shorter()
            results.execute([("NRWS", best["NRWS"], s, fewer, "test") for s in seeds], arguments.workers)
    print(table(results))
    if results.final("RWS") and results.final("NRWS"):
        runs = results.final("NRWS", results.shorter())
        for r in runs:
            last = r["rows"][-1]
            print(f"NRWS, seed {r['seed']}, {last['epoch']} epochs in {last['seconds']:.0f} s: {last['log_p']:.2f}")
    plot(results, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
