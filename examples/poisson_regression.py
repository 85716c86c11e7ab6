"""Poisson regression: five counts from the same features, each with a Fisher block of its own.

    python examples/poisson_regression.py                  # a table, and runs/poisson_regression.png; half a minute
    python examples/poisson_regression.py --out my.png
    python examples/poisson_regression.py --quick          # a single learning rate for plain descent, fewer steps of it

The data are five counts, with rates around 1 to 5, that depend on six features on scales from 0.3 to 3, every two of
which correlate at 0.8. One linear layer gives the five log rates. The Hessian of the loss is block diagonal, a block
for each count, and the Fisher information is the same matrix: the natural gradient with lr=1, no damping and a fresh
Fisher matrix at each step is Newton's step for all five at once. Both versions start from the mean counts, see all the
data at each step, and go on until the loss is within 1e-6 of its minimum. A rate is an exponential, and Newton's step
has no safeguard: from zero weights and biases it would first overshoot by far, and then come back slowly. With nothing
given the optimizer has momentum and keeps its steps short: some 60 steps instead of 3, half of what Adam takes at the
best of its rates, and about the same time.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import poisson_nll_loss

import dagfisher
from dagfisher.app import table
from dagfisher.plots import FAINT, INK, line_styles

EXAMPLES, FEATURES = 1000, 6
LEVELS = (1, 2, 3, 4, 5)  # the rates of the five counts at the centre of the features
CLOSE = 1e-6  # nats per example
RATES = (0.002, 0.004, 0.008, 0.016, 0.032)
NEWTON = {"lr": 1.0, "damping": 0, "solver": "dense"}
ADAM = (0.1, 0.01, 0.03, 0.3)  # its learning rates


def make_data(seed: int) -> tuple[Tensor, Tensor]:
    """Correlated features of unequal scales, and counts that a Poisson model with such features has drawn."""
    generator = torch.Generator().manual_seed(seed)
    own, shared = (torch.randn(EXAMPLES, n, generator=generator, dtype=torch.float64) for n in (FEATURES, 1))
    standard = math.sqrt(0.2) * own + math.sqrt(0.8) * shared
    truth = 0.15 * torch.randn(FEATURES, len(LEVELS), generator=generator, dtype=torch.float64)
    rates = torch.exp(standard @ truth) * torch.tensor(LEVELS, dtype=torch.float64)
    scales = torch.logspace(math.log10(0.3), math.log10(3), FEATURES, dtype=torch.float64)
    return standard * scales, torch.poisson(rates, generator=generator)


def make_model(y: Tensor) -> nn.Linear:
    model = nn.Linear(FEATURES, len(LEVELS), dtype=torch.float64)  # the outputs are log rates
    nn.init.zeros_(model.weight)
    model.bias.data = y.mean(0).log()
    return model


def negative_log_prob(log_rates: Tensor, y: Tensor) -> Tensor:
    """Summed over the counts, averaged over the examples; without log y!, which no parameter changes."""
    return poisson_nll_loss(log_rates, y, reduction="sum") / len(y)


def descend(model: nn.Linear, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, best: float, most: int) -> list[float]:
    """The excess of the loss over its minimum before the first step and after each, until it is close."""
    excess: list[float] = []
    while True:
        opt.zero_grad()
        loss = negative_log_prob(model(x), y)
        excess.append(loss.item() - best)
        if excess[-1] < CLOSE or not math.isfinite(excess[-1]) or len(excess) > most:
            return excess
        loss.backward()
        opt.step()


def plain(x: Tensor, y: Tensor, best: float, most: int, lr: float, optimizer=torch.optim.SGD) -> list[float]:
    model = make_model(y)
    opt = optimizer(model.parameters(), lr=lr)
    return descend(model, opt, x, y, best, most)


def natural(x: Tensor, y: Tensor, best: float, most: int, **settings) -> list[float]:
    model = make_model(y)
    dagfisher.declare(model, "poisson")  # <- the two lines
    opt = dagfisher.DAGNaturalGradient(model.parameters(), **settings)  # <- the two lines
    return descend(model, opt, x, y, best, most)


def minimum(x: Tensor, y: Tensor) -> float:
    """The least loss, found without dagfisher: Newton's method for each count, derivatives by hand, to convergence."""
    u = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    w = torch.zeros(u.shape[1], y.shape[1], dtype=x.dtype)
    w[-1] = y.mean(0).log()
    for _ in range(30):
        rates = torch.exp(u @ w)
        for j in range(y.shape[1]):
            w[:, j] -= torch.linalg.solve(u.T @ (rates[:, j, None] * u), u.T @ (rates[:, j] - y[:, j]))
    return float(negative_log_prob(u @ w, y))


def draw(curves: dict[str, list[float]], out: Path) -> None:
    """The excess loss of each curve against the number of steps, both on logarithmic scales."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for (label, excess), style in zip(curves.items(), line_styles(list(curves))):
        marker = "o" if len(excess) < 30 else ""
        axes.plot(excess, label=label, **{**style, "marker": marker}, clip_on=False, zorder=3)
    axes.axhline(CLOSE, color=INK, linestyle="--", linewidth=1)
    axes.text(0.1, CLOSE * 1.2, "close enough", color=INK, va="bottom")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("log")
    ticks = [0, 1, 10, 100, 1000, 10_000]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(0, 1.3 * max(map(len, curves.values())))
    axes.set(xlabel="steps", ylabel="loss above its minimum, nats per example")
    axes.set_title("Poisson regression of five counts, all data at each step", loc="left", fontweight="bold", color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/poisson_regression.png"), help="the picture to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = make_data(options.seed)
    best, most = minimum(x, y), 300 if options.quick else 10_000
    natural(x, y, best, 1)  # what is done once in a process is not on the clock
    ways = {f"plain, lr {lr}": partial(plain, lr=lr) for lr in (RATES[1:2] if options.quick else RATES)}
    ways |= {"natural, lr 1": partial(natural, **NEWTON), "natural, as it comes": natural}
    for lr in ADAM[:1] if options.quick else ADAM:
        ways[f"Adam, lr {lr}"] = partial(plain, lr=lr, optimizer=torch.optim.Adam)
    runs, spent = {}, {}
    for label, way in ways.items():
        began = time.process_time()
        runs[label] = way(x, y, best, most)
        spent[label] = time.process_time() - began
    lines = []
    for label, excess in runs.items():
        steps = "diverges" if not math.isfinite(excess[-1]) else f"more than {most}"
        steps = str(len(excess) - 1) if excess[-1] < CLOSE else steps
        lines.append([label, steps, f"{spent[label]:.3f}", f"{excess[-1]:.1e}"])
    print(table(["gradient", f"steps to {CLOSE:.0e}", "seconds", "excess at the end"], lines))
    shown = {label: excess for label, excess in runs.items() if label.startswith("natural")}
    for kind in ("Adam", "plain"):
        fastest = min(
            (r for r in runs if r.startswith(kind) and math.isfinite(runs[r][-1])),
            key=lambda r: (len(runs[r]), runs[r][-1]),
        )
        shown[f"{fastest}, the fastest"] = runs[fastest]
    draw(shown, options.out)
