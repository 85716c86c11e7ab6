"""What Adam's second moments are worth on natural gradients, kept of each element, unit or layer.

    python benchmarks/second_moment.py             # fifteen minutes of one core; resumes
    python benchmarks/second_moment.py --table     # only the table, from the results so far

Two models of `models`: NRWS on miniMNIST for 2 epochs, and a VAE on miniMNIST for 1,500 steps, both with the settings
that the optimizer comes with, but for `betas` and `second_moment`. "none" is the optimizer as it comes, with its
momentum of natural gradients; "none, covector" has a momentum of gradients, which the current Fisher makes natural.
The learning rate stays for the first half and then falls linearly to zero. Each way climbs a ladder of rates by
validation data with one seed until both neighbours are worse, and then has three other seeds on test data.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import named
from timed_run import factor, facts

from dagfisher import DAGNaturalGradient
from dagfisher.app import table

RESULTS = Path(__file__).parent / "results" / "second_moment.jsonl"
STEPS = {"mini-machine": 500, "mini-vae": 1500}
LADDER = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COVECTOR = "none, covector"
WAYS = {"none": 0.3, "element": 0.1, "unit": 0.3, "layer": 3.0, COVECTOR: 0.3}
"""Where each begins to climb."""
PROTOTYPE = {"none": -31.02, "element": -31.45, "unit": -30.91, "layer": -30.81}
"""What a prototype had with one seed after two epochs of such a machine."""
BETAS, MOMENTUM = (0.9, 0.999), 0.8
TUNED, SEEDS = 0, (1, 2, 3)
KEY = ("model", "way", "rate", "seed")


class CovectorMomentum(DAGNaturalGradient):
    """Momentum as a mean of past gradients, which the Fisher of the current step then makes a natural one."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.grad = mean.lerp_(p.grad, 1 - MOMENTUM).clone()
        return super().step(closure)


def make(way: str, rate: float, groups: list[dict[str, Any]]) -> DAGNaturalGradient:
    """The optimizer of a way."""
    if way == COVECTOR:
        return CovectorMomentum(groups, lr=rate, momentum=0.0)
    moments: dict[str, Any] = {} if way == "none" else {"betas": BETAS, "second_moment": way}
    return DAGNaturalGradient(groups, lr=rate, **moments)


def run(model: str, way: str, rate: float, seed: int) -> dict[str, Any]:
    """One training; the figure is −∞ where it diverges."""
    torch.set_num_threads(1)
    chosen, steps = named(model), STEPS[model]
    value, seconds = -math.inf, 0.0
    try:
        learner = chosen.start(partial(make, way, rate), chosen.natural_batch, seed)
        began = time.process_time()
        for step in range(steps):
            for group in learner.optimizer.param_groups:
                group["lr"] = rate * factor(step / steps)
            learner.step()
        seconds = time.process_time() - began
        value = learner.value("valid" if seed == TUNED else "test")
    except ArithmeticError as error:
        print(f"{model}, {way}, rate {rate:g}: {error}")
    record = {"model": model, "way": way, "rate": rate, "seed": seed, "steps": steps, "seconds": round(seconds, 2)}
    return {**record, "value": value if math.isfinite(value) else None, "on": facts()}


def height(record: dict[str, Any]) -> float:
    """The figure; −∞ if the run diverged."""
    return -math.inf if record["value"] is None else float(record["value"])


def show(records: list[dict[str, Any]]) -> str:
    """The three seeds of each way at its best rate, and what the prototype had."""
    lines = []
    for model in STEPS:
        for way in WAYS:
            final = [r for r in records if (r["model"], r["way"]) == (model, way) and r["seed"] in SEEDS]
            if final:
                ends = " ".join(f"{height(r):.2f}" for r in sorted(final, key=height))
                seconds = statistics.median(r["seconds"] for r in final)
                before = f"{PROTOTYPE[way]:.2f}" if model == "mini-machine" and way in PROTOTYPE else ""
                lines.append([named(model).label, way, f"{final[0]['rate']:g}", ends, f"{seconds:.1f}", before])
    return table(["model", "second moment", "rate", "test, three seeds", "seconds", "prototype"], lines)


def ladders(records: list[dict[str, Any]]) -> str:
    """What each rate gave on validation data."""
    tuned = [r for r in records if r["seed"] == TUNED]
    found = {(r["model"], r["way"], r["rate"]): f"{height(r):.2f}" for r in tuned}
    lines = [[m, way, *(found.get((m, way, rate), "") for rate in LADDER)] for m in STEPS for way in WAYS]
    return table(["model", "second moment", *(f"{rate:g}" for rate in LADDER)], lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    done = {tuple(r[k] for k in KEY): r for r in records}

    def wanted(*key: Any) -> dict[str, Any]:
        if key not in done:
            done[key] = run(*key)
            with RESULTS.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
            print(done[key], flush=True)
        return done[key]

    def climbed(model: str, way: str) -> float:
        """The rate whose neighbours on the ladder are worse."""
        at = LADDER.index(WAYS[way])
        while True:
            near = LADDER[max(at - 1, 0) : at + 2]
            best = LADDER.index(max(near, key=lambda rate: height(wanted(model, way, rate, TUNED))))
            if best == at:
                return LADDER[at]
            at = best

    for model in STEPS if not options.table else ():
        for way in WAYS:
            rate = climbed(model, way)
            for seed in SEEDS:
                wanted(model, way, rate, seed)
    print(show(list(done.values())), ladders(list(done.values())), sep="\n\n")
