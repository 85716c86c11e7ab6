"""Black-box search by natural gradients against CMA-ES and an estimation-of-distribution algorithm.

    python benchmarks/search.py             # 30 minutes of one core; resumes where it stopped
    python benchmarks/search.py --table     # only the table and the picture, from the results so far

Evaluations until a value is within 1e-8 of the minimum, median of 11 runs. In real numbers all searches start at
(3, …, 3) with a deviation of 2; `cma` has its default settings, its restarts with doubled populations (IPOP), and the
same start. On bits the rival is UMDA: independent variables that are fitted to the better half of each generation. It
starts again, with a doubled population, by the same rule as `minimise`. Every search has the population that it comes
with, 100 on bits, and at most so many evaluations as the table says. Needs `pip install 'dagfisher[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from extras import need

from dagfisher import search
from dagfisher.app import table
from dagfisher.plots import FAINT, INK, line_styles
from dagfisher.search import Problem, SearchNetwork

RESULTS = Path(__file__).parent / "results"
RUNS, CLOSE, START, STD, BITS_POPULATION = 11, 1e-8, 3.0, 2.0, 100

PROBLEMS: dict[str, tuple[Problem, int]] = {
    **{f"{p.name}, {d}": (p, 200_000) for d in (10, 40) for p in (search.ellipsoid(d), search.rosenbrock(d))},
    "rotated Rastrigin, 10": (search.rastrigin(10), 400_000),
    "rotated Rastrigin, 40": (search.rastrigin(40), 1_500_000),
    "NK landscape, 30": (search.nk_landscape(30, 3), 200_000),
    "MaxSAT, 50": (search.max_sat(50, 200), 200_000),
}
Curve = list[tuple[int, float]]
"""(evaluations, least value so far less the minimum)."""


def natural(make: Callable[[int], SearchNetwork], population: int | None) -> Callable[..., Curve]:
    """A search with the networks that `make` gives for a number of dimensions."""

    def run(problem: Problem, limit: int, seed: int) -> Curve:
        found = search.minimise(
            problem,
            make(problem.dimensions),
            evaluations=limit,
            population=population,
            target=problem.least + CLOSE,
            restarts=99,
            generator=torch.Generator().manual_seed(seed),
        )
        return [(g.evaluations, g.best - problem.least) for g in found.history]

    return run


def cma_es(problem: Problem, limit: int, seed: int) -> Curve:
    import cma

    curve: Curve = []

    def values(states: Any) -> list[float]:
        found = problem(torch.as_tensor(states, dtype=torch.float64).reshape(-1, problem.dimensions))
        spent, best = curve[-1] if curve else (0, math.inf)
        curve.append((spent + len(found), min(best, float(found.min()) - problem.least)))
        return found.tolist()

    options = {"seed": seed + 1, "verbose": -9, "ftarget": problem.least + CLOSE, "maxfevals": limit}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cma.fmin2(None, [START] * problem.dimensions, STD, options, parallel_objective=values, restarts=9)
    return curve


def umda(problem: Problem, limit: int, seed: int) -> Curve:
    generator, curve, population = torch.Generator().manual_seed(seed), [], BITS_POPULATION
    best = math.inf
    while True:
        chances = torch.full((problem.dimensions,), 0.5, dtype=torch.float64)
        bests: deque[float] = deque(maxlen=10 + 30 * problem.dimensions // population)
        resting = False
        while not resting:
            x = torch.bernoulli(chances.expand(population, -1), generator=generator)
            values = problem(x)
            bests.append(float(values.min()))
            best = min(best, bests[-1] - problem.least)
            curve.append(((curve[-1][0] if curve else 0) + population, best))
            if best <= CLOSE or curve[-1][0] >= limit:
                return curve
            resting = len(bests) == bests.maxlen and max(*bests, float(values.max())) - min(bests) <= 1e-11
            chances = x[values.argsort()[: population // 2]].mean(0)
        population *= 2


REAL: dict[str, Callable[..., Curve]] = {
    "natural, full Gaussian": natural(lambda d: search.GaussianNetwork([START] * d, STD), None),
    "the same without paths": natural(lambda d: search.GaussianNetwork([START] * d, STD, cumulation=False), None),
    "CMA-ES": cma_es,
}
BITS: dict[str, Callable[..., Curve]] = {
    "natural, independent": natural(search.independent, BITS_POPULATION),
    "natural, chain": natural(search.chain, BITS_POPULATION),
    "natural, 3 parents": natural(lambda d: search.chain(d, parents=3), BITS_POPULATION),
    "natural, fully visible": natural(search.fully_visible, BITS_POPULATION),
    "UMDA": umda,
}


def methods(name: str) -> dict[str, Callable[..., Curve]]:
    """What takes part; without its paths, the natural search takes too long in 40 dimensions."""
    if name.startswith(("NK", "MaxSAT")):
        return BITS
    return {method: run for method, run in REAL.items() if "without" not in method or name.endswith("10")}


def thinned(curve: Curve) -> Curve:
    """About a hundred points, equally far apart in the logarithm of the evaluations, and the last."""
    kept: Curve = []
    for spent, value in curve:
        if not kept or spent >= 1.07 * kept[-1][0]:
            kept.append((spent, float(f"{value:.3g}")))
    return [*kept, (curve[-1][0], float(f"{curve[-1][1]:.3g}"))]


def run_all(path: Path) -> None:
    done = {(r["problem"], r["method"], r["seed"]) for r in read(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(RUNS):
        for name, (problem, limit) in PROBLEMS.items():
            for method, run in methods(name).items():
                if (name, method, seed) in done:
                    continue
                began = time.process_time()
                curve = run(problem, limit, seed)
                record = {"problem": name, "method": method, "seed": seed, "reached": curve[-1][1] <= CLOSE}
                seconds = round(time.process_time() - began, 1)
                record |= {"evaluations": curve[-1][0], "seconds": seconds, "curve": thinned(curve)}
                with path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(name, method, seed, record["evaluations"], record["reached"], f"{seconds} s", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show(records: list[dict[str, Any]]) -> str:
    """A line for each problem and method: median evaluations to the target, how many runs reached it, seconds."""
    lines = []
    for name, (_, limit) in PROBLEMS.items():
        for method in methods(name):
            runs = [r for r in records if (r["problem"], r["method"]) == (name, method)]
            if runs:
                median = statistics.median(r["evaluations"] if r["reached"] else math.inf for r in runs)
                shown = f"{median:,.0f}" if median < math.inf else f"> {limit:,}"
                reached = f"{sum(r['reached'] for r in runs)} of {len(runs)}"
                lines.append([name, method, shown, reached, f"{statistics.median(r['seconds'] for r in runs):.1f}"])
    return table(["problem", "method", "evaluations", "runs at the target", "seconds"], lines, left=2)


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """The median of the least value against evaluations, one panel for each problem."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 7.6), layout="constrained", facecolor="white")
    grid = figure.subplots(2, 4)
    order = [*(n for n in PROBLEMS if n.endswith("10")), "NK landscape, 30"]
    order += [*(n for n in PROBLEMS if n.endswith("40")), "MaxSAT, 50"]
    for axes, name in zip(grid.flat, order, strict=True):
        for method in methods(name):
            rivals = [*(BITS if method in BITS else REAL)]
            style = {**line_styles(rivals)[rivals.index(method)], "marker": None}
            curves = [r["curve"] for r in records if (r["problem"], r["method"]) == (name, method)]
            if not curves:
                continue
            along = sorted({spent for curve in curves for spent, _ in curve})
            middle = [statistics.median(_at(curve, spent) for curve in curves) for spent in along]
            shown = [(a, max(m, CLOSE)) for a, m in zip(along, middle, strict=True) if m < math.inf]
            axes.plot(*zip(*shown, strict=True), label=method, **style)
        axes.set_xscale("log")
        if not name.startswith(("NK", "MaxSAT")):
            axes.set_yscale("log")
        axes.set_title(name, color=INK, fontsize=11)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[1]:
        axes.set_xlabel("evaluations")
    for axes in grid[:, 0]:
        axes.set_ylabel("least value − minimum")
    for axes, side in ((grid[0, 0], "outside lower left"), (grid[0, 3], "outside lower right")):
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc=side, ncols=len(labels), frameon=False, fontsize=9)
    figure.suptitle("Black-box search: median of the runs", x=0.01, ha="left", fontweight="bold", color=INK)
    figure.savefig(path, dpi=120)


def _at(curve: Curve, spent: int) -> float:
    """The value after so many evaluations; a run that is over keeps its last."""
    value = math.inf
    for evaluations, found in curve:
        if evaluations > spent:
            break
        value = found
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print and draw what is there, run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "search.jsonl")
    arguments = parser.parse_args()
    need(["matplotlib"] if arguments.table else ["cma", "matplotlib"])
    torch.set_num_threads(1)
    if not arguments.table:
        run_all(arguments.out)
    records = read(arguments.out)
    print(show(records))
    draw(records, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
