"""Natural gradients as they come against tuned SGD, Adam, SOAP and Muon, after equal seconds of the processor.

    python benchmarks/equal_seconds.py                              # everything; hours, resumes where it stopped
    python benchmarks/equal_seconds.py --models mini-vae,logistic --methods natural,adam
    python benchmarks/equal_seconds.py --report                     # the tables and the picture of what is there

For every model of `models`: `DAGNaturalGradient(params)` with no argument, and four rivals (`rivals`), each at the best
of four learning rates and of two batch settings. The learning rate of all stays for the first half of the budget of
processor seconds and then falls linearly to zero. A rival is tuned with one seed on validation data: all eight settings
with a quarter of the budget, the two best with all of it; the better one then has three other seeds on test data, as
the natural gradient has. The natural gradient also has runs with 0.5, 0.3 and 0.25 of the budget, whose learning
rates fall within it: they tell how soon it reaches what a rival has at the end. Only training is on the clock, one
thread for each run. A divergence is a result.
One line of benchmarks/results/equal_seconds.jsonl for each run; what is there is not run again. `--redo` runs the
final runs of the chosen methods again, and the report takes the last ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extras import need
from models import MODELS, Model, named
from rivals import LABELS, METHODS, methods, rates
from timed_run import Spec, final_value, natural_settings, run

from dagfisher.datasets import DataError

RESULTS = Path(__file__).parent / "results"
POINTS = {"quarter": 4, "full": 8, "final": 20}
QUICK_SECONDS = 0.36
SHARES = (1.0, 0.5, 0.3, 0.25)
"""Of the budget, for the runs of the natural gradient."""


@dataclass(frozen=True)
class Plan:
    """How much is run: the seconds of a model, or a few for a test, and the seeds of the final runs."""

    quick: bool = False

    def seconds(self, model: Model) -> float:
        """The budget of a full run."""
        return QUICK_SECONDS if self.quick else model.seconds

    @property
    def seeds(self) -> Sequence[int]:
        """Of the final runs; tuning has seed 0."""
        return (1,) if self.quick else (1, 2, 3)


class Results:
    """Finished runs in a file of JSON lines that grows by one line at a time.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.runs: dict[Spec, dict[str, Any]] = {}
        for line in lines:
            self._keep(json.loads(line))

    def _keep(self, record: dict[str, Any]) -> None:
        spec = Spec.of(record)
        self.runs.pop(spec, None)  # the last one counts, in the order of the file
        self.runs[spec] = record

    def add(self, record: dict[str, Any]) -> None:
        """Keep one more run."""
        self._keep(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


class Chain:
    """All runs of one method on one model, which follow from each other.

    Args:
        model: of the list.
        method: of `METHODS`.
        plan: how much is run.
        results: where finished runs are.
        redo: final runs that were there before count as missing.
    """

    def __init__(self, model: Model, method: str, plan: Plan, results: Results, redo: bool = False) -> None:
        self.model, self.method, self.plan, self.results = model, method, plan, results
        self.stale = {spec for spec in results.runs if redo and spec.stage == "final"}

    def missing(self) -> list[Spec]:
        """The runs that are missing and known already: those of the first stage that is not complete."""
        budget = self.plan.seconds(self.model)
        if self.method == "natural":
            batch, natural = self.model.natural_batch, natural_settings()
            own = (self.model.name, "natural", None, batch.size, batch.samples)
            return self._absent(
                Spec(*own, seed, share * budget, "final", natural) for share in SHARES for seed in self.plan.seeds
            )
        quarter = self.grid(budget / 4)
        if absent := self._absent(quarter):
            return absent
        full = [self._changed(spec, 0, budget, "full") for spec in self._best(quarter)[:2]]
        if absent := self._absent(full):
            return absent
        return self._absent(
            self._changed(spec, seed, budget, "final") for spec in self._best(full)[:1] for seed in self.plan.seeds
        )

    def grid(self, budget: float) -> list[Spec]:
        """Every setting that the method may choose from, with that budget."""
        return [
            Spec(self.model.name, self.method, rate, batch.size, batch.samples, 0, budget, "quarter")
            for batch in self.model.batch_sizes
            for rate in rates(self.model, self.method)
        ]

    def seconds_left(self) -> float:
        """Processor seconds of training that the chain still needs."""
        known = self.missing()
        later = {"quarter": 2 + len(self.plan.seeds), "full": len(self.plan.seeds), "final": 0}
        ahead = later[known[0].stage] if known else 0
        return sum(spec.budget for spec in known) + ahead * self.plan.seconds(self.model)

    @staticmethod
    def _changed(spec: Spec, seed: int, budget: float, stage: str) -> Spec:
        return dataclasses.replace(spec, seed=seed, budget=budget, stage=stage)

    def _absent(self, wanted: Iterable[Spec]) -> list[Spec]:
        return [spec for spec in wanted if spec not in self.results.runs or spec in self.stale]

    def _best(self, tried: list[Spec]) -> list[Spec]:
        """Those that did not diverge, the best first."""
        values = {spec: final_value(self.results.runs[spec]) for spec in tried}
        return sorted((spec for spec in tried if values[spec] > -math.inf), key=lambda spec: -values[spec])


def run_one(spec: Spec) -> dict[str, Any]:
    """The record of a run, with as many points as its stage has."""
    return run(spec, POINTS[spec.stage])


def execute(
    chains: Sequence[Chain],
    results: Results,
    workers: int,
    run: Callable[[Spec], dict[str, Any]] = run_one,
    minutes: float = math.inf,
) -> None:
    """Run what is missing, some at a time, and write each run down when it ends; begin none after so many minutes."""
    begun, trained = time.perf_counter(), 0.0
    running: dict[Future[dict[str, Any]], tuple[Chain, Spec]] = {}
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        while True:
            underway = {spec for _, spec in running.values()}
            ready = [(chain, spec) for chain in chains for spec in chain.missing() if spec not in underway]
            if time.perf_counter() - begun > 60 * minutes:
                ready = []
            for chain, spec in ready[: workers - len(running)]:
                running[pool.submit(run, spec)] = chain, spec
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                chain, spec = running.pop(future)
                record = future.result()
                results.add(record)
                chain.stale.discard(spec)
                trained += spec.budget
                pace = (time.perf_counter() - begun) / trained
                left = pace * sum(each.seconds_left() for each in chains)
                print(f"[{duration(left)} left] {line(spec, record)}", flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def line(spec: Spec, record: dict[str, Any]) -> str:
    """A run in a line for people."""
    method = LABELS.get(spec.method, spec.method)
    words = f"{spec.model} {method}, {spec.setting}, seed {spec.seed}, {spec.budget:g} s ({spec.stage}): "
    if record["diverged"] is not None:
        return words + f"diverged, {record['diverged'][:200]}"
    return words + f"{'test' if spec.stage == 'final' else 'valid'} {final_value(record):.5g}, {record['steps']} steps"


def duration(seconds: float) -> str:
    """Hours and minutes, or seconds where there are few."""
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if seconds >= 100 else f"{seconds:.0f} s"


def chosen(text: str | None, known: Sequence[str], what: str) -> list[str]:
    """The names in the text with commas between them, or all that are known."""
    names = [name.strip() for name in text.split(",")] if text else list(known)
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no {what} {name!r}; choose from {', '.join(known)}.")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names with commas between them (all): " + ", ".join(m.name for m in MODELS))
    parser.add_argument("--methods", help="names with commas between them (all): " + ", ".join(METHODS))
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, one thread each (1)")
    parser.add_argument("--redo", action="store_true", help="run the final runs of what is chosen again")
    parser.add_argument("--report", action="store_true", help="only the tables and the picture of what is there")
    parser.add_argument("--quick", action="store_true", help="budgets of less than a second and one seed, for a test")
    parser.add_argument("--out", type=Path, default=RESULTS / "equal_seconds.jsonl", help="the file of results")
    arguments = parser.parse_args()
    models = [named(name) for name in chosen(arguments.models, [m.name for m in MODELS], "model")]
    wanted = chosen(arguments.methods, METHODS, "method")
    plan, results = Plan(arguments.quick), Results(arguments.out)
    need(["matplotlib"])
    if not arguments.report:
        need(["pytorch_optimizer"] if {"soap", "muon"} & set(wanted) else [])
        pairs = [(model, method) for model in models for method in wanted if method in methods(model)]
        try:
            execute([Chain(*pair, plan, results, arguments.redo) for pair in pairs], results, arguments.workers)
        except KeyboardInterrupt:
            sys.exit("stopped; the same command goes on where this one was.")
        except DataError as error:
            sys.exit(f"{error}")
    from equal_seconds_report import draw, tables

    print(tables(results.runs, models, plan.seconds))
    draw(results.runs, models, plan.seconds, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
