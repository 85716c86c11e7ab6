"""Logistic regression as one Bernoulli unit: with two lines changed, gradient descent becomes Newton's method.

    python examples/logistic_regression.py                 # a table, and runs/logistic_regression.png; twenty seconds
    python examples/logistic_regression.py --out my.png
    python examples/logistic_regression.py --quick         # a single learning rate for plain descent, fewer steps of it

The data have eight features on scales from 0.3 to 3, and every two of them correlate at 0.8. For a logistic regression
the Fisher information of the unit is the Hessian of the loss, whatever the labels are. So the natural gradient with
lr=1, no damping and a fresh Fisher matrix at each step is Newton's step, also known as iteratively reweighted least
squares. Both versions start from zero, see all the data at each step, and go on until the loss is within 1e-6 of its
minimum. Newton's step has no safeguard: where it starts far from the minimum, or where the labels are separable, keep
some damping. With nothing given the optimizer looks after such things itself, with momentum and steps that are kept
short, which has its price in a problem as easy as this: some 50 steps instead of 4, and as long as Adam takes at the
best of its rates, whose steps are cheaper and twice as many.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher.app import table
from dagfisher.plots import FAINT, INK, line_styles

EXAMPLES, FEATURES = 1000, 8
CLOSE = 1e-6  # nats per example
RATES = (0.1, 0.2, 0.4, 0.8, 1.6)
NEWTON = {"lr": 1.0, "damping": 0, "solver": "dense"}
ADAM = (0.3, 0.03, 0.1, 1.0)  # its learning rates


def make_data(seed: int) -> tuple[Tensor, Tensor]:
    """Correlated features of unequal scales, and labels that a logistic model with such features has drawn."""
    generator = torch.Generator().manual_seed(seed)
    own, shared = (torch.randn(EXAMPLES, n, generator=generator, dtype=torch.float64) for n in (FEATURES, 1))
    standard = math.sqrt(0.2) * own + math.sqrt(0.8) * shared
    truth = torch.randn(FEATURES, 1, generator=generator, dtype=torch.float64)
    labels = torch.bernoulli(torch.sigmoid(standard @ truth), generator=generator)
    return standard * torch.logspace(math.log10(0.3), math.log10(3), FEATURES, dtype=torch.float64), labels


def make_model() -> nn.Linear:
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)  # the output is the logit of the one unit
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def descend(model: nn.Linear, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, best: float, most: int) -> list[float]:
    """The excess of the loss over its minimum before the first step and after each, until it is close."""
    excess: list[float] = []
    while True:
        opt.zero_grad()
        loss = binary_cross_entropy_with_logits(model(x), y)
        excess.append(loss.item() - best)
        if excess[-1] < CLOSE or len(excess) > most:
            return excess
        loss.backward()
        opt.step()


def plain(x: Tensor, y: Tensor, best: float, most: int, lr: float, optimizer=torch.optim.SGD) -> list[float]:
    model = make_model()
    opt = optimizer(model.parameters(), lr=lr)
    return descend(model, opt, x, y, best, most)


def natural(x: Tensor, y: Tensor, best: float, most: int, **settings) -> list[float]:
    model = make_model()
    dagfisher.declare(model, "bernoulli")  # <- the two lines
    opt = dagfisher.DAGNaturalGradient(model.parameters(), **settings)  # <- the two lines
    return descend(model, opt, x, y, best, most)


def minimum(x: Tensor, y: Tensor) -> float:
    """The least loss, found without dagfisher: Newton's method with the Hessian from automatic differentiation."""

    def loss(w: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(x @ w[:-1] + w[-1], y[:, 0])

    w = torch.zeros(FEATURES + 1, dtype=torch.float64)
    for _ in range(20):
        gradient = torch.autograd.functional.jacobian(loss, w)
        w = w - torch.linalg.solve(torch.autograd.functional.hessian(loss, w), gradient)
    return float(loss(w))


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
    axes.set_title("Logistic regression, all data at each step", loc="left", fontweight="bold", color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/logistic_regression.png"), help="the picture to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = make_data(options.seed)
    best, most = minimum(x, y), 300 if options.quick else 10_000
    natural(x, y, best, 1)  # what is done once in a process is not on the clock
    ways = {f"plain, lr {lr}": partial(plain, lr=lr) for lr in (RATES[2:3] if options.quick else RATES)}
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
        steps = str(len(excess) - 1) if excess[-1] < CLOSE else f"more than {most}"
        lines.append([label, steps, f"{spent[label]:.3f}", f"{excess[-1]:.1e}"])
    print(table(["gradient", f"steps to {CLOSE:.0e}", "seconds", "excess at the end"], lines))
    shown = {label: excess for label, excess in runs.items() if label.startswith("natural")}
    for kind in ("Adam", "plain"):
        fastest = min((r for r in runs if r.startswith(kind)), key=lambda r: (len(runs[r]), runs[r][-1]))
        shown[f"{fastest}, the fastest"] = runs[fastest]
    draw(shown, options.out)
