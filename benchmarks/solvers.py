"""What each solver costs, keeps and gets wrong, beside the textbook implementation, in one process.

    python benchmarks/solvers.py               # about ten minutes; needs MNIST, see `dagfisher data`
    python benchmarks/solvers.py --quick       # seconds; tiny problems, for trying it out

First the bottom generative layer of a trained MNIST machine (see trained_layer.py), where the acceptance lines are
checked; then synthetic layers of growing n (samples), d (parents) and l (units), from which growth exponents are
fitted. "fresh" is preparing and solving for the gradient at hand, "reused" is solving for a gradient of another
minibatch with what was prepared. All contenders take turns, round after round; times are medians. Errors are against
a dense solve in float64, of both gradients; the larger one counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from extras import need
from solvers_plot import draw
from textbook import Textbook, exact, relative_error
from torch import Tensor
from trained_layer import LayerProblem, extract, mnist_problems, train

from dagfisher import datasets
from dagfisher._reading import answered
from dagfisher.fisher import LayerFisher

RESULTS = Path(__file__).parent / "results"
WANTED_ERROR = 1e-2
TOLERANCES = (2e-2, 1e-2, 7e-3, 5e-3, 3e-3, 2e-3, 1e-3)
LARGEST = 2**27
"""Numbers that a contender may keep in the sweep; beyond that it sits out."""


class Prepared(Protocol):
    """What a contender keeps between a fresh solve and the reused ones."""

    def solve(self, gradient: Tensor) -> Tensor: ...

    def nbytes(self) -> int: ...


@dataclass
class Contender:
    """A way to get natural gradients."""

    label: str
    begin: Callable[[LayerProblem], tuple[Prepared, Tensor]]
    keeps: Callable[[int, int, int], int] = lambda n, d, l: 0
    """Numbers kept, from (n, d, l); only where it is much."""


@dataclass
class Row:
    """One contender on one problem."""

    solver: str
    fresh_ms: float
    reused_ms: float
    kept_bytes: int
    error: float
    """Of the gradient at hand."""
    later_error: float
    """Of the other gradient, with what was prepared."""
    note: str = ""
    place: dict[str, Any] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        return max(self.error, self.later_error)


def textbook(problem: LayerProblem) -> tuple[Prepared, Tensor]:
    prepared = Textbook.prepare(problem)
    return prepared, prepared.solve(problem.gradient)


def library(solver: str, every: int, tolerance: float) -> Callable[[LayerProblem], tuple[Prepared, Tensor]]:
    """The library's solver of that name, for statistics that are kept for `every` steps."""

    def begin(problem: LayerProblem) -> tuple[Prepared, Tensor]:
        settings: dict[str, Any] = {"damping": problem.damping, "solver": solver}
        return answered(
            LayerFisher.preparing(
                problem.segments, problem.gradient, tolerance=tolerance, update_every=every, **settings
            )
        )

    return begin


def contenders(tolerance: float) -> list[Contender]:
    """All of them; the exact solvers do not depend on K."""
    return [
        Contender("textbook", textbook, lambda n, d, l: l * n * n),
        Contender("dense", library("dense", 1, tolerance), lambda n, d, l: l * d * d),
        Contender("woodbury", library("woodbury", 1, tolerance), lambda n, d, l: l * n * n),
        Contender("conjugate, K = 1", library("conjugate", 1, tolerance)),
        Contender("conjugate, K = 1000", library("conjugate", 1000, tolerance)),
        Contender("auto, K = 1", library("auto", 1, tolerance)),
        Contender("auto, K = 1000", library("auto", 1000, tolerance)),
        Contender("diagonal", library("diagonal", 1, tolerance)),
    ]


def measure(problem: LayerProblem, field_of: list[Contender], repeats: int, budget: float) -> list[Row]:
    """Every contender on one problem, taking turns; one that has used up its budget of seconds (and three turns)
    sits out the rest."""
    wanted = exact(problem)
    fresh: dict[str, list[float]] = {c.label: [] for c in field_of}
    reused: dict[str, list[float]] = {c.label: [] for c in field_of}
    prepared = {c.label: c.begin(problem) for c in field_of}
    rows = []
    for contender in field_of:
        kept, first = prepared[contender.label]
        note = kept.solvers[0].name if "auto" in contender.label and isinstance(kept, LayerFisher) else ""
        errors = relative_error(first, wanted[0]), relative_error(kept.solve(problem.later), wanted[1])
        rows.append(Row(contender.label, math.nan, math.nan, kept.nbytes(), *errors, note))
    for _ in range(3 * repeats):
        for contender in field_of:
            if _may_go_on(reused[contender.label], budget):
                kept = prepared[contender.label][0]
                start = time.perf_counter()
                kept.solve(problem.later)
                reused[contender.label].append(time.perf_counter() - start)
    prepared.clear()
    for _ in range(repeats):
        for contender in field_of:
            if _may_go_on(fresh[contender.label], budget):
                start = time.perf_counter()
                contender.begin(problem)
                fresh[contender.label].append(time.perf_counter() - start)
    for row in rows:
        row.fresh_ms = 1e3 * statistics.median(fresh[row.solver])
        row.reused_ms = 1e3 * statistics.median(reused[row.solver])
    return rows


def _may_go_on(seconds: list[float], budget: float) -> bool:
    return len(seconds) < 3 or sum(seconds) < budget


def choose_tolerance(problem: LayerProblem) -> float:
    """The loosest tolerance with which the conjugate solver, fresh and reused, stays within the wanted error."""
    wanted = exact(problem)
    for tolerance in TOLERANCES:
        errors = []
        for every in (1, 1000):
            kept, first = library("conjugate", every, tolerance)(problem)
            errors += [relative_error(first, wanted[0]), relative_error(kept.solve(problem.later), wanted[1])]
        if max(errors) <= WANTED_ERROR:
            return tolerance
    return TOLERANCES[-1]


def acceptance(problem: LayerProblem, rows: list[Row]) -> list[dict[str, Any]]:
    """The promises about the trained layer, each with what was measured."""
    by = {row.solver: row for row in rows}
    base, fresh, reused = by["textbook"], by["conjugate, K = 1"], by["conjugate, K = 1000"]
    n, _, l = problem.shape
    full = l * n * n * problem.parents.element_size()
    lines = [
        ("fresh natural gradient, times faster than textbook", 40, base.fresh_ms / fresh.fresh_ms, fresh),
        ("reused natural gradient, times faster than textbook", 10, base.reused_ms / reused.reused_ms, reused),
        ("bytes kept, K = 1, times fewer than l·n² numbers", 10, full / fresh.kept_bytes, fresh),
        ("bytes kept, K = 1000, times fewer than l·n² numbers", 10, full / reused.kept_bytes, reused),
    ]
    return [
        {"claim": claim, "at_least": least, "measured": value, "error": row.worst, "holds": _holds(value, least, row)}
        for claim, least, value, row in lines
    ]


def _holds(value: float, least: float, row: Row) -> bool:
    return value >= least and row.worst <= WANTED_ERROR


def synthetic(n: int, d: int, l: int, concentrated: bool, seed: int = 0) -> LayerProblem:
    """A layer like a trained one: correlated parents of ±1, units from active to saturated, and sample weights that
    are equal, or concentrated on about one of every ten samples, as importance weights are."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    def gradient(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        causes = normal(n, 16) @ loadings + normal(n, d - 1)
        parents = torch.cat([causes.sign(), torch.ones(n, 1)], 1)
        rho = torch.sigmoid(parents @ maps + biases)
        child = torch.bernoulli(rho, generator=g)
        return parents, weights[:, None] * rho * (1 - rho), ((rho - child) * weights[:, None]).T @ parents

    loadings = normal(16, d - 1) / 2
    maps, biases = normal(d, l) * (2 / d**0.5), -8 * torch.rand(l, generator=g)
    spread = 6.0 if concentrated else 0.0
    samples = torch.softmax(spread * normal(-(-n // 10), 10), 1).flatten()[:n]
    samples = samples / samples.sum()
    parents, weights, own = gradient(samples)
    later = gradient(samples)[2]
    name = "concentrated" if concentrated else "equal"
    return LayerProblem(name, parents, weights, own, later, 0.2, samples)


def sweep(sizes: dict[str, tuple[int, ...]], centre: dict[str, int], tolerance: float, options: Any) -> list[Row]:
    """Every contender on layers that differ from the centre in n, d or l."""
    rows = []
    field_of = [c for c in contenders(tolerance) if "auto" not in c.label]
    for axis, concentrated in itertools.product(sizes, (True, False)):
        for size in sizes[axis]:
            place = {**centre, axis: size}
            problem = synthetic(**place, concentrated=concentrated)
            fitting = [c for c in field_of if c.keeps(*problem.shape) <= LARGEST]
            for row in measure(problem, fitting, options.sweep_repeats, 6.0):
                row.place = {"axis": axis, "size": size, "weights": problem.name}
                rows.append(row)
            where = ", ".join(f"{k} = {v}" for k, v in place.items())
            print(f"  measured {problem.name} weights, {where}", flush=True)
    return rows


def exponents(rows: list[Row]) -> list[dict[str, Any]]:
    """Least-squares slopes of log time against log size, for each solver, axis and kind of weights."""
    found = []
    keys = dict.fromkeys((row.solver, row.place["weights"], row.place["axis"]) for row in rows)
    for solver, weights, axis in keys:
        line = [r for r in rows if (r.solver, r.place["weights"], r.place["axis"]) == (solver, weights, axis)]
        sizes = [float(r.place["size"]) for r in line]
        entry = {"solver": solver, "weights": weights, "axis": axis, "from": sizes[0], "to": sizes[-1]}
        for name in ("fresh_ms", "reused_ms", "kept_bytes"):
            entry[name] = _slope(sizes, [getattr(r, name) for r in line])
        entry["worst_error"] = max(r.worst for r in line)
        found.append(entry)
    return found


def _slope(x: list[float], y: list[float]) -> float:
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def print_main(rows: list[Row]) -> None:
    base = rows[0]
    print(f"\n{'':21s}{'fresh':>12s}{'':9s}{'reused':>12s}{'':9s}{'kept':>10s}{'error':>10s}{'reused':>10s}")
    for r in rows:
        print(
            f"{r.solver:21s}{r.fresh_ms:9.1f} ms{base.fresh_ms / r.fresh_ms:8.1f}×"
            f"{r.reused_ms:9.2f} ms{base.reused_ms / r.reused_ms:8.1f}×{r.kept_bytes / 1e6:7.1f} MB"
            f"{r.error:10.1e}{r.later_error:10.1e}" + (f"  chose {r.note}" if r.note else "")
        )


def print_exponents(entries: list[dict[str, Any]], centre: dict[str, int]) -> None:
    """One line per solver: how fresh and reused times grow with each size."""
    print(f"\nGrowth exponents around n = {centre['n']}, d = {centre['d']}, l = {centre['l']} (time ∝ sizeᵉ):")
    print(f"{'':21s}{'':15s}{'fresh:':>9s} n{'d':>7s}{'l':>7s}{'reused:':>11s} n{'d':>7s}{'l':>7s}{'worst error':>14s}")
    for solver, weights in dict.fromkeys((e["solver"], e["weights"]) for e in entries):
        mine = {e["axis"]: e for e in entries if (e["solver"], e["weights"]) == (solver, weights)}
        fresh, reused = ([mine[axis][name] for axis in "ndl"] for name in ("fresh_ms", "reused_ms"))
        worst = max(e["worst_error"] for e in mine.values())
        print(
            f"{solver:21s}{weights:15s}{fresh[0]:11.1f}{fresh[1]:7.1f}{fresh[2]:7.1f}"
            f"{reused[0]:13.1f}{reused[1]:7.1f}{reused[2]:7.1f}{worst:14.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny problems, embedded data, no promises checked")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, help="rounds on the trained layer (20; quick: 3)")
    parser.add_argument("--sweep-repeats", type=int, help="rounds on each synthetic layer (7; quick: 2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of solvers.json and solvers.png")
    options = parser.parse_args()
    need(["matplotlib"])
    options.repeats = options.repeats or (3 if options.quick else 20)
    options.sweep_repeats = options.sweep_repeats or (2 if options.quick else 7)
    torch.set_num_threads(options.threads)
    if options.quick:
        data = datasets.load("mini-mnist")
        problem = extract(train(data, (40, 20), 60), data, ("generative.1",))[0]
        centre = {"n": 32, "d": 32, "l": 32}
        steps: tuple[int, ...] = (16, 32, 64)
    else:
        try:
            problem = mnist_problems()[0]
        except datasets.DataError as error:
            sys.exit(f"{error} To use your own copy of MNIST, set DAGFISHER_DATA to the folder that holds mnist/.")
        centre = {"n": 256, "d": 256, "l": 256}
        steps = (128, 256, 512, 1024)
    print(f"{problem.describe()}\nthreads: {options.threads}, torch {torch.__version__}, float32")
    tolerance = choose_tolerance(problem)
    print(f"conjugate: tolerance {tolerance:g}, the loosest tried with an error of at most {WANTED_ERROR:g}")
    rows = measure(problem, contenders(tolerance), options.repeats, 60.0)
    print_main(rows)
    promises = [] if options.quick else acceptance(problem, rows)
    for line in promises:
        print(
            f"{'holds' if line['holds'] else 'FAILS'}: {line['claim']}: {line['measured']:.1f} "
            f"(at least {line['at_least']}), error {line['error']:.1e} (at most {WANTED_ERROR:g})"
        )
    growth = sweep(dict.fromkeys("ndl", steps), centre, tolerance, options)
    fits = exponents(growth)
    print_exponents(fits, centre)
    n, d, l = problem.shape
    result = {
        "threads": options.threads,
        "torch": torch.__version__,
        "problem": {
            "n": n,
            "d": d,
            "l": l,
            "damping": problem.damping,
            "effective_samples": problem.effective_samples,
            "saturated": problem.saturated,
        },
        "tolerance": tolerance,
        "trained_layer": [asdict(row) for row in rows],
        "acceptance": promises,
        "sweep": {"centre": centre, "rows": [asdict(row) for row in growth], "exponents": fits},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "solvers.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, options.out / "solvers.png")
    print(f"\nWritten: {options.out / 'solvers.json'}, {options.out / 'solvers.png'}")
    if not all(line["holds"] for line in promises):
        sys.exit("A promise does not hold here.")


if __name__ == "__main__":
    main()
