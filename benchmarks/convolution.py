"""What convolutional and large dense machines cost: time of a natural step against a plain one, and peak memory.

    python benchmarks/convolution.py            # two minutes; needs MNIST, see `dagfisher data`

Steps: 28×28 pixels, a bottom layer of 8 channels of 14×14 units (3×3 filters, stride 2) that is dense or convolutional
in each direction, 200-100-50-20 units above, B = 32, S = 10, damping 0.2, tolerance 0.3. All contenders take one step
in turn in one process; medians, of the processor. A refresh is spread over the K steps that it serves.
Memory: 48×48 pixels, 300-200-100-75-50-35-30-25-20-20 units, dense, B = 32, S = 10, NRWS; the peak of the resident
memory of a process of its own, PyTorch included. Fails above 1.5 GB, or if conv/deconv costs more than 2.5 RWS steps.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from dagfisher import datasets
from dagfisher.app import table
from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.nn import BernoulliConv2d, BernoulliConvTranspose2d, BernoulliLinear, Prior, StochasticLayer

RESULTS = Path(__file__).parent / "results"
KINDS = ("dense/dense", "conv/dense", "dense/deconv", "conv/deconv")
STATES = (-1.0, 1.0)
ABOVE = (200, 100, 50, 20)
LARGE = (48 * 48, 300, 200, 100, 75, 50, 35, 30, 25, 20, 20)
BATCH, SAMPLES, TOLERANCE = 32, 10, 0.3
MOST_BYTES, MOST_RATIO = 1.5e9, 2.5


def machine(kind: str, side: int = 28, above: tuple[int, ...] = ABOVE, seed: int = 0) -> HelmholtzMachine:
    """recognition/generative bottom layers over side × side pixels and 8 channels of half that size, the rest dense."""
    upward, downward = kind.split("/")
    filters: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1, "states": STATES}
    pixels, hidden = side * side, 8 * (side // 2) ** 2
    p: StochasticLayer = BernoulliLinear(hidden, pixels, states=STATES)
    q: StochasticLayer = BernoulliLinear(pixels, hidden, states=STATES)
    if downward == "deconv":
        p = BernoulliConvTranspose2d(8, 1, output_padding=1, **filters)
    if upward == "conv":
        q = BernoulliConv2d(1, 8, **filters)
    pairs: list[tuple[StochasticLayer, StochasticLayer]] = [(p, q)]
    for lower, upper in pairwise((hidden, *above)):
        pairs.append((BernoulliLinear(upper, lower, states=STATES), BernoulliLinear(lower, upper, states=STATES)))
    made = HelmholtzMachine(pairs, prior=Prior(above[-1], states=STATES), shape=(1, side, side))
    made.reset_parameters(generator=torch.Generator().manual_seed(seed))
    return made


def steps(kind: str, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of each contender: RWS, and NRWS for several K."""
    contenders: dict[str, Trainer] = {"RWS": Trainer(machine(kind), "rws", lr=1e-3, samples=SAMPLES, seed=0)}
    for k in (1000, 1):
        settings: dict[str, Any] = {"damping": 0.2, "update_every": k, "samples": SAMPLES, "seed": 0}
        contenders[f"NRWS K={k}"] = Trainer(machine(kind), "nrws", lr=1e-3, tolerance=TOLERANCE, **settings)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    batches = datasets.load("mnist").batches(BATCH, seed=0, epoch=0)
    for _, x in zip(range(rounds + 1), batches, strict=False):
        for name, trainer in contenders.items():
            start = time.process_time()
            trainer.step(x)
            times[name].append(1000 * (time.process_time() - start))
    median = {name: statistics.median(found[1:]) for name, found in times.items()}
    refresh = times["NRWS K=1000"][0] - median["NRWS K=1000"]
    rows = {"RWS": median["RWS"], "NRWS K=1": median["NRWS K=1"]}
    rows |= {f"NRWS K={k}": median["NRWS K=1000"] + refresh / k for k in (100, 1000)}
    return [{"bottom": kind, "algorithm": name, "ms": ms, "ratio": ms / median["RWS"]} for name, ms in rows.items()]


def large(count: int) -> None:
    """Train the 48×48 machine for some steps and print the peak of the resident memory in bytes."""
    trainer = Trainer(HelmholtzMachine(LARGE), "nrws", samples=SAMPLES, seed=0, update_every=10)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        trainer.step((torch.rand(BATCH, LARGE[0], generator=generator) < 0.3).float())
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--large", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "convolution.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.large:
        large(arguments.large)
        return
    command = [sys.executable, __file__, "--large", "25", "--threads", str(arguments.threads)]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"48×48 pixels, 300 units above: peak memory {peak / 1e9:.2f} GB")
    rows = [row for kind in KINDS for row in steps(kind, arguments.rounds)]
    lines = [[r["bottom"], r["algorithm"], f"{r['ms']:.1f}", f"{r['ratio']:.2f}"] for r in rows]
    print(table(["bottom", "algorithm", "ms/step", "RWS steps"], lines))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    found = {"threads": arguments.threads, "peak_bytes": peak, "steps": rows}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    default = next(r for r in rows if (r["bottom"], r["algorithm"]) == ("conv/deconv", "NRWS K=100"))
    if peak > MOST_BYTES or default["ratio"] > MOST_RATIO:
        sys.exit(f"over the limit of {MOST_BYTES / 1e9} GB or {MOST_RATIO} RWS steps.")


if __name__ == "__main__":
    main()
