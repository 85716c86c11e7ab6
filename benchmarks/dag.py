"""What masks and coupled logits cost: masked blocks beside dense ones, coupled ones beside their diagonal.

    python benchmarks/dag.py                # about three minutes; writes results/dag.json
    python benchmarks/dag.py --quick        # seconds; for trying it out
    python benchmarks/dag.py --table        # the table of what was measured

Masked: a fresh natural gradient of 196 units with 196 parents and 500 samples of miniMNIST, damping 0.1, float32. Each
pixel is a logistic regression on the pixels before it (a strict lower triangle), or on a random half of the others.
Wanted: at least 8 times as fast as dense blocks, at an error of at most 1 % against a dense solve in float64. The
tolerance is the loosest of a few that has this error.

Coupled: one variable of 10 classes with 300 parents, 500 samples, damping 0.1; a natural gradient with what was
prepared for another one, tolerance 0.02, the default. The Fisher is kept for K steps, and "auto" chooses the solver, of
the coupled blocks as of the diagonal (coupled=False). Wanted: at most 3 times as long as the diagonal. For a large K
both keep inverses and need no iterations. The table has the coupled conjugate solver for every K as well. Errors are
against dense solves of the solver's own blocks in float64.

The contenders take turns; times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.app import table
from dagfisher.fisher.choose import solver_for
from dagfisher.nn import MaskedBernoulliLinear
from dagfisher.solvers import CoupledConjugate, CoupledProblem, Dense, MaskedConjugate, MaskedProblem, RowProblem

RESULTS = Path(__file__).parent / "results" / "dag.json"
SAMPLES, DAMPING = 500, 0.1
WANTED_ERROR, WANTED_SPEED, WANTED_SLOWNESS = 1e-2, 8.0, 3.0
TOLERANCES = (5e-2, 2e-2, 1e-2, 5e-3, 2e-3)
CLASSES, PARENTS = 10, 300


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def take_turns(contenders: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, float]:
    """The median milliseconds of each contender, which takes so many turns in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (run, turns) in contenders.items():
            for _ in range(turns):
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(series) for name, series in seconds.items()}


def masks() -> dict[str, Tensor]:
    half = torch.rand(196, 196, generator=torch.Generator().manual_seed(0)) < 0.5
    return {"strict lower triangle": torch.ones(196, 196).tril(-1).bool(), "random half": half.fill_diagonal_(False)}


def masked_problem(mask: Tensor) -> Callable[..., MaskedProblem]:
    """The problem of a new minibatch, after ten natural steps, in a dtype and with a tolerance."""
    data = datasets.load("mini-mnist")
    net = MaskedBernoulliLinear(mask, bias=False)
    torch.nn.init.zeros_(net.weight)
    optimizer = DAGNaturalGradient(net.parameters(), lr=1.0, damping=DAMPING)
    batches = data.batches(SAMPLES, seed=0, epoch=0)
    for x, _ in zip(batches, range(10), strict=False):
        optimizer.zero_grad()
        (-net.log_prob(x, x).mean()).backward()
        optimizer.step()
    x = next(batches)
    with torch.no_grad():
        rho = torch.sigmoid(net(x))
    q, gradient = rho * (1 - rho) / len(x), (rho - x).T @ x / len(x) * mask

    def problem(tolerance: float = 1e-2, dtype: torch.dtype = torch.float32) -> MaskedProblem:
        return MaskedProblem(x.to(dtype), q.to(dtype), mask, DAMPING, gradient.to(dtype), tolerance=tolerance)

    return problem


def measure_masked(name: str, mask: Tensor, rounds: int, threads: tuple[int, ...]) -> list[dict[str, Any]]:
    problem = masked_problem(mask)
    wanted = Dense.begin(problem(dtype=torch.float64))[1]
    for tolerance in TOLERANCES:
        solver, found = MaskedConjugate.begin(problem(tolerance))
        if relative_error(found, wanted) <= WANTED_ERROR:
            break
    dense_error = relative_error(Dense.begin(problem())[1], wanted)
    rows = []
    for count in threads:
        torch.set_num_threads(count)
        own = problem(tolerance)
        contenders: dict[str, tuple[Callable[[], object], int]] = {
            "conjugate": (partial(MaskedConjugate.begin, own), 8),
            "dense": (partial(Dense.begin, own), 1),
        }
        took = take_turns(contenders, rounds)
        rows.append(
            {
                "mask": name,
                "threads": count,
                "tolerance": tolerance,
                "iterations": solver.iterations,
                "error": relative_error(found, wanted),
                "dense_error": dense_error,
                "ms": took["conjugate"],
                "dense_ms": took["dense"],
                "times_faster": took["dense"] / took["conjugate"],
            }
        )
    return rows


def categorical(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Correlated parents of ±1 and a constant 1, class probabilities, and the gradient of labels drawn from them."""
    g, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(100)
    causes = torch.randn(SAMPLES, 16, generator=g) @ torch.randn(16, PARENTS - 1, generator=fixed) / 2
    signs = (causes + torch.randn(SAMPLES, PARENTS - 1, generator=g)).sign()
    parents = torch.cat([signs, torch.ones(SAMPLES, 1)], 1)
    pi = torch.softmax(parents @ torch.randn(PARENTS, CLASSES, generator=fixed) * (2 / PARENTS**0.5), 1)
    labels = torch.nn.functional.one_hot(torch.multinomial(pi, 1, generator=g).squeeze(1), CLASSES)
    return parents, pi, (pi - labels).T @ parents / SAMPLES


def measure_coupled(every: int, rounds: int, threads: tuple[int, ...]) -> list[dict[str, Any]]:
    (u, pi, gradient), later = categorical(0), categorical(1)[2]
    shares = torch.full((SAMPLES,), 1 / SAMPLES)
    diagonal_weights = shares[:, None] * pi * (1 - pi)

    def problems(dtype: torch.dtype) -> tuple[CoupledProblem, RowProblem]:
        kept: dict[str, Any] = {"tolerance": 0.02, "update_every": every}
        parents, own = u.to(dtype), gradient.to(dtype)
        coupled = CoupledProblem(parents, pi.to(dtype), shares.to(dtype), CLASSES, DAMPING, own, **kept)
        return coupled, RowProblem(parents, diagonal_weights.to(dtype), DAMPING, own, **kept)

    coupled_problem, diagonal_problem = problems(torch.float32)
    chosen = solver_for(coupled_problem, "auto"), solver_for(diagonal_problem, "auto")
    solvers = {
        "coupled": chosen[0].begin(coupled_problem)[0],
        "conjugate": CoupledConjugate.begin(coupled_problem)[0],
        "diagonal": chosen[1].begin(diagonal_problem)[0],
    }
    exact = [Dense.prepare(problem).solve(later.double()) for problem in problems(torch.float64)]
    rows = []
    for count in threads:
        torch.set_num_threads(count)
        took = take_turns({name: (partial(solver.solve, later), 1) for name, solver in solvers.items()}, 10 * rounds)
        for name in ("coupled", "conjugate") if chosen[0] is not CoupledConjugate else ("coupled",):
            rows.append(
                {
                    "update_every": every,
                    "threads": count,
                    "solver": solvers[name].name,
                    "auto": name == "coupled",
                    "diagonal_solver": solvers["diagonal"].name,
                    "iterations": getattr(solvers[name], "iterations", 0),
                    "diagonal_iterations": getattr(solvers["diagonal"], "iterations", 0),
                    "error": relative_error(solvers[name].solve(later), exact[0]),
                    "diagonal_error": relative_error(solvers["diagonal"].solve(later), exact[1]),
                    "ms": took[name],
                    "diagonal_ms": took["diagonal"],
                    "times_slower": took[name] / took["diagonal"],
                }
            )
    return rows


def tables(result: dict[str, Any]) -> str:
    """What was measured, as text."""
    machine = result["machine"]
    masked = [
        [
            *(row["mask"], str(row["threads"]), f"{row['ms']:.1f}", f"{row['dense_ms']:.0f}"),
            *(f"{row['times_faster']:.0f}", f"{row['tolerance']:g}", str(row["iterations"]), f"{row['error']:.1e}"),
        ]
        for row in result["masked"]
    ]
    coupled = [
        [
            *(f"K = {row['update_every']}, {row['solver']}{', chosen' * row['auto']}", str(row["threads"])),
            *(f"{row['ms']:.2f}", f"{row['diagonal_ms']:.2f}", f"{row['times_slower']:.2f}"),
            *(str(row["iterations"]), str(row["diagonal_iterations"])),
            *(f"{row['error']:.1e}", f"{row['diagonal_error']:.1e}"),
        ]
        for row in result["coupled"]
    ]
    first = ["masked, fresh", "threads", "ms", "dense, ms", "times as fast", "tolerance", "iterations", "error"]
    second = ["coupled, reused", "threads", "ms", "diagonal, ms", "times as long", "iterations", "of diagonal"]
    return "\n\n".join(
        [
            f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}",
            table(first, masked),
            table([*second, "error", "of diagonal"], coupled),
            "\n".join(f"{'holds' if line['holds'] else 'FAILS'}: {line['claim']}" for line in result["acceptance"]),
        ]
    )


def acceptance(masked: list[dict[str, Any]], coupled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The promises, each with the worst that was measured."""
    faster, error = min(row["times_faster"] for row in masked), max(row["error"] for row in masked)
    slower = max(row["times_slower"] for row in coupled if row["auto"])
    lines = [
        (f"masked at least {WANTED_SPEED:g} times as fast as dense blocks: {faster:.1f}", faster >= WANTED_SPEED),
        (f"masked error at most {WANTED_ERROR:.0%}: {error:.2%}", error <= WANTED_ERROR),
        (f"coupled at most {WANTED_SLOWNESS:g} times the diagonal: {slower:.2f}", slower <= WANTED_SLOWNESS),
    ]
    return [{"claim": claim, "holds": holds} for claim, holds in lines]


def processor() -> str:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the figures are written, or read from")
    parser.add_argument("--rounds", type=int, default=20, help="turns of the dense solver (20)")
    parser.add_argument("--quick", action="store_true", help="two rounds, one thread")
    parser.add_argument("--table", action="store_true", help="show what was measured and measure nothing")
    options = parser.parse_args()
    if not options.table:
        threads, rounds = ((1,), 2) if options.quick else ((1, 2), options.rounds)
        torch.set_num_threads(1)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        masked = [row for name, mask in masks().items() for row in measure_masked(name, mask, rounds, threads)]
        coupled = [row for every in (1, 10, 100, 1000) for row in measure_coupled(every, rounds, threads)]
        machine = {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load_before": load,
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        result = {
            "machine": machine,
            "rounds": rounds,
            "masked": masked,
            "coupled": coupled,
            "acceptance": acceptance(masked, coupled),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(tables(json.loads(options.out.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
