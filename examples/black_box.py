"""Black-box search: a function whose values are all that is known, minimised by natural gradients.

    python examples/black_box.py                        # two tables, and runs/black_box.png; half a minute
    python examples/black_box.py --quick --out my.png   # fewer evaluations

Two searches. A bent valley in ten dimensions (Rosenbrock's), by a normal distribution whose covariance learns the shape
of the valley. And a formula of 200 clauses in 50 bits: how many clauses does an assignment violate? Three networks of
bits search, from independent ones to one in which each bit sees all before it.
"""

import argparse
from pathlib import Path

import torch

from dagfisher.app import table
from dagfisher.plots import COLOURS, FAINT, INK, NATURAL
from dagfisher.search import (
    GaussianNetwork,
    SearchNetwork,
    SearchResult,
    chain,
    fully_visible,
    independent,
    max_sat,
    minimise,
    rosenbrock,
)

CLOSE = 1e-8


def valley(cumulation: bool, evaluations: int) -> SearchResult:
    """Search the valley from (3, …, 3); with or without the paths of CMA-ES."""
    network = GaussianNetwork([3.0] * 10, std=2.0, cumulation=cumulation)
    generator = torch.Generator().manual_seed(0)
    return minimise(rosenbrock(10), network, evaluations=evaluations, target=CLOSE, generator=generator)


def formula(network: SearchNetwork, evaluations: int) -> SearchResult:
    """Search for an assignment that satisfies all clauses, with a larger population after every rest."""
    return minimise(
        max_sat(50, 200),
        network,
        evaluations=evaluations,
        population=100,
        target=0,
        restarts=10,
        generator=torch.Generator().manual_seed(0),
    )


def draw(panels: dict[str, dict[str, SearchResult]], out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained", facecolor="white")
    for axes, (title, results) in zip(figure.subplots(1, 2), panels.items()):
        for colour, dashes, (name, result) in zip((NATURAL, COLOURS[5], INK), ("-", "--", "-."), results.items()):
            spent = [g.evaluations for g in result.history]
            axes.plot(spent, [g.best for g in result.history], dashes, color=colour, linewidth=2, label=name)
            axes.plot(spent, [g.mean for g in result.history], color=colour, linewidth=0.8, alpha=0.6)
        axes.set(xlabel="evaluations", ylabel="value: least so far (thick), mean of a generation (thin)")
        axes.set_title(title, color=INK, fontsize=11)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        if "valley" in title:
            axes.set_yscale("log")
        else:
            axes.set_xscale("log")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/black_box.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    most = 1500 if options.quick else 100_000
    panels = {
        "a bent valley in ten dimensions": {
            "natural gradients and paths": valley(True, most),
            "natural gradients alone": valley(False, most),
        },
        "violated clauses of 200, 50 bits": {
            "independent": formula(independent(50), most),
            "chain": formula(chain(50), most),
            "fully visible": formula(fully_visible(50), most),
        },
    }
    for title, results in panels.items():
        lines = [
            [name, f"{r.evaluations:,}", f"{r.value:.2g}", str(r.restarts), r.reason] for name, r in results.items()
        ]
        print(table([title, "evaluations", "least value", "restarts", "ended by"], lines), end="\n\n")
    draw(panels, options.out)
