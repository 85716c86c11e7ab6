"""Plain and natural gradient flows of two binary variables and of a normal one: a picture of vector fields.

    python examples/natural_flow.py                        # a table, and runs/natural_flow.png; ten seconds
    python examples/natural_flow.py --quick --out my.png   # two starts only

The toys of Malagò's slides on natural gradients. Two binary variables with states ±1 are to minimise E[f], f(x₁, x₂) =
x₁ + 2x₂ + 3x₁x₂. For independent variables with μ = p(x = 1), E[f] = −4μ₁ − 2μ₂ + 12μ₁μ₂: a saddle at (1/6, 1/3), and
two basins, of the minimum −4 at (1, 0) and of a local one, −2, at (0, 1). The plain gradient depends on the parameters
that it is taken in: in μ its flow leaves the square of probabilities, in logits θ it hardly moves variables that are
nearly certain. The natural gradient drives one flow, whichever parameters it is written in. With one arrow, x₁ → x₂,
the network can be any distribution of the two variables, its flow is p ∝ p₀ exp(−t f), and every start finds −4.

A normal variable is to maximise E[f] for f = x − 3x² and f = 6x + 8x² − x³ − 2x⁴, in (μ, σ). All flows end at σ = 0 in
a maximum of f. The Fisher information about σ is twice that about μ, so that the natural flow bends: it moves the mean
first.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import dagfisher
from dagfisher.app import table
from dagfisher.nn import Prior
from dagfisher.plots import FAINT, INK, NATURAL, PLAIN
from dagfisher.search import BinaryNetwork, chain, independent

X = torch.tensor([[-1, -1], [1, -1], [-1, 1], [1, 1]], dtype=torch.float64)
F = X[:, 0] + 2 * X[:, 1] + 3 * X[:, 0] * X[:, 1]
STARTS = ((0.5, 0.5), (0.1, 0.9), (0.1, 0.2), (0.1, 0.45), (0.9, 0.9), (0.04, 0.96))  # in μ
CURVES = {"f = x − 3x²": (0, 1, -3, 0, 0), "f = 6x + 8x² − x³ − 2x⁴": (0, 6, 8, -1, -2)}  # coefficients of f
FROM = {"f = x − 3x²": ((-1, 1), (0, 1.4), (1.2, 0.8)), "f = 6x + 8x² − x³ − 2x⁴": ((-2, 0.6), (-1, 1.5), (0.4, 0.5))}
LR, STEPS = 0.05, 200
COLOUR = {"plain": PLAIN, "natural": NATURAL}


def expectation(net: BinaryNetwork) -> Tensor:
    """E[f] over the four states; their probabilities weigh the Fisher too."""
    with dagfisher.no_capture():
        probabilities = net.log_prob(X).exp()
    with dagfisher.sample_weights(probabilities.detach()):
        net.log_prob(X)
    return (probabilities * F).sum()


def descend(net: BinaryNetwork, opt: torch.optim.Optimizer, start: tuple[float, float], steps: int = STEPS) -> Tensor:
    """Probabilities of the four states after every step, (steps + 1 × 4), from independent variables."""
    net.layer.bias.data = torch.tensor(start, dtype=torch.float64).logit()
    path = []
    for _ in range(steps):
        path.append(net.log_prob(X).exp().detach())
        opt.zero_grad()
        expectation(net).backward()
        opt.step()
    return torch.stack([*path, net.log_prob(X).exp().detach()])


def plain(net: BinaryNetwork, start: tuple[float, float]) -> Tensor:
    opt = torch.optim.SGD(net.parameters(), lr=LR)
    return descend(net, opt, start)


def natural(net: BinaryNetwork, start: tuple[float, float]) -> Tensor:
    opt = dagfisher.DAGNaturalGradient(net.parameters(), lr=LR, damping=1e-9, solver="dense")  # declared from the start
    return descend(net, opt, start)


def slope(mu: Tensor) -> Tensor:
    """∂E[f]/∂μ, which is also the natural gradient in θ."""
    return torch.stack([-4 + 12 * mu[..., 1], -2 + 12 * mu[..., 0]], -1)


def moments(at: Tensor) -> Tensor:
    """E[1], E[x] … E[x⁴] of normal variables with (μ, σ) on the last axis."""
    m, v = at[..., 0], at[..., 1] ** 2
    return torch.stack([torch.ones_like(m), m, m**2 + v, m**3 + 3 * m * v, m**4 + 6 * m**2 * v + 3 * v**2], -1)


def mean_of(name: str, at: Tensor) -> Tensor:
    """E[f] at (μ, σ)."""
    return moments(at) @ torch.tensor(CURVES[name], dtype=torch.float64)


def gaussian_field(name: str, gradient: str, at: Tensor) -> Tensor:
    """The velocity of (μ, σ): the gradient of E[f], times the inverse Fisher diag(σ², σ²/2) if it is natural."""
    at = at.detach().requires_grad_()
    (found,) = torch.autograd.grad(mean_of(name, at).sum(), at)
    return found * at.detach()[..., 1:] ** 2 * torch.tensor([1, 0.5]) if gradient == "natural" else found


def natural_gradient(name: str, at: Tensor) -> Tensor:
    """The natural velocity of (μ, σ) as dagfisher finds it, in the parameters (μ, log σ)."""
    unit = Prior(1, "gaussian", dtype=torch.float64)
    unit.bias.data = torch.stack([at[0], at[1].log()])
    opt = dagfisher.DAGNaturalGradient(unit.parameters(), damping=0, solver="dense")
    mean_of(name, torch.stack([unit(1)[0, 0], unit(1)[0, 1].exp()])).backward()
    return opt.natural_gradient()[unit.bias] * torch.stack([torch.ones(()), at[1]])


MU, THETA = "μ", "θ"
LIMITS = {MU: (0.0, 1.0), THETA: (-4.5, 4.5)}
FIELDS = {  # (coordinates, gradient): the velocity of the coordinates downhill
    (MU, "plain"): lambda mu: -slope(mu),
    (MU, "natural"): lambda mu: -mu * (1 - mu) * slope(mu),
    (THETA, "plain"): lambda theta: -torch.sigmoid(theta) * torch.sigmoid(-theta) * slope(torch.sigmoid(theta)),
    (THETA, "natural"): lambda theta: -slope(torch.sigmoid(theta)),
}


def flow_line(field, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Points along a flow, equally far apart, until it leaves the picture or comes to rest."""
    points = [at := start]
    while bool(((at >= low) & (at <= high)).all()) and len(points) < 1500 and field(at).norm() > 1e-3:
        step = (high - low) / 500 * torch.nn.functional.normalize(field(at) / (high - low), dim=0)
        points.append(at := at + step)
    return torch.stack(points)


def marginals(path: Tensor) -> Tensor:
    """p(x₁ = 1) and p(x₂ = 1) from the probabilities of the four states."""
    return torch.stack([path[:, 1] + path[:, 3], path[:, 2] + path[:, 3]], -1)


def draw(starts: tuple[tuple[float, float], ...], with_arrow: list[Tensor], single: list[Tensor], out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 8.6), layout="constrained")
    grid = figure.subplots(2, 4)
    for axes, (letter, gradient) in zip(grid[:, :2].flat, FIELDS):
        low, high = (torch.full((2,), limit, dtype=torch.float64) for limit in LIMITS[letter])
        at = torch.cartesian_prod(*[torch.linspace(*LIMITS[letter], 15, dtype=torch.float64)] * 2)
        v = FIELDS[letter, gradient](at)
        axes.quiver(*at.T, *v.T, color=COLOUR[gradient], alpha=0.5, width=0.004, pivot="mid", angles="xy")
        for start in starts:
            first = torch.tensor(start, dtype=torch.float64)
            line = flow_line(FIELDS[letter, gradient], first if letter == MU else first.logit(), low, high)
            axes.plot(*line.T, color=INK, linewidth=1.6)
            axes.plot(*line[0], "o", color=INK, markersize=5, clip_on=False)
        axes.plot(
            *(torch.tensor([1 / 6, 1 / 3]) if letter == MU else torch.tensor([1 / 6, 1 / 3]).logit()), "x", color=INK
        )
        axes.set(xlim=LIMITS[letter], ylim=LIMITS[letter], xlabel=f"{letter}₁", ylabel=f"{letter}₂")
        axes.set_title(f"independent, {gradient} gradient in {letter}", color=INK, fontsize=11)
    for path, alone in zip(with_arrow, single):
        grid[0, 2].plot(*marginals(path).T, color=INK, linewidth=1.6)
        grid[0, 2].plot(*marginals(path)[0], "o", color=INK, markersize=5, clip_on=False)
        times = LR * torch.arange(len(path))
        grid[1, 2].plot(times, alone @ F, color=NATURAL, label="independent" if alone is single[0] else None)
        grid[1, 2].plot(times, path @ F, "--", color=INK, label="x₁ → x₂" if alone is single[0] else None)
    grid[0, 2].set(xlim=(0, 1), ylim=(0, 1), xlabel="p(x₁ = 1)", ylabel="p(x₂ = 1)")
    grid[0, 2].set_title("x₁ → x₂, natural gradient", color=INK, fontsize=11)
    grid[1, 2].set(xlabel="time", ylabel="E[f]")
    grid[1, 2].set_title("E[f] along the natural flows", color=INK, fontsize=11)
    grid[1, 2].legend(frameon=False, loc="upper right")
    for axes, name in zip(grid[:, 3], CURVES):
        low, high = torch.tensor([-2.5, 0.0], dtype=torch.float64), torch.tensor([2.5, 2.0], dtype=torch.float64)
        across, up = (torch.linspace(float(a), float(b), 101, dtype=torch.float64) for a, b in zip(low, high))
        level = mean_of(name, torch.cartesian_prod(across, up)).reshape(101, 101).T
        axes.contour(across, up, level, levels=25, colors=FAINT, linewidths=0.8)
        for gradient in ("plain", "natural"):
            for start in FROM[name]:
                field = lambda at, name=name, gradient=gradient: gaussian_field(name, gradient, at)  # noqa: E731
                line = flow_line(field, torch.tensor(start, dtype=torch.float64), low, high)
                label = gradient if start is FROM[name][0] else None
                axes.plot(*line.T, color=COLOUR[gradient], linewidth=1.6, label=label)
                axes.plot(*line[0], "o", color=INK, markersize=5)
        axes.set(xlim=(-2.5, 2.5), ylim=(0, 2), xlabel="μ", ylabel="σ")
        axes.set_title(f"normal, {name}", color=INK, fontsize=11)
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    figure.suptitle("Gradient flows of E[f]", fontweight="bold", color=INK)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/natural_flow.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    starts = STARTS[:2] if options.quick else STARTS
    single = [natural(independent(2, (-1, 1)), start) for start in starts]
    arrow = [natural(chain(2, (-1, 1)), start) for start in starts]
    slow = [plain(independent(2, (-1, 1)), start) for start in starts]
    ends = [[float(path[-1] @ F) for path in (s, i, a)] for s, i, a in zip(slow, single, arrow)]
    lines = [[f"{a:.2f}, {b:.2f}", *(f"{end:.2f}" for end in row)] for (a, b), row in zip(starts, ends)]
    print(table(["start μ", "independent, plain in θ: E[f]", "independent, natural", "x₁ → x₂, natural"], lines))
    points = [torch.tensor(start, dtype=torch.float64) for start in FROM["f = x − 3x²"]]
    checks = [(natural_gradient(name, at), gaussian_field(name, "natural", at)) for name in CURVES for at in points]
    off = max(float((found - closed).abs().max()) for found, closed in checks)
    print(f"natural gradients of the normal variable: dagfisher and the closed form differ by at most {off:.0e}")
    draw(starts, arrow, single, options.out)
