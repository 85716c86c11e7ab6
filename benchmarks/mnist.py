"""The twelve-layer machine on MNIST: RWS and NRWS after the same processor seconds.

    python benchmarks/mnist.py               # about half an hour of one core for each, both at a time; resumes
    python benchmarks/mnist.py --times 4     # four times as many epochs: two hours of one core for each

Network 784-300-200-100-75-50-35-30-25-20-15-10-10, MNIST B, B = 32, S = 10, one thread each; the learning rate stays
for half of the epochs and then falls linearly to zero. NRWS runs as it comes (learning rate 0.1, K = 100, adapted
damping); the learning rate of RWS is the best of 0.03, 0.1 and 0.2 after two epochs. RWS has more epochs, so that both
take about the same seconds. Rows are of 500 test images with 100 samples, the last figure is of 1,000 with 10,000.
Results: benchmarks/results/mnist.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from dagfisher import datasets
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer, estimate
from dagfisher.progress import table

LAYERS = [300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
CONTENDERS: dict[str, dict[str, Any]] = {"rws": {"epochs": 34, "lr": 0.03}, "nrws": {"epochs": 24, "lr": 0.1}}
RESULTS = Path(__file__).parent / "results"


def run(name: str, times: float, seed: int, folder: Path) -> dict[str, Any]:
    """Train one contender, from its checkpoint if there is one; a row per epoch, and the final figure."""
    torch.set_num_threads(1)
    data = datasets.load("mnist")
    machine = HelmholtzMachine([data.pixels, *LAYERS])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    settings = CONTENDERS[name]
    epochs = round(times * settings["epochs"])
    trainer = Trainer(machine, name, lr=settings["lr"], seed=seed, schedules={"lr": Schedule("linear:0:0.5")})
    rows: list[dict[str, float]] = []
    path = folder / f"{name}-{epochs}-{seed}.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        trainer.load_state_dict(saved["trainer"])
        rows = saved["rows"]
    seconds, start = rows[-1]["seconds"] if rows else 0.0, time.process_time()
    x = data.evaluation("test")

    def on_epoch(epoch: int, train: float) -> None:
        nonlocal seconds, start
        seconds += time.process_time() - start
        found = estimate(machine, x[:500], 100, generator=torch.Generator().manual_seed(epoch))
        rows.append({"epoch": epoch, "seconds": seconds, "train": train, "log_p": found.mean})
        print(f"{name} epoch {epoch} of {epochs}  {seconds:.0f} s  test {found.mean:.2f}", flush=True)
        torch.save({"trainer": trainer.state_dict(), "rows": rows}, path)
        start = time.process_time()

    trainer.fit(data, epochs, on_epoch=on_epoch)
    found = estimate(machine, x[:1000], 10_000, generator=torch.Generator().manual_seed(0))
    final = {"log_p": found.mean, "standard_error": found.standard_error, "images": 1000, "samples": 10_000}
    return {"name": name, "seed": seed, "epochs": epochs, **settings, "rows": rows, "final": final}


def show(runs: list[dict[str, Any]]) -> str:
    """The final figures."""
    lines = [
        [r["name"], f"{r['rows'][-1]['epoch']}", f"{r['rows'][-1]['seconds']:.0f}", f"{r['final']['log_p']:.2f}"]
        for r in runs
    ]
    return table(["algorithm", "epochs", "seconds", "test log-likelihood, mnist B"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=float, default=1.0, help="this many times the epochs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/mnist-benchmark"), help="for the checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS / "mnist.json")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run, n, arguments.times, arguments.seed, arguments.folder) for n in CONTENDERS]
        runs = [one.result() for one in waiting]
    arguments.out.write_text(json.dumps({"layers": LAYERS, "runs": runs}).replace('{"epoch"', '\n{"epoch"') + "\n")
    print(show(runs))


if __name__ == "__main__":
    main()
