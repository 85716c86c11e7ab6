"""A recurrent network of binary units: one cell is called at every time, and its Fisher blocks are summed over time.

    python examples/sequence.py                        # a table, and runs/sequence.png; half a minute
    python examples/sequence.py --quick                # a single learning rate for Adam, at most 100 steps of it

Eight units are 0 or 1, and the states at time t are drawn given those at t − 1, with the same weights at all times. A
sequence uses the weights T times, so its score is a sum over time and the block of a unit too: `calls="positions"`. By
default the calls would be further samples, whose blocks are averaged: T times too small, and the step T times too long.
The sequences come from such a network, a chain of 256 states, so that their entropy and the divergence of any network
from the truth are sums over states, without sampling. At the least loss on N sequences it is about parameters/2N.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits

import dagfisher
from dagfisher.app import table
from dagfisher.plots import line_styles

UNITS, TIMES, SEQUENCES = 8, 20, 500
CLOSE, DAMPING = 1e-6, 1e-3  # nats per sequence
STATES = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * UNITS)  # all 256


def make_truth() -> nn.Linear:
    """Units that tend to stay as they are, and excite or inhibit each other."""
    torch.manual_seed(0)
    cell = nn.Linear(UNITS, UNITS, dtype=torch.float64).requires_grad_(False)
    cell.weight.copy_(torch.randn(UNITS, UNITS) + 4 * torch.eye(UNITS))
    cell.bias.copy_(-0.5 * cell.weight.sum(1))  # on and off are about equally likely
    return cell


@torch.no_grad()
def sample(cell: nn.Linear, count: int, times: int, seed: int) -> Tensor:
    """Sequences, (count × times × units), that begin after all units were off."""
    generator, states = torch.Generator().manual_seed(seed), [torch.zeros(count, UNITS, dtype=torch.float64)]
    for _ in range(times):
        states.append(torch.bernoulli(torch.sigmoid(cell(states[-1])), generator=generator))
    return torch.stack(states[1:], 1)


def loss(cell: nn.Linear, x: Tensor) -> Tensor:
    """−log p of a sequence, the mean over sequences, with one call of the cell at each time."""
    states = [torch.zeros_like(x[:, 0]), *x.unbind(1)]
    given = [binary_cross_entropy_with_logits(cell(a), b, reduction="sum") for a, b in zip(states, states[1:])]
    return torch.stack(given).sum() / len(x)


@torch.no_grad()
def exact(truth: nn.Linear, cell: nn.Linear) -> tuple[float, float, float]:
    """Exact, of sequences of the truth: their entropy, the divergence of the cell from it, the entropy rate."""
    q = torch.sigmoid(truth(STATES))
    entropy = binary_cross_entropy(q, q, reduction="none").sum(1)
    divergence = binary_cross_entropy_with_logits(cell(STATES), q, reduction="none").sum(1) - entropy
    step = torch.exp(torch.log(q) @ STATES.T + torch.log(1 - q) @ (1 - STATES).T)  # (from × to)
    now, before = (STATES.sum(1) == 0).to(q.dtype), torch.zeros_like(q[:, 0])  # it begins with all units off
    for _ in range(TIMES):
        before, now = before + now, now @ step
    return float(before @ entropy), float(before @ divergence), float(now @ torch.matrix_power(step, 10_000) @ entropy)


def minimum(x: Tensor) -> float:
    """The least loss, found without dagfisher: Newton's method, all times of all sequences as rows."""
    before, now = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1).flatten(0, 1), x.flatten(0, 1)
    u, w = nn.functional.pad(before, (0, 1), value=1.0), torch.zeros(UNITS, UNITS + 1, 1, dtype=x.dtype)
    for _ in range(20):
        p = torch.sigmoid(u @ w.squeeze(2).T)
        hessians = torch.stack([(u.T * q) @ u for q in (p * (1 - p)).T])
        w = w + torch.linalg.solve(hessians, ((now - p).T @ u).unsqueeze(2))
    return float(binary_cross_entropy_with_logits(u @ w.squeeze(2).T, now, reduction="sum")) / len(x)


def make(calls: str | None, lr: float) -> tuple[nn.Linear, torch.optim.Optimizer]:
    """A cell with weights of zero, and its optimizer: Adam, or natural if it is said what calls of the cell are."""
    cell = nn.Linear(UNITS, UNITS, dtype=torch.float64)
    nn.init.zeros_(cell.weight), nn.init.zeros_(cell.bias)
    if calls is None:
        return cell, torch.optim.Adam(cell.parameters(), lr)
    dagfisher.declare(cell, "bernoulli", calls=calls)  # <- the two lines
    return cell, dagfisher.DAGNaturalGradient(
        cell.parameters(), lr, damping=DAMPING, solver="dense"
    )  # <- the two lines


def train(cell: nn.Linear, opt: torch.optim.Optimizer, x: Tensor, best: float, most: int) -> tuple[list[float], float]:
    """The loss above its minimum before the first step and after each, until it is close; the seconds."""
    excess, began = [], time.perf_counter()
    while True:
        opt.zero_grad()
        value = loss(cell, x)
        excess.append(value.item() - best)
        if excess[-1] < CLOSE or len(excess) > most:
            return excess, time.perf_counter() - began
        value.backward()
        opt.step()


def block(calls: str, x: Tensor) -> Tensor:
    """The Fisher block of the first unit, without the damping."""
    cell, opt = make(calls, 1.0)
    loss(cell, x).backward()
    return (1 + DAMPING) * opt.fisher_blocks(cell.weight)[0] - DAMPING * torch.eye(UNITS + 1, dtype=x.dtype)


def draw(runs: dict[str, list[float]], sequences: dict[str, Tensor], out: Path) -> None:
    """The excess of each run against its steps, and a sequence of each network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplot_mosaic([["excess", title] for title in sequences])
    for (label, excess), style, marker in zip(runs.items(), line_styles(list(runs)), ("o", "s", "")):
        axes["excess"].plot(excess, label=label, **{**style, "marker": marker})
    axes["excess"].set(xlabel="steps", ylabel="loss above its minimum, nats per sequence", yscale="log")
    axes["excess"].legend(frameon=False)
    for title, sequence in sequences.items():
        axes[title].imshow(sequence.T.numpy(), cmap="Greys", aspect="auto", interpolation="nearest")
        axes[title].set(title=title, xlabel="time", ylabel="unit")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/sequence.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    x = sample(truth := make_truth(), SEQUENCES, TIMES, seed=1)
    ratio, best = block("positions", x) / block("samples", x), minimum(x)
    print(f"Blocks of calls as positions, over those of calls as samples: {ratio.min():.6f} to {ratio.max():.6f}.")
    methods = {"natural, lr 1": ("positions", 1.0), "natural, lr 1, calls as samples": ("samples", 1.0)}
    methods |= {f"Adam, lr {lr}": (None, lr) for lr in ((0.3,) if options.quick else (0.3, 0.1, 0.03, 0.01))}
    runs, divergences, lines, drawn = {}, {}, [], {"the truth": sample(truth, 1, 100, 2)[0]}
    for label, (calls, lr) in methods.items():
        (cell, opt), most = make(calls, lr), 20 if calls else 100 if options.quick else 3000
        runs[label], seconds = train(cell, opt, x, best, most)
        entropy, divergences[label], rate = exact(truth, cell)
        steps = str(len(runs[label]) - 1) if runs[label][-1] < CLOSE else f"more than {most}"
        lines.append([label, steps, f"{seconds:.2f}", f"{runs[label][-1]:.1e}", f"{divergences[label]:.4g}"])
        drawn.setdefault("what natural steps learned", sample(cell, 1, 100, 3)[0])
    print(f"Entropy of a sequence {entropy:.4f} nats, entropy rate {rate:.4f}; parameters/2N {36 / SEQUENCES}.")
    print(table(["gradient", f"steps to {CLOSE:.0e}", "seconds", "above the minimum", "above the entropy"], lines))
    draw(dict(list(runs.items())[:3]), drawn, options.out)
