"""What drawing examples by the norms of their gradients could save, and what it saves, on a classifier of digits.

    python benchmarks/importance.py             # five minutes of one core; resumes
    python benchmarks/importance.py --table     # only the tables, from the results so far

The first 10,000 images of miniMNIST, a network 196-100-100-10 with ReLU, 1,500 steps with a rate that falls to 0, three
seeds. SGD with momentum 0.9 (the optimizer with so much damping that the Fisher is gone), and natural gradients as they
come, each with uniform minibatches and with an ImportanceSampler that follows the plain norms of the last time that it
saw each example. Uniform minibatches also have 2,200 steps, which take about as long as 1,500 with a sampler. Seconds
are those of the process in its training.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient, datasets
from dagfisher.app import table
from dagfisher.importance import ImportanceSampler, sampling_variance

RESULTS = Path(__file__).parent / "results" / "importance.jsonl"
EXAMPLES, LOOKED_AT = 10_000, 1000
WAYS: list[tuple[str, int]] = [("SGD", 100), ("natural", 100), ("natural", 500)]
DRAWS = ((math.inf, 1500), (math.inf, 2200), (1.0, 1500), (0.3, 1500))
"""Smoothing and steps."""
SEEDS = (0, 1, 2)
KEY = ("way", "batch", "smoothing", "steps")


def build(way: str, seed: int) -> tuple[nn.Sequential, DAGNaturalGradient]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(196, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    for i in (0, 2):
        dagfisher.declare(net[i], "deterministic")
    dagfisher.declare(net[4], "categorical", classes=10)
    if way == "SGD":
        settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "damping": 1e8, "update_every": 10**9}
        return net, DAGNaturalGradient(net.parameters(), **settings, solver="diagonal")
    return net, DAGNaturalGradient(net.parameters())


def spread(opt: DAGNaturalGradient, net: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> dict[str, float]:
    """Variances over that of uniform minibatches, in three metrics: with ideal weights, and with the sampler's."""
    opt.zero_grad()
    with opt.example_norms() as norms:
        predictor = net(x)
        opt.sample_fisher()
        F.cross_entropy(predictor, y).backward()
    plain = [p.grad.double() for p in net.parameters()]
    solved = [v.double() for v in opt.natural_gradient().values()]
    means = {
        "gradient": sum(float(g.square().sum()) for g in plain),
        "natural": sum(float(v.square().sum()) for v in solved),
        "fisher": sum(float((g * v).sum()) for g, v in zip(plain, solved, strict=True)),
    }
    found = {}
    for metric, square in means.items():
        each = getattr(norms, metric)
        # A trust region shortens the mean step, and would not shorten that of one example in the same way.
        mean = math.sqrt(square) if metric == "gradient" else 0.0
        uniform = sampling_variance(each, None, mean)
        found[f"{metric}, ideal"] = sampling_variance(each, each, mean) / uniform
        found[f"{metric}, stale"] = sampling_variance(each, weights, mean) / uniform
    return found


def run(way: str, batch: int, smoothing: float, steps: int, seed: int) -> dict[str, Any]:
    data = datasets.load("mini-mnist")
    x, y = data.evaluation("train")[:EXAMPLES].float(), data.labels("train")[:EXAMPLES]
    test, test_labels = data.evaluation("test").float(), data.labels("test")
    net, opt = build(way, seed)
    generator = torch.Generator().manual_seed(seed)
    sampler = ImportanceSampler(EXAMPLES, batch, smoothing=smoothing, generator=generator)
    falling = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=steps)
    seconds = 0.0
    for _ in range(steps):
        began = time.process_time()
        chosen = torch.tensor(next(iter(sampler)))
        weights = sampler.weights(chosen)
        opt.zero_grad()
        if smoothing == math.inf:
            predictor = net(x[chosen])
            opt.sample_fisher()
            F.cross_entropy(predictor, y[chosen]).backward()
        else:
            with opt.example_norms() as norms:
                with dagfisher.sample_weights(weights):
                    predictor = net(x[chosen])
                opt.sample_fisher()
                (weights * F.cross_entropy(predictor, y[chosen], reduction="none")).mean().backward()
            sampler.update(chosen, norms.gradient / weights)
        opt.step()
        falling.step()
        seconds += time.process_time() - began
    loss, error = evaluate(net, x, y)
    test_loss, test_error = evaluate(net, test, test_labels)
    record = {"way": way, "batch": batch, "smoothing": str(smoothing), "seed": seed, "seconds": round(seconds, 2)}
    record |= {"steps": steps, "loss": loss, "error": error, "test_loss": test_loss, "test_error": test_error}
    if smoothing != math.inf:
        record |= spread(opt, net, x[:LOOKED_AT], y[:LOOKED_AT], sampler.probabilities()[:LOOKED_AT])
    return record


@torch.no_grad()
def evaluate(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    predictor = net(x)
    return float(F.cross_entropy(predictor, y)), float((predictor.argmax(1) != y).double().mean())


def show(records: list[dict[str, Any]]) -> str:
    """Medians over seeds."""
    lines, spreads = [], []
    for way, batch in WAYS:
        for smoothing, steps in DRAWS:
            key = (way, batch, str(smoothing), steps)
            runs = [r for r in records if tuple(r[k] for k in KEY) == key]
            if not runs:
                continue
            label = f"{way}, {batch} examples"
            drawn = "uniform" if smoothing == math.inf else f"smoothing {smoothing:g}"
            middle = {
                key: statistics.median(r[key] for r in runs) for key in runs[0] if key not in ("way", "smoothing")
            }
            ends = " ".join(f"{r['loss']:.4f}" for r in sorted(runs, key=lambda r: r["loss"]))
            error = f"{100 * middle['test_error']:.2f} %"
            lines.append(
                [label, drawn, f"{steps}", ends, error, f"{middle['test_loss']:.3f}", f"{middle['seconds']:.1f}"]
            )
            if smoothing != math.inf:
                shares = [
                    f"{middle[f'{m}, {k}']:.3f}" for m in ("gradient", "natural", "fisher") for k in ("ideal", "stale")
                ]
                spreads.append([label, drawn, *shares])
    metrics = [f"{m}, {k}" for m in ("‖g‖", "‖F̃⁻¹g‖", "√gᵀF̃⁻¹g") for k in ("ideal", "stale")]
    header = ["", "drawn", "steps", "training loss, three seeds", "test error", "test loss", "seconds"]
    return (
        table(header, lines)
        + "\n\nvariance over that of uniform minibatches\n"
        + table(["", "drawn", *metrics], spreads)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    done = {(*(r[k] for k in KEY), r["seed"]) for r in records}
    for seed in SEEDS if not options.table else ():
        for way, batch in WAYS:
            for smoothing, steps in DRAWS:
                if (way, batch, str(smoothing), steps, seed) not in done:
                    records.append(run(way, batch, smoothing, steps, seed))
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(records[-1]) + "\n")
                    print(records[-1], flush=True)
    print(show(records))
