"""What several processes gain: the refresh and the whole default training step of the MNIST network, two processes with
one core each against one process with one core, and the bytes that are sent, against the formula.

    python benchmarks/distributed.py                    # measures, in rounds that alternate, and prints a table
    python benchmarks/distributed.py --clock processor  # the same on a machine that is busy with other things
    python benchmarks/distributed.py --table            # prints the table of the last measurement

Each process is bound to a core of its own and has one thread. The contenders take turns: in each round the single
process and the pair do the same steps, while the others wait. Times are medians over the rounds. By default they are
wall-clock times, since waiting for messages is part of a step; they need a machine that does nothing else. The
processor's time is that of the process that needs most, with its sending and receiving, and without its waiting.
Four processes share two cores here: their wall-clock times say what many small shares cost, not what four cores gain.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.helmholtz.algorithms import algorithm_named

RESULTS = Path(__file__).parent / "results" / "distributed.json"
SIZES = [784, 300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
ROUNDS, STEPS, REFRESHES = 5, 8, 3
WORLDS = (1, 2, 4)
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}
EXAMPLES = algorithm_named("nrws").batch_size
SAMPLES = algorithm_named("nrws").samples


def trainer() -> Trainer:
    torch.manual_seed(0)
    machine = HelmholtzMachine(SIZES)
    machine.reset_parameters(generator=torch.Generator().manual_seed(0))
    return Trainer(machine, "nrws", seed=0)


def batch(step: int) -> torch.Tensor:
    """A minibatch of sparse blobs, about as bright as MNIST; only its size matters for the time."""
    generator = torch.Generator().manual_seed(step)
    return (torch.rand(EXAMPLES, 784, generator=generator) < 0.13).float()


def refresh_next(trained: Trainer) -> None:
    """Let the coming step refresh every layer, as it would in the middle of a training: for 50 uses."""
    for layer in trained.optimizer._layers:
        layer.refreshed -= 50
        layer.pace = type(layer.pace)(50)
    trained.optimizer._arm()


def timed(trained: Trainer, step: int, clock: Clock) -> tuple[float, float, float]:
    """Seconds of one training step, of the optimizer's part of it, and of the sum of the gradients over processes."""
    x = batch(step)
    spent = sent = 0.0
    inner, summing = trained.optimizer.step, trained.processes.sum_

    def summed(*arguments: Any) -> None:
        nonlocal sent
        began = clock()
        summing(*arguments)
        sent += clock() - began

    def measured(*arguments: Any) -> Any:
        nonlocal spent
        began = clock()
        result = inner(*arguments)
        spent += clock() - began
        return result

    trained.optimizer.step, trained.processes.sum_ = measured, summed
    began = clock()
    trained.step(x)
    whole = clock() - began
    trained.optimizer.step, trained.processes.sum_ = inner, summing
    return whole, spent, sent


def unit_costs(clock: Clock) -> dict[str, float]:
    """Seconds of a message of a few bytes, and bytes that a process receives in a second, between these processes."""
    world, found = dist.get_world_size(), {}
    for name, numbers in (("latency", 1), ("bandwidth", 2**20)):
        own, seconds = torch.zeros(numbers), []
        parts = [torch.empty_like(own) for _ in range(world)]
        for _ in range(20):
            dist.barrier()
            began = clock()
            dist.all_gather(parts, own)
            seconds.append(clock() - began)
        found[name] = statistics.median(seconds)
    found["bandwidth"] = 4 * 2**20 * (world - 1) / found["bandwidth"]
    return found


def mean_traffic(trained: Trainer) -> dict[str, Any]:
    """What `communication()` says, in the mean over the processes."""
    said: list[Any] = [trained.optimizer.communication()]
    if dist.is_initialized():
        said = [None] * dist.get_world_size()
        dist.all_gather_object(said, trained.optimizer.communication())
    kinds = {
        kind: {what: statistics.mean(each[kind][what] for each in said) for what in ("messages", "bytes")}
        for kind in ("refresh", "reuse")
    }
    return {**kinds, "kept": sum(trained.optimizer.memory_usage().values())}


def worker(world: int, clock: Clock) -> None:
    """Answer each line on standard input with a round of measurements."""
    rank = int(os.environ.get("RANK", "0"))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo")
    trained, step = trainer(), 0
    units = unit_costs(clock) if world > 1 else {}
    for _ in range(30):
        trained.step(batch(step))
        step += 1
    while True:
        line = [sys.stdin.readline() if rank == 0 else ""]
        if world > 1:
            dist.broadcast_object_list(line)
        if not line[0].strip():
            return
        found: dict[str, list[float]] = {"refresh": [], "reuse step": [], "refreshing step": [], "gradients": []}
        for _ in range(REFRESHES):
            refresh_next(trained)
            whole, own, _ = timed(trained, step, clock)
            found["refresh"].append(own)
            found["refreshing step"].append(whole)
            step += 1
            for _ in range(STEPS):
                for layer in trained.optimizer._layers:
                    layer.pace = type(layer.pace)(50)
                whole, _, sent = timed(trained, step, clock)
                found["reuse step"].append(whole)
                found["gradients"].append(sent)
                step += 1
        if world > 1:
            all_found: list[Any] = [None] * world
            dist.all_gather_object(all_found, found)
            found = {name: list(map(max, zip(*(each[name] for each in all_found), strict=True))) for name in found}
        sent_now = {**mean_traffic(trained), **units}
        if rank == 0:
            print(json.dumps({"times": found, "communication": sent_now}), flush=True)


def start(world: int, port: int, clock: str) -> list[subprocess.Popen[str]]:
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", str(world), "--clock", clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(world)
    ]


def measure(clock: str) -> dict[str, Any]:
    groups = {world: start(world, 29610 + world, clock) for world in WORLDS}
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
    load = round(os.getloadavg()[1], 2)
    communication = {str(world): each for world, each in sent.items()}
    return {"clock": clock, "milliseconds": medians, "communication": communication, "load": load}


def shapes() -> list[tuple[int, int, int]]:
    """Of every layer: rows, parents and units."""
    rows = EXAMPLES * SAMPLES
    found = [(rows, 0, SIZES[-1])]
    for below, above in itertools.pairwise(SIZES):
        found += [(rows, above, below), (EXAMPLES if below == SIZES[0] else rows, below, above)]
    return found


def expected_bytes(world: int, kept: float) -> float:
    """What `docs/distributed.rst` says a process receives at a refresh: rows, prepared solvers and solutions."""
    rows = sum(n * (d + l + 1) for n, d, l in shapes())
    solutions = sum((d + 1) * l for _, d, l in shapes())
    return (world - 1) / world * (4.0 * (rows + solutions) + kept)


def table(found: dict[str, Any]) -> str:
    times, sent = found["milliseconds"], found["communication"]
    lines = ["| | one process | two processes | times as fast | four on two cores |", "|---|---|---|---|---|"]
    for name in ("refresh", "reuse step", "refreshing step", "default step", "gradients"):
        one, two, four = (times[str(world)][name] for world in WORLDS)
        gain = "" if name == "gradients" else f"{one / two:.2f}"
        lines.append(f"| {name} | {one:.1f} ms | {two:.1f} ms | {gain} | {four:.1f} ms |")
    lines += ["", "| processes | messages | MB received at a refresh | by the formula | MB at a reuse step |"]
    lines += ["|---|---|---|---|---|"]
    for world in WORLDS[1:]:
        own = sent[str(world)]
        formula = expected_bytes(world, own["kept"]) / 1e6
        measured, reuse = own["refresh"]["bytes"] / 1e6, own["reuse"]["bytes"] / 1e6
        lines.append(f"| {world} | {own['refresh']['messages']:.0f} | {measured:.2f} | {formula:.2f} | {reuse:.2f} |")
    clock = {"wall": "wall-clock time", "processor": "processor's time of the busiest process"}[found["clock"]]
    return "\n".join([*lines, "", f"{clock}; load average of the machine: {found['load']}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the last measurement")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall-clock time, or that of the processor")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, CLOCKS[options.clock])
        return
    if not options.table:
        RESULTS.write_text(json.dumps(measure(options.clock), indent=2) + "\n")
    print(table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
