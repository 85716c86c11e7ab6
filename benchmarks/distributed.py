"""What several processes gain: the refresh and the whole default training step of the MNIST network, two processes with
one core each against one process with one core, and the bytes that are sent, against the formula.

    python benchmarks/distributed.py            # measures, in rounds that alternate, and prints a table
    python benchmarks/distributed.py --table    # prints the table of the last measurement

Each process is bound to a core of its own and has one thread. The contenders take turns: in each round the single
process and the pair do the same steps, while the others wait. Times are wall-clock medians over the rounds, since
waiting for messages is part of a step; run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dagfisher.helmholtz import HelmholtzMachine, Trainer

RESULTS = Path(__file__).parent / "results" / "distributed.json"
SIZES = [784, 300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
ROUNDS, STEPS, REFRESHES = 8, 8, 3
WORLDS = (1, 2)


def trainer() -> Trainer:
    torch.manual_seed(0)
    machine = HelmholtzMachine(SIZES)
    machine.reset_parameters(generator=torch.Generator().manual_seed(0))
    return Trainer(machine, "nrws", seed=0)


def batch(step: int) -> torch.Tensor:
    """A minibatch of sparse blobs, about as bright as MNIST; only its size matters for the time."""
    generator = torch.Generator().manual_seed(step)
    return (torch.rand(100, 784, generator=generator) < 0.13).float()


def refresh_next(trained: Trainer) -> None:
    """Let the coming step refresh every layer, as it would in the middle of a training: for 50 uses."""
    for layer in trained.optimizer._layers:
        layer.refreshed -= 50
        layer.pace = type(layer.pace)(50, 1.0)
    trained.optimizer._arm()


def timed(trained: Trainer, step: int) -> tuple[float, float]:
    """Seconds of one training step, and of the optimizer's part of it."""
    spent = 0.0
    inner = trained.optimizer.step

    def measured(*arguments: Any) -> Any:
        nonlocal spent
        began = time.perf_counter()
        result = inner(*arguments)
        spent += time.perf_counter() - began
        return result

    trained.optimizer.step = measured
    began = time.perf_counter()
    trained.step(batch(step))
    whole = time.perf_counter() - began
    trained.optimizer.step = inner
    return whole, spent


def worker(world: int) -> None:
    """Answer each line on standard input with a round of measurements."""
    rank = int(os.environ.get("RANK", "0"))
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo")
    trained, step = trainer(), 0
    for _ in range(30):
        trained.step(batch(step))
        step += 1
    while True:
        line = [sys.stdin.readline() if rank == 0 else ""]
        if world > 1:
            dist.broadcast_object_list(line)
        if not line[0].strip():
            return
        found: dict[str, list[float]] = {"refresh": [], "reuse step": [], "refreshing step": []}
        for _ in range(REFRESHES):
            refresh_next(trained)
            whole, own = timed(trained, step)
            found["refresh"].append(own)
            found["refreshing step"].append(whole)
            step += 1
            for _ in range(STEPS):
                for layer in trained.optimizer._layers:
                    layer.pace = type(layer.pace)(50, 1.0)
                found["reuse step"].append(timed(trained, step)[0])
                step += 1
        if rank == 0:
            print(json.dumps({"times": found, "communication": trained.optimizer.communication()}), flush=True)


def start(world: int, port: int) -> list[subprocess.Popen[str]]:
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", str(world)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(world)
    ]


def measure() -> dict[str, Any]:
    groups = {world: start(world, 29610 + world) for world in WORLDS}
    times: dict[int, dict[str, list[float]]] = {world: {} for world in WORLDS}
    sent: dict[int, Any] = {}
    for _ in range(ROUNDS):
        for world, members in groups.items():
            assert members[0].stdin is not None and members[0].stdout is not None
            members[0].stdin.write("go\n")
            members[0].stdin.flush()
            answer = json.loads(members[0].stdout.readline())
            for name, values in answer["times"].items():
                times[world].setdefault(name, []).extend(values)
            sent[world] = answer["communication"]
    for members in groups.values():
        for member in members:
            assert member.stdin is not None
            member.stdin.close()
        assert [member.wait(60) for member in members] == [0] * len(members)
    medians = {
        str(world): {name: statistics.median(values) * 1e3 for name, values in own.items()}
        for world, own in times.items()
    }
    for own in medians.values():  # a Fisher is kept for 50 steps
        own["default step"] = (49 * own["reuse step"] + own["refreshing step"]) / 50
    return {"milliseconds": medians, "communication": {str(w): each for w, each in sent.items()}}


def expected_bytes(world: int) -> dict[str, float]:
    """What `docs/distributed.rst` says a process receives, gradients left out: an upper bound for the solvers."""
    numbers = 0
    for network in ("generative", "recognition"):
        pairs = [pair[:: 1 if network == "recognition" else -1] for pair in itertools.pairwise(SIZES)]
        for parents, units in pairs:
            rows = 100 if (network == "recognition" and parents == 784) else 500
            numbers += rows * (parents + units + 1)
    numbers += 500 * (SIZES[-1] + 1)
    return {"rows": 4.0 * numbers * (world - 1) / world}


def table(found: dict[str, Any]) -> str:
    one, two = found["milliseconds"]["1"], found["milliseconds"]["2"]
    lines = ["| | one process | two processes | times as fast |", "|---|---|---|---|"]
    for name in ("refresh", "reuse step", "refreshing step", "default step"):
        lines.append(f"| {name} | {one[name]:.1f} ms | {two[name]:.1f} ms | {one[name] / two[name]:.2f} |")
    sent = found["communication"]["2"]
    rows = expected_bytes(2)["rows"]
    lines += ["", f"rows, by the formula: {rows / 1e6:.2f} MB at a refresh"]
    for kind in ("refresh", "reuse"):
        lines.append(f"{kind}: {sent[kind]['messages']} messages, {sent[kind]['bytes'] / 1e6:.2f} MB received")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the last measurement")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker)
        return
    if not options.table:
        RESULTS.write_text(json.dumps(measure(), indent=2) + "\n")
    print(table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
