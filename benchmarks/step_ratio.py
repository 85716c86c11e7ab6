"""Cost of a natural step against a plain one, and against a hand-written one, on the 12-layer MNIST machine.

    python benchmarks/step_ratio.py            # about three minutes; needs MNIST, see `dagfisher data`

Every contender takes one training step in turn, many rounds in one process; the table shows medians and their ratios
to RWS. The contenders start from the same machine, trained for a while, and do not move it (learning rate 0), so that
all see the same weights. For the natural ones the table also has the relative error of the natural gradient of each
layer against a dense solve in float64 (the largest over the layers, and over all layers together).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.helmholtz import HelmholtzMachine, Trainer

SIZES = [300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
RESULTS = Path(__file__).parent / "results"


class HandWritten:
    """RWS as one would write it without automatic differentiation: x repeated S times, states −1 and +1."""

    def __init__(self, machine: HelmholtzMachine, samples: int, lr: float) -> None:
        self.p = [(layer.weight.data, layer.bias.data) for layer in machine.generative]
        self.q = [(layer.weight.data, layer.bias.data) for layer in machine.recognition]
        self.prior = machine.prior.bias.data
        self.samples, self.lr = samples, lr

    @staticmethod
    def draw(probability: Tensor) -> Tensor:
        return torch.bernoulli(probability).mul_(2).sub_(1)

    @staticmethod
    def log_p(state: Tensor, logit: Tensor) -> Tensor:
        return -F.softplus(-state * logit).sum(1)

    @torch.no_grad()
    def step(self, x: Tensor) -> None:
        batch, s = len(x), self.samples
        n = batch * s
        h = [(x * 2 - 1).repeat(s, 1)]
        log_q, rho_q = torch.zeros(n), []
        for weight, bias in self.q:
            logit = torch.addmm(bias, h[-1], weight.T)
            rho = torch.sigmoid(logit)
            h.append(self.draw(rho))
            log_q += self.log_p(h[-1], logit)
            rho_q.append(rho)
        log_p = self.log_p(h[-1], self.prior.expand(n, -1))
        rho_p = []
        for i, (weight, bias) in enumerate(self.p):
            logit = torch.addmm(bias, h[i + 1], weight.T)
            log_p += self.log_p(h[i], logit)
            rho_p.append(torch.sigmoid(logit))
        w = torch.softmax((log_p - log_q).view(s, batch), 0)
        wake_p = (w / batch).reshape(-1, 1)
        wake_q = ((w - 1 / s) / batch).reshape(-1, 1)
        updates = []
        for i, (weight, bias) in enumerate(self.p):
            error = ((h[i] + 1) / 2 - rho_p[i]) * wake_p
            updates.append((weight, error.T @ h[i + 1], bias, error.sum(0)))
        top = (((h[-1] + 1) / 2 - torch.sigmoid(self.prior)) * wake_p).sum(0)
        dream = [self.draw(torch.sigmoid(self.prior).expand(n, -1))]
        for weight, bias in reversed(self.p):
            dream.append(self.draw(torch.sigmoid(torch.addmm(bias, dream[-1], weight.T))))
        dream.reverse()
        for i, (weight, bias) in enumerate(self.q):
            asleep = ((dream[i + 1] + 1) / 2 - torch.sigmoid(torch.addmm(bias, dream[i], weight.T))) / n
            awake = ((h[i + 1] + 1) / 2 - rho_q[i]) * wake_q
            gradient = (asleep.T @ dream[i] + awake.T @ h[i]) / 2
            updates.append((weight, gradient, bias, (asleep.sum(0) + awake.sum(0)) / 2))
        for weight, weight_update, bias, bias_update in updates:
            weight.add_(weight_update, alpha=self.lr)
            bias.add_(bias_update, alpha=self.lr)
        self.prior.add_(top, alpha=self.lr)


def errors(trainer: Trainer, x: Tensor) -> tuple[float, float]:
    """Relative error of a fresh natural gradient, the worst layer's and of all layers together, against float64."""
    worst, off, size = 0.0, 0.0, 0.0
    for exact, found in compare_with_dense(trainer, x):
        difference, length = float((found - exact).norm()), float(exact.norm())
        worst = max(worst, difference / length)
        off += difference**2
        size += length**2
    return worst, math.sqrt(off / size)


def compare_with_dense(trainer: Trainer, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each layer: the exact natural gradient of this minibatch, and the one that the optimizer gives."""
    optimizer = trainer.optimizer
    assert isinstance(optimizer, DAGNaturalGradient)
    found: list[tuple[Tensor, Tensor]] = []
    take_step = optimizer.step

    def look(closure: None = None) -> None:
        vectors = optimizer.natural_gradient()
        for layer in [*trainer.machine.generative, *trainer.machine.recognition]:
            blocks = optimizer.fisher_blocks(layer.weight).double()
            gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1).double()
            exact = torch.cholesky_solve(gradient.unsqueeze(2), torch.linalg.cholesky(blocks)).squeeze(2)
            vector = torch.cat([vectors[layer.weight], vectors[layer.bias][:, None]], 1).double()
            found.append((exact, vector))
        take_step()

    optimizer.step = look  # type: ignore[method-assign, assignment]
    trainer.step(x)
    del optimizer.step
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--layers", default=",".join(map(str, SIZES)))
    parser.add_argument("--train-steps", type=int, default=1200, help="NRWS steps before anything is measured")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--damping", type=float, default=0.2)
    parser.add_argument("--tolerance", type=float, default=0.02, help="of the natural steps (0.02, the default)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "step_ratio.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    data = datasets.load(arguments.data)
    machine = HelmholtzMachine([data.pixels, *(int(s) for s in arguments.layers.split(","))])
    batches = data.batches(32, seed=0, epoch=0)
    trainer = Trainer(machine, "nrws", lr=0.05, damping=arguments.damping, update_every=10)
    for _ in range(arguments.train_steps):
        value = trainer.step(next(batches))
    print(f"{data.label}, {machine.extra_repr()}, trained for {arguments.train_steps} steps")
    if arguments.train_steps:
        print(f"log-likelihood of the last minibatch {float(value):.1f}")

    def natural(every: int) -> Trainer:
        damping, tolerance = arguments.damping, arguments.tolerance
        own = copy.deepcopy(machine)
        return Trainer(own, "nrws", lr=0.0, damping=damping, update_every=every, tolerance=tolerance)

    rws = Trainer(copy.deepcopy(machine), "rws", lr=0.0)
    by_k = {k: natural(k) for k in (1000, 100, 10, 1)}
    contenders: dict[str, Callable[[Tensor], object]] = {
        "RWS, hand-written": HandWritten(copy.deepcopy(machine), 10, 0.0).step,
        "RWS": rws.step,
        **{f"NRWS, K = {k}": t.step for k, t in by_k.items()},
    }
    for step in contenders.values():
        for _ in range(3):
            step(next(batches))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        x = next(batches)
        for name, step in contenders.items():
            start = time.perf_counter()
            step(x)
            times[name].append(1e3 * (time.perf_counter() - start))
    # A median hides the rare refresh: time it on its own and spread it over the K steps that it serves.
    refresh = {k: refresh_cost(natural, k, next(batches)) for k in by_k}
    base = statistics.median(times["RWS"])
    rows: list[dict[str, object]] = []
    print(f"{'':22s}{'ms':>8s}{'/ RWS':>8s}{'refresh ms':>12s}{'worst layer':>13s}{'all layers':>12s}")
    for name, series in times.items():
        middle = statistics.median(series)
        row: dict[str, object] = {"name": name, "ms": middle, "ratio": middle / base}
        line = f"{name:22s}"
        if name.startswith("NRWS"):
            k = int(name.rpartition(" ")[2])
            middle += (refresh[k] - middle) / k if k > 1 else 0.0
            worst, overall = errors(natural(k), next(batches))
            row |= {"ms": middle, "ratio": middle / base, "refresh_ms": refresh[k], "worst": worst, "overall": overall}
            line += f"{middle:8.1f}{middle / base:8.2f}{refresh[k]:12.1f}{worst:13.1e}{overall:12.1e}"
        else:
            line += f"{middle:8.1f}{middle / base:8.2f}"
        rows.append(row)
        print(line)
    settings = {"data": data.label, "sizes": machine.sizes, "threads": arguments.threads, "damping": arguments.damping}
    settings["tolerance"] = arguments.tolerance
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


def refresh_cost(natural: Callable[[int], Trainer], every: int, x: Tensor) -> float:
    """Milliseconds of a step that refreshes the Fisher, the median of three fresh optimizers."""
    series = []
    for _ in range(3):
        trainer = natural(every)
        start = time.perf_counter()
        trainer.step(x)
        series.append(1e3 * (time.perf_counter() - start))
    return statistics.median(series)


if __name__ == "__main__":
    main()
