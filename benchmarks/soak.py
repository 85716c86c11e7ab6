"""A small model for 100,000 steps: memory stays flat, and `auto` does not drift away from `dense`.

    python benchmarks/soak.py                  # some minutes; --steps 2000 for a first look

Layers of Bernoulli, Gaussian and deterministic units are trained with a new Fisher each 10 steps, weighted samples, and
a checkpoint that is saved and loaded every 1,000 steps. A copy of the model takes the first fifth of the
steps on the same data with the solver `dense` instead of `auto`. The slope of the resident memory over the second half
of the steps must stay under 1 kB per step, and the relative distance of the parameters after a fifth under 1 %.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.app import Bar

RESULTS = Path(__file__).parent / "results"
MOST_SLOPE, MOST_DRIFT = 1024.0, 1e-2


class Model(nn.Module):
    """Parents → deterministic hidden units → Gaussian, and → Bernoulli."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = dagfisher.declare(nn.Linear(64, 10), "deterministic")
        self.gaussian = dagfisher.nn.GaussianLinear(10, 3, min_std=0.1)
        self.bernoulli = dagfisher.nn.BernoulliLinear(10, 6)

    def loss(self, x: Tensor, y: Tensor, bits: Tensor, weights: Tensor) -> Tensor:
        with dagfisher.sample_weights(weights):
            h = torch.tanh(self.hidden(x))
            log_p = self.gaussian.log_prob(y, h) - F.binary_cross_entropy_with_logits(
                self.bernoulli(h), bits, reduction="none"
            ).sum(1)
        return -(weights * log_p).sum()


def resident() -> int:
    """Bytes of resident memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def slope(points: list[tuple[int, int]]) -> float:
    """Bytes per step, by least squares."""
    x = torch.tensor([p[0] for p in points], dtype=torch.float64)
    y = torch.tensor([p[1] for p in points], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


@torch.no_grad()
def distance(model: Model, twin: Model) -> float:
    """‖θ − θ'‖/‖θ'‖."""
    off = sum(float((a - b).square().sum()) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    return float((off / sum(float(b.square().sum()) for b in twin.parameters())) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    twin = copy.deepcopy(model)
    settings = {"lr": 0.01, "damping": 0.3, "update_every": 10, "momentum": 0.5, "tolerance": 1e-4}
    auto = DAGNaturalGradient(model.named_parameters(), solver="auto", **settings)  # type: ignore[arg-type]
    dense = DAGNaturalGradient(twin.named_parameters(), solver="dense", **settings)  # type: ignore[arg-type]
    truth = Model()
    memory: list[tuple[int, int]] = []
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    data = torch.Generator().manual_seed(2)
    drift, start = 0.0, time.perf_counter()
    with Bar(arguments.steps, "soak") as bar:
        for step in range(arguments.steps):
            if step == arguments.steps // 5:
                drift = distance(model, twin)
            x = torch.randn(int(torch.randint(8, 24, (1,), generator=data)), 64, generator=data)
            with torch.no_grad():
                h = torch.tanh(truth.hidden(x))
                y, bits = truth.gaussian.sample(h, data), truth.bernoulli.sample(h, data)
            weights = torch.rand(len(x), generator=data)
            weights /= weights.sum()
            pairs = [(model, auto, generators[0]), (twin, dense, generators[1])]
            for network, optimizer, generator in pairs[: 2 if step < arguments.steps // 5 else 1]:
                optimizer.zero_grad()
                loss = network.loss(x, y, bits, weights)
                optimizer.sample_fisher(generator)
                loss.backward()
                optimizer.step()
            if step % 1000 == 999:
                auto.load_state_dict(copy.deepcopy(auto.state_dict()))
            if step % max(1, arguments.steps // 200) == 0:
                gc.collect()
                memory.append((step, resident()))
            bar.update(1)
    seconds = time.perf_counter() - start
    growth = slope(memory[len(memory) // 2 :])
    first, last = memory[0][1] / 1e6, memory[-1][1] / 1e6
    print(f"{arguments.steps:,} steps, {seconds:.0f} s: memory {first:.0f} to {last:.0f} MB, slope {growth:.0f} bytes")
    print(f"a step; the parameters by auto are {drift:.1e} from those by dense")
    found = {"steps": arguments.steps, "bytes_per_step": growth, "drift": drift, "memory": memory}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found) + "\n")
    if growth > MOST_SLOPE or drift > MOST_DRIFT:
        sys.exit("over the limits of 1 kB per step and a drift of 1 %.")


if __name__ == "__main__":
    main()
