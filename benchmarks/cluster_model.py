"""What several processes would gain, by formulas: the bytes and the seconds of a refresh and of a step without one.

    python benchmarks/cluster_model.py                        # the worked estimates of docs/distributed.rst
    python benchmarks/cluster_model.py --check                # predictions against benchmarks/results/distributed.json
    python benchmarks/cluster_model.py --layer 4000x784x10000 --processes 8 --bandwidth 1e11 --latency 2e-5 --rate 5e12
    python benchmarks/cluster_model.py ... --samples-seconds 0.1

A layer is rows × parents × units, of all processes together. The work is what the solvers themselves expect
(`Solver.cost`), spread as the optimizer spreads it (`balanced`), at so many multiply-adds per second. With W processes
a process receives (W − 1)/W of all rows, prepared solvers and solutions at a refresh, and twice (W − 1)/W of the
gradients at every step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from distributed import RESULTS, SIZES, shapes

from dagfisher.fisher import choose
from dagfisher.optim.spread import CUT_MESSAGES, balanced, expected
from dagfisher.solvers import SOLVERS, BlockShape
from dagfisher.solvers.rates import rates

CPU = torch.device("cpu")
ESTIMATES = Path(__file__).parent / "results" / "cluster_model.json"
MESSAGES = 5
"""Messages of a refresh besides those of layers that are cut, about: counts, rows, curvatures, shapes, solvers."""
NUMBER = 4
"""Bytes of a number."""


@dataclass(frozen=True)
class Cluster:
    """So many processes, and what they can do."""

    processes: int
    rate: float
    """Multiply-adds of a large matrix product per second, of one process."""
    bandwidth: float
    """Bytes that a process receives per second."""
    latency: float
    """Seconds of a message of a few bytes."""
    device: torch.device = CPU
    """Whose relative costs of operations count."""


@dataclass(frozen=True)
class Estimate:
    """Of one step."""

    seconds: float
    """All of it, the time of the messages included."""
    sending: float
    """Seconds of the messages."""
    received: float
    """Bytes, gradients left out."""


Layer = tuple[int, int, int]
"""Rows, parents and units."""


def refresh(layers: Sequence[Layer], uses: int, cluster: Cluster) -> Estimate:
    """A refresh whose result is kept for so many steps: the optimizer's part of the step."""
    world, known = cluster.processes, rates(cluster.device)
    loads, kept = {}, 0.0
    for i, (rows, parents, units) in enumerate(layers):
        shape = BlockShape(rows, parents + 1, units, units, uses)
        solver = SOLVERS[choose(shape, 1.0, cluster.device).name]
        cost, load = solver.cost(shape, cluster.device), expected(solver, shape, cluster.device, world)
        assert cost is not None and load is not None  # "auto" chooses by it
        kept += cost.numbers
        loads[i] = load
    who = balanced(loads, world)
    busy = [
        sum(loads[i].share if rank is None else loads[i].whole * (rank == r) for i, rank in who.items())
        for r in range(world)
    ]
    cut = sum(rank is None for rank in who.values())
    work = max(busy) - cut * CUT_MESSAGES * known.message
    numbers = sum(n * (d + l + 1) + (d + 1) * l for n, d, l in layers) + kept
    received = (world - 1) / world * NUMBER * numbers
    messages = MESSAGES + cut * CUT_MESSAGES if world > 1 else 0
    sending = messages * cluster.latency + received / cluster.bandwidth
    return Estimate(work / cluster.rate + sending, sending, received)


def step(layers: Sequence[Layer], samples_seconds: float, fixed: float, uses: int, cluster: Cluster) -> Estimate:
    """A step without a refresh: passes over the samples, which are shared, the sum of the gradients, and the rest.

    Args:
        layers: of the model.
        samples_seconds: of both passes over all samples in one process.
        fixed: seconds that do not become fewer.
        uses: of one refresh.
        cluster: of the processes.
    """
    world = cluster.processes
    gradients = 2 * (world - 1) / world * NUMBER * sum((d + 1) * l for _, d, l in layers)
    sending = (cluster.latency if world > 1 else 0.0) + gradients / cluster.bandwidth
    return Estimate(samples_seconds / world + fixed + sending, sending, 0.0)


def check(found: dict[str, Any]) -> list[dict[str, float]]:
    """Predictions for the MNIST network with the unit costs that were measured, beside what was measured.

    The rate comes from the refresh of one process; the share of a step that is passes over samples from its profile.
    """
    layers, uses = shapes(), 50
    one = found["milliseconds"]["1"]
    rate = refresh(layers, uses, Cluster(1, 1.0, 1.0, 0.0)).seconds / (one["refresh"] / 1e3)
    lines = []
    for world, own in found["milliseconds"].items():
        sent = found["communication"][world]
        crowded = max(1.0, int(world) / CORES) if found["clock"] == "wall" else 1.0
        cluster = Cluster(int(world), rate / crowded, sent.get("bandwidth", 1.0), sent.get("latency", 0.0))
        whole = refresh(layers, uses, cluster)
        shared, fixed = SHARED * one["reuse step"] / 1e3, (1 - SHARED) * one["reuse step"] / 1e3
        between = step(layers, shared * crowded, fixed * crowded, uses, cluster)
        lines.append(
            {
                "processes": int(world),
                "refresh, predicted": whole.seconds * 1e3,
                "refresh, measured": own["refresh"],
                "reuse step, predicted": between.seconds * 1e3,
                "reuse step, measured": own["reuse step"],
                "MB, predicted": whole.received / 1e6,
                "MB, measured": sent["refresh"]["bytes"] / 1e6,
            }
        )
    return lines


CORES = 2
"""Of the machine that `benchmarks/distributed.py` measured on."""
SHARED = 0.6
"""The part of a step of the MNIST network that is work on samples, by its profile (forward and backward passes)."""

GPU = torch.device("cuda")  # no GPU is needed: only the relative costs of its type are read
WORKED = {
    "8 GPUs, a layer of 10,000 units with 784 parents, 4,000 rows": (
        [(4000, 784, 10_000)],
        Cluster(8, 5e12, 1e11, 2e-5, GPU),
        0.05,
    ),
    "64 nodes, ten layers of 4,096 units with 4,096 parents, 8,192 rows": (
        [(8192, 4096, 4096)] * 10,
        Cluster(64, 5e12, 1e10, 5e-5, GPU),
        1.0,
    ),
}
"""Layers, processes, and seconds of the passes over all samples in one process; assumed, not measured."""


def worked(layers: Sequence[Layer], cluster: Cluster, samples_seconds: float, uses: int = 50) -> dict[str, float]:
    """One process and many, side by side."""
    alone = Cluster(1, cluster.rate, cluster.bandwidth, cluster.latency, cluster.device)
    pairs = [(refresh(layers, uses, c), step(layers, samples_seconds, 0.0, uses, c)) for c in (alone, cluster)]
    totals = [((uses - 1) * between.seconds + between.seconds + whole.seconds) / uses for whole, between in pairs]
    (one, _), (many, between) = pairs
    return {
        "processes": cluster.processes,
        "refresh of one, ms": one.seconds * 1e3,
        "refresh of all, ms": many.seconds * 1e3,
        "of it messages, ms": many.sending * 1e3,
        "MB received at a refresh": many.received / 1e6,
        "gradients at every step, ms": between.sending * 1e3,
        "whole step, times as fast": totals[0] / totals[1],
    }


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(v if isinstance(v, str) else f"{v:.4g}" for v in row.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="predictions beside the measurements of distributed.py")
    parser.add_argument("--layer", action="append", default=[], help="rows x parents x units; may be given again")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--bandwidth", type=float, default=1e10, help="bytes per second that a process receives")
    parser.add_argument("--latency", type=float, default=5e-5, help="seconds of a small message")
    parser.add_argument("--rate", type=float, default=5e12, help="multiply-adds per second of one process")
    parser.add_argument("--samples-seconds", type=float, default=0.1, help="of both passes, in one process")
    parser.add_argument("--uses", type=int, default=50, help="steps that a refresh serves")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"], help="whose relative costs count")
    options = parser.parse_args()
    if options.layer:
        layers = [tuple(map(int, each.split("x"))) for each in options.layer]
        cluster = Cluster(
            options.processes, options.rate, options.bandwidth, options.latency, torch.device(options.device)
        )
        print(shown([worked(layers, cluster, options.samples_seconds, options.uses)]))  # type: ignore[arg-type]
        return
    measured = check(json.loads(RESULTS.read_text()))
    if options.check:
        print(f"MNIST network, layers {SIZES}\n\n{shown(measured)}")
        return
    estimates = [{"": name, **worked(*case)} for name, case in WORKED.items()]
    ESTIMATES.write_text(json.dumps({"check": measured, "estimates": estimates}, indent=2) + "\n")
    print(shown(estimates))


if __name__ == "__main__":
    main()
