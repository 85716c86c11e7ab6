"""Plain and natural gradient flows of two independent binary variables: a picture of vector fields.

    python examples/natural_flow.py                        # a table, and runs/natural_flow.png; ten seconds
    python examples/natural_flow.py --quick --out my.png   # fewer arrows, two starts only

Two independent units x₁, x₂ with states {0, 1} are to maximise E[f], f(x₁, x₂) = x₁ + 2 x₂ + 3 x₁ x₂. In expectation
parameters η = E[x] this is η₁ + 2 η₂ + 3 η₁ η₂; the natural parameters θ are logits, η = sigmoid(θ). The maximum, 6,
is the corner η = (1, 1). (With states {−1, +1}, f would be another function, with a local maximum at (−1, −1) as well.)

The plain gradient depends on the parameters it is taken in: ∂E[f]/∂η and ∂E[f]/∂θ drive two different flows. The first
runs out of the square of probabilities, the second hardly moves a unit that is nearly certain. The natural gradient
drives one flow, whichever parameters it is written in: dη/dt = η(1−η) ∂E[f]/∂η = ∂E[f]/∂θ, and dθ/dt = ∂E[f]/∂η.

Both optimizers of the table step in θ, with the same learning rate. Another rate would change both, but not this: near
the maximum, plain steps for a tenth of the distance are ten times as many, natural ones always the same few more.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import dagfisher
from dagfisher.app import table
from dagfisher.nn import Prior
from dagfisher.plots import COLOURS, INK

X = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=torch.float64)
F = X[:, 0] + 2 * X[:, 1] + 3 * X[:, 0] * X[:, 1]
STARTS = ((0.5, 0.5), (0.1, 0.1), (0.02, 0.02), (0.02, 0.9), (0.98, 0.1), (0.02, 0.4))  # in η
LR, GOALS = 0.2, (5.9, 5.99)


def expectation(units: Prior) -> Tensor:
    """E[f], summed over the four states."""
    return (units.log_prob(X).exp() * F).sum()


def climb(units: Prior, opt: torch.optim.Optimizer, start: tuple[float, float]) -> list[int]:
    """The numbers of steps from the start to each of the goals."""
    units.bias.data = torch.tensor(start, dtype=torch.float64).logit()
    means: list[float] = []
    while not means or means[-1] <= GOALS[-1]:
        opt.zero_grad()
        loss = -expectation(units)
        loss.backward()
        opt.step()
        means.append(-loss.item())
    return [sum(mean <= goal for mean in means) for goal in GOALS]


def plain(start: tuple[float, float]) -> list[int]:
    units = Prior(2, dtype=torch.float64)
    opt = torch.optim.SGD(units.parameters(), lr=LR)
    return climb(units, opt, start)


def natural(start: tuple[float, float]) -> list[int]:
    units = Prior(2, dtype=torch.float64)  # <- the two lines; this one stays, as a Prior is declared from the start
    opt = dagfisher.DAGNaturalGradient(units.parameters(), lr=LR, damping=0, solver="dense")  # <- the two lines
    return climb(units, opt, start)


def natural_gradient(theta: Tensor) -> Tensor:
    """The natural gradient of E[f] in θ, as dagfisher finds it."""
    units = Prior(2, dtype=torch.float64)
    units.bias.data = theta
    opt = dagfisher.DAGNaturalGradient(units.parameters(), damping=0, solver="dense")
    expectation(units).backward()
    return opt.natural_gradient()[units.bias]


def slope(eta: Tensor) -> Tensor:
    """∂E[f]/∂η, which is also the natural gradient in θ, in closed form."""
    return torch.stack([1 + 3 * eta[..., 1], 2 + 3 * eta[..., 0]], -1)


def spread(eta: Tensor) -> Tensor:
    """dη/dθ = η(1−η): the Fisher information of each unit about θ, and its inverse about η."""
    return eta * (1 - eta)


def square(low: float, high: float, n: int) -> Tensor:
    """n × n points of a square."""
    return torch.cartesian_prod(*[torch.linspace(low, high, n, dtype=torch.float64)] * 2)


ETA, THETA = "expectation parameters η", "natural parameters θ"
LIMITS = {ETA: (0.0, 1.0), THETA: (-4.5, 4.5)}
FIELDS = {  # (coordinates, gradient): the velocity of the coordinates
    (ETA, "plain"): slope,
    (ETA, "natural"): lambda eta: spread(eta) * slope(eta),
    (THETA, "plain"): lambda theta: spread(torch.sigmoid(theta)) * slope(torch.sigmoid(theta)),
    (THETA, "natural"): lambda theta: slope(torch.sigmoid(theta)),
}


def flow_line(coordinates: str, gradient: str, start: tuple[float, float]) -> Tensor:
    """Points along the flow, equally far apart, until it has left the picture."""
    eta, (low, high) = torch.tensor(start, dtype=torch.float64), LIMITS[coordinates]
    points = [at := eta if coordinates == ETA else eta.logit()]
    while bool(((at >= low) & (at <= high)).all()) and len(points) < 1000:
        velocity = FIELDS[coordinates, gradient](at)
        at = at + (high - low) / 500 * velocity / velocity.norm()
        points.append(at)
    return torch.stack(points)


def draw(arrows: int, starts: tuple[tuple[float, float], ...], out: Path) -> None:
    """Both fields in both coordinates, level lines of E[f], flow lines from the starts; a scale of arrows per panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 9.8), layout="constrained")
    for axes, (coordinates, gradient) in zip(figure.subplots(2, 2).flat, FIELDS):
        low, high = LIMITS[coordinates]
        side, eta = torch.linspace(low, high, 101), square(low, high, 101)
        eta = eta if coordinates == ETA else torch.sigmoid(eta)
        mean = (eta[:, 0] + 2 * eta[:, 1] + 3 * eta[:, 0] * eta[:, 1]).reshape(101, 101).T
        levels = axes.contour(side, side, mean, levels=[0.5, 1, 2, 3, 4, 5, 5.9], colors="#999999", linewidths=0.9)
        axes.clabel(levels, fontsize=8)
        at = square(low + 0.03 * (high - low), high - 0.03 * (high - low), arrows)
        v = FIELDS[coordinates, gradient](at)
        axes.quiver(*at.T, *v.T, color=COLOURS[gradient == "plain"], alpha=0.55, width=0.004, pivot="mid", angles="xy")
        for start in starts:
            line = flow_line(coordinates, gradient, start)
            axes.plot(*line.T, color=INK, linewidth=1.6)
            axes.plot(*line[0], "o", color=INK, markersize=5, clip_on=False)
        axes.set(xlim=(low, high), ylim=(low, high), xlabel=f"{coordinates[-1]}₁", ylabel=f"{coordinates[-1]}₂")
        axes.set_title(f"{gradient} gradient, {coordinates}", color=INK, fontsize=11)
    figure.suptitle("Maximising E[x₁ + 2 x₂ + 3 x₁x₂] over two independent units", fontweight="bold", color=INK)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/natural_flow.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    starts = STARTS[:2] if options.quick else STARTS
    grid = square(*LIMITS[THETA], 7)
    off = float((torch.stack([natural_gradient(at) for at in grid]) - slope(torch.sigmoid(grid))).abs().max())
    print(f"dagfisher and the closed form of the natural gradient differ by at most {off:.0e}")
    steps = [(start, plain(start), natural(start)) for start in starts]
    lines = [[f"{a:.2f}, {b:.2f}", *map(str, p), *map(str, n)] for (a, b), p, n in steps]
    print(table(["start η", *(f"{name}: steps to {goal}" for name in ("plain", "natural") for goal in GOALS)], lines))
    draw(9 if options.quick else 15, starts, options.out)
