"""Softmax regression by Newton's method: the coupled Fisher block of a categorical variable, its diagonal, and Adam.

    python examples/softmax_regression.py                  # a table, and runs/softmax_regression.png; a few seconds
    python examples/softmax_regression.py --out my.png
    python examples/softmax_regression.py --quick          # a single learning rate for Adam, fewer steps of it

The data are synthetic: eight features on scales from 0.3 to 3, every two of which correlate at 0.8, and labels of ten
classes that a softmax regression on them has drawn. The Fisher information about the logits of a variable is
diag(π) − ππᵀ, and for a softmax regression the block that it gives is the Hessian of the loss, whatever the labels are.
So the natural gradient with lr=1 and a fresh Fisher matrix at each step is Newton's step. The block is singular, since
the same number added to all logits changes nothing; a tiny damping takes care of that. With coupled=False each logit
has a block of its own, with π(1−π). The true curvature is anything between nothing and twice what that diagonal says
(twice where two classes share all the probability). With lr=1 it may run away, as it does here; with less it is slow.
With nothing given the optimizer has momentum and keeps its steps short: half of the steps of Adam at the best of its
rates, in about the same time, and many more than Newton's method needs. All start from zero, see all the data at each
step, and go on until the loss is within 1e-6 of its minimum.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dagfisher
from dagfisher.app import table
from dagfisher.plots import FAINT, INK, line_styles

EXAMPLES, FEATURES, CLASSES = 1000, 8, 10
CLOSE = 1e-6  # nats per example
RATES = (0.3, 0.03, 0.1, 1.0)  # of Adam
NEWTON = {"damping": 1e-9, "solver": "dense"}


def make_data(seed: int) -> tuple[Tensor, Tensor]:
    """Correlated features of unequal scales, and the classes that a softmax regression on them has drawn."""
    generator = torch.Generator().manual_seed(seed)
    own, shared = (torch.randn(EXAMPLES, n, generator=generator, dtype=torch.float64) for n in (FEATURES, 1))
    standard = math.sqrt(0.2) * own + math.sqrt(0.8) * shared
    truth = torch.randn(FEATURES, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(standard @ truth, 1), 1, generator=generator).squeeze(1)
    return standard * torch.logspace(math.log10(0.3), math.log10(3), FEATURES, dtype=torch.float64), labels


def make_model() -> nn.Linear:
    model = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)  # the outputs are the logits of one variable
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def descend(model: nn.Linear, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, best: float, most: int) -> list[float]:
    """The excess of the loss over its minimum before the first step and after each, until it is close or far off."""
    excess: list[float] = []
    while True:
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        excess.append(loss.item() - best)
        if not CLOSE < excess[-1] < 1e3 or len(excess) > most:
            return excess
        loss.backward()
        opt.step()


def adam(x: Tensor, y: Tensor, best: float, most: int, lr: float) -> list[float]:
    model = make_model()
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    return descend(model, opt, x, y, best, most)


def natural(x: Tensor, y: Tensor, best: float, most: int, coupled: bool = True, **settings) -> list[float]:
    model = make_model()
    dagfisher.declare(model, "categorical", coupled=coupled)  # <- the two lines
    opt = dagfisher.DAGNaturalGradient(model.parameters(), **settings)  # <- the two lines
    return descend(model, opt, x, y, best, most)


def minimum(x: Tensor, y: Tensor) -> float:
    """The least loss, found without dagfisher: Newton's method with the Hessian from automatic differentiation."""

    def loss(w: Tensor) -> Tensor:
        parameters = w.reshape(FEATURES + 1, CLASSES - 1)
        logits = x @ parameters[:-1] + parameters[-1]
        return cross_entropy(torch.cat([logits, logits.new_zeros(len(x), 1)], 1), y)  # the last class is the reference

    w = torch.zeros((FEATURES + 1) * (CLASSES - 1), dtype=torch.float64)
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
        axes.plot(excess, label=label, **{**style, "marker": marker}, zorder=3)
    axes.axhline(CLOSE, color=INK, linestyle="--", linewidth=1)
    axes.text(0.1, CLOSE * 1.2, "close enough", color=INK, va="bottom")
    axes.set_xscale("symlog", linthresh=1)
    axes.set(yscale="log", ylim=(1e-11, 100))
    ticks = [0, 1, 10, 100, 1000]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(0, 1.3 * max(map(len, curves.values())))
    axes.set(xlabel="steps", ylabel="loss above its minimum, nats per example; cut at 100")
    axes.set_title("Softmax regression, all data at each step", loc="left", fontweight="bold", color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/softmax_regression.png"), help="the picture to write")
    parser.add_argument("--steps", type=int, default=5000, help="the most that are taken (5000)")
    parser.add_argument("--seed", type=int, default=0, help="of the data")
    parser.add_argument("--quick", action="store_true", help="a single learning rate for Adam, 200 steps at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = make_data(options.seed)
    best, most = minimum(x, y), 200 if options.quick else options.steps
    natural(x, y, best, 1)  # what is done once in a process is not on the clock
    ways = {"natural, coupled, lr 1": partial(natural, lr=1.0, **NEWTON)}
    for lr in (1.0, 0.8, 0.5):
        ways[f"natural, diagonal, lr {lr:g}"] = partial(natural, coupled=False, lr=lr, **NEWTON)
    ways["natural, as it comes"] = natural
    ways |= {f"Adam, lr {lr}": partial(adam, lr=lr) for lr in RATES[: 1 if options.quick else None]}
    runs, spent = {}, {}
    for label, way in ways.items():
        began = time.process_time()
        runs[label] = way(x, y, best, most)
        spent[label] = time.process_time() - began
    lines = []
    for label, excess in runs.items():
        steps = f"more than {most:,}" if excess[-1] < 1e3 else "runs away"
        steps = f"{len(excess) - 1:,}" if excess[-1] < CLOSE else steps
        lines.append([label, steps, f"{spent[label]:.3f}", f"{excess[-1]:.1e}"])
    print(table(["optimizer", f"steps to {CLOSE:.0e}", "seconds", "excess at the end"], lines))
    adams = {label: excess for label, excess in runs.items() if label.startswith("Adam")}
    fastest = min(adams, key=lambda label: (adams[label][-1] > CLOSE, len(adams[label])))
    shown = ("natural, coupled, lr 1", "natural, diagonal, lr 0.8", fastest, "natural, diagonal, lr 1")
    shown += ("natural, as it comes",)
    draw({label: runs[label] for label in shown}, options.out)
