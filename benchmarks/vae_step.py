"""What a natural training step of a variational autoencoder costs against one with Adam; and a convolutional machine's.

    python benchmarks/vae_step.py --threads 1            # some minutes; the rows of other numbers of threads are kept
    python benchmarks/vae_step.py --threads 2
    python benchmarks/vae_step.py --quick                # a few steps each, for a test

Milliseconds of the processor, of a whole step: forward, backward, optimizer. Natural and plain step in turn in one
process, from the same model, trained for a while by Adam, which they do not move (learning rate 0). A natural optimizer
that refreshes every K steps is measured over whole cycles of K: the mean of a cycle, refreshes included, and the median
over the cycles; the plain one in the same way. Images are MNIST's where they are found, else random.
Results: benchmarks/results/vae_step.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from models import machines, vaes
from models.common import minibatches, optimizer_for, seeded
from timed_run import facts
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.app import table
from dagfisher.helmholtz import Trainer
from dagfisher.optim.settings import USUAL

RESULTS = Path(__file__).parent / "results"
Step = Callable[[Tensor], object]


@dataclass(frozen=True)
class Row:
    """One comparison: what is built, for which batch, how often it refreshes, and the ratio that is wanted.

    Args:
        name: for people.
        build: the VAE; None for the convolutional machine, whose plain step is reweighted wake-sleep's.
        batch: examples in a minibatch.
        every: K; None for the default.
        must: the ratio that is asked for.
        aim: the ratio that is hoped for.
    """

    name: str
    build: Callable[[], vaes.VAE] | None
    batch: int
    every: int | None
    must: float
    aim: float

    @property
    def cycle(self) -> int:
        """The steps that belong together, so that each of them holds as many refreshes; 1 if it never refreshes."""
        if self.every is not None:
            return self.every if self.every < 1000 else 1
        return USUAL


ROWS = (
    Row("MLP VAE 784-400-20, B 100, reuse", vaes.flat, 100, 10**6, 1.4, 1.2),
    Row("MLP VAE 784-400-20, B 1000, default K", vaes.flat, 1000, None, 1.25, 1.1),
    Row("convolutional VAE 64×64, B 64, default K", vaes.four_convolutions, 64, None, 1.4, 1.15),
    Row("conv/deconv machine, B 32, S 10, K = 1", None, 32, 1, 3.0, 2.0),
)


def natural(row: Row) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    """What builds the natural optimizer: as it comes but for the rate and, where the row says so, K."""
    every = {} if row.every is None else {"update_every": row.every}
    return lambda groups: DAGNaturalGradient(groups, lr=0.0, **every)


def contenders(row: Row, images: Iterator[Tensor], train_steps: int) -> tuple[Step, Step]:
    """The natural and the plain step, of models with the same trained parameters."""
    if row.build is None:
        return machine_step(natural(row)), machine_step(lambda groups: torch.optim.SGD(groups, lr=0.0))
    generator = torch.Generator().manual_seed(0)
    trained = seeded(row.build, 0)
    assert isinstance(trained, vaes.VAE)
    adam = torch.optim.Adam(trained.parameters(), lr=1e-3)
    for _ in range(train_steps):
        vaes.learn(trained, adam, vaes.shaped(next(images)[:100], trained.shape), generator)
    steps = [
        vae_step(row.build, trained, make) for make in (natural(row), lambda groups: torch.optim.Adam(groups, lr=0.0))
    ]
    return steps[0], steps[1]


def vae_step(build: Callable[[], vaes.VAE], trained: vaes.VAE, make: Any) -> Step:
    """The training step of a VAE that begins with the trained parameters."""
    model = build()
    model.load_state_dict(trained.state_dict())
    optimizer = optimizer_for(model, vaes.rules_for(model), make)
    generator = torch.Generator().manual_seed(1)
    return lambda x: vaes.learn(model, optimizer, vaes.shaped(x, model.shape), generator)


def machine_step(make: Any) -> Step:
    """The training step of the machine with convolutions in both directions."""
    machine = machines.convolutional()
    machine.reset_parameters(generator=torch.Generator().manual_seed(0))
    return Trainer(machine, "rws", samples=10, seed=0, optimizer=make).step


def measure(row: Row, images: Iterator[Tensor], rounds: int, train_steps: int) -> dict[str, Any]:
    """Milliseconds of both, and their ratio."""
    pair = contenders(row, images, train_steps)
    for step in pair:
        for _ in range(min(3, rounds)):
            step(next(images))
    warm = -min(3, rounds) % row.cycle  # to the end of the cycle that was begun
    if row.every is None:
        warm += 64  # a Fisher as it comes is made anew more often in its first 64 steps
    for _ in range(warm):
        pair[0](next(images))
    cycles = max(3, math.ceil(rounds / row.cycle)) if rounds > 3 else 1
    means: tuple[list[float], list[float]] = ([], [])
    for _ in range(cycles):
        sums = [0.0, 0.0]
        for _ in range(row.cycle):
            x = next(images)
            for i, step in enumerate(pair):
                start = time.process_time()
                step(x)
                sums[i] += time.process_time() - start
        for series, total in zip(means, sums, strict=True):
            series.append(1e3 * total / row.cycle)
    ours, plain = (statistics.median(series) for series in means)
    names = {"name": row.name, "cycle": row.cycle, "cycles": cycles}
    return {**names, "natural_ms": ours, "plain_ms": plain, "ratio": ours / plain, "must": row.must, "aim": row.aim}


def pixels(batch: int) -> tuple[str, Iterator[Tensor]]:
    """A name for the images, and minibatches of them without end."""
    try:
        return "mnist B", minibatches(datasets.load("mnist", may_download=False), batch, 0)
    except datasets.DataError:
        generator = torch.Generator().manual_seed(0)
        return "random", iter(lambda: (torch.rand(batch, 784, generator=generator) < 0.2).float(), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60, help="steps of each at least, in whole cycles (60)")
    parser.add_argument("--train-steps", type=int, default=200, help="by Adam before anything is measured (200)")
    parser.add_argument("--quick", action="store_true", help="small batches and few steps, for a test")
    parser.add_argument("--out", type=Path, default=RESULTS / "vae_step.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds, train_steps = (2, 2) if arguments.quick else (arguments.rounds, arguments.train_steps)
    rows = []
    for each in ROWS:
        row = replace(each, batch=4, every=each.every or 2) if arguments.quick else each
        name, images = pixels(row.batch)
        rows.append({**measure(row, images, rounds, train_steps), "data": name})
    figures = [("natural_ms", ".1f"), ("plain_ms", ".1f"), ("ratio", ".2f"), ("must", "g"), ("aim", "g")]
    lines = [[row["name"], *(format(row[key], how) for key, how in figures)] for row in rows]
    print(table([f"{arguments.threads} thread(s)", "natural ms", "plain ms", "ratio", "must", "aim"], lines))
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found[str(arguments.threads)] = {"on": facts(), "rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
