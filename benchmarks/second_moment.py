"""What Adam's second moments are worth on natural gradients, kept of each element, unit or layer.

    python benchmarks/second_moment.py             # ten minutes of one core; resumes
    python benchmarks/second_moment.py --table     # only the table, from the results so far

Two models of `models`: NRWS on miniMNIST for 2 epochs, and a VAE on miniMNIST for 1,500 steps, both with the settings
that the optimizer comes with, but for `betas` and `second_moment`. "none" is the optimizer as it comes, with its
momentum. The learning rate stays for the first half and then falls linearly to zero. Each way climbs a ladder of rates
by validation data with one seed until both neighbours are worse, and then has three other seeds on test data.
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
from models import named
from timed_run import factor, facts

from dagfisher import DAGNaturalGradient
from dagfisher.app import table

RESULTS = Path(__file__).parent / "results" / "second_moment.jsonl"
STEPS = {"mini-machine": 500, "mini-vae": 1500}
LADDER = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WAYS = {"none": 0.3, "element": 0.1, "unit": 0.3, "layer": 3.0}
"""Where each begins to climb."""
BETAS = (0.9, 0.999)
TUNED, SEEDS = 0, (1, 2, 3)
KEY = ("model", "way", "rate", "seed")


def run(model: str, way: str, rate: float, seed: int) -> dict[str, Any]:
    """One training; the figure is −∞ where it diverges."""
    torch.set_num_threads(1)
    moments: dict[str, Any] = {} if way == "none" else {"betas": BETAS, "second_moment": way}
    chosen, steps = named(model), STEPS[model]
    value, seconds = -math.inf, 0.0
    try:
        learner = chosen.start(
            lambda groups: DAGNaturalGradient(groups, lr=rate, **moments), chosen.natural_batch, seed
        )
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
    """Medians over seeds, and what the rates gave on validation data."""
    lines = []
    for model in STEPS:
        for way in WAYS:
            tuned = [r for r in records if (r["model"], r["way"], r["seed"]) == (model, way, TUNED)]
            final = [r for r in records if (r["model"], r["way"]) == (model, way) and r["seed"] in SEEDS]
            if not final:
                continue
            tried = ", ".join(f"{r['rate']:g}: {height(r):.2f}" for r in sorted(tuned, key=lambda r: r["rate"]))
            ends = " ".join(f"{height(r):.2f}" for r in sorted(final, key=height))
            seconds = statistics.median(r["seconds"] for r in final)
            lines.append([model, way, f"{final[0]['rate']:g}", ends, f"{seconds:.1f}", tried])
    return table(["", "second moment", "rate", "test, three seeds", "seconds", "valid by rate"], lines)


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
    print(show(list(done.values())))
