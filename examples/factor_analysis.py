"""Factor analysis and probabilistic PCA: at rate 1 without damping, the natural step of the loadings is EM's M-step.

    python examples/factor_analysis.py                 # a table, and runs/factor_analysis.png; half a minute
    python examples/factor_analysis.py --quick         # a single learning rate for Adam, at most 100 steps of it

The model is x = W h + μ + σ ε with h and ε standard normal: one σ for each signal (factor analysis), or one for all
(probabilistic PCA, whose greatest likelihood has a closed form). The posterior of h given x is normal and known. Points
at its mean ± the scaled columns of a Cholesky factor have exactly its first and second moments, so that the mean loss
over these rows has the exact gradient of −log p(x), and the Fisher blocks of W and μ are exact too. What EM does not
have is momentum: the error of its slowest direction shrinks by the same factor at each step.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import dagfisher
from dagfisher.app import table
from dagfisher.nn import GaussianLinear as Model
from dagfisher.plots import FAINT, line_styles

SAMPLES, SIGNALS, FACTORS = 300, 20, 4
CLOSE = 1e-6  # nats per sample
MODELS = {"probabilistic PCA": "tied", "factor analysis": "constant"}
NATURAL = partial(dagfisher.DAGNaturalGradient, lr=1.0, damping=0, solver="dense")
METHODS = {"EM": None, "natural": NATURAL, "natural, momentum 0.7": partial(NATURAL, momentum=0.7)}
METHODS |= {f"Adam, lr {lr}": partial(torch.optim.Adam, lr=lr) for lr in (0.1, 0.3, 0.03, 0.01)}


def make_data(seed: int = 0) -> Tensor:
    """Signals of four common factors with noise, measured in units of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    h, noise = (torch.randn(SAMPLES, n, generator=generator, dtype=torch.float64) for n in (FACTORS, SIGNALS))
    loadings = torch.tensor([[1.0], [0.7], [0.5], [0.35]]) * torch.randn(FACTORS, SIGNALS, generator=generator)
    units = torch.logspace(math.log10(0.3), math.log10(3), SIGNALS, dtype=torch.float64)
    return (h @ loadings.double() + noise + 1) * units


def make_model(scale: str, x: Tensor, seed: int = 0) -> Model:
    """Random loadings, μ = 0, and all of the variance taken for noise."""
    torch.manual_seed(seed)
    model = Model(FACTORS, SIGNALS, scale=scale, dtype=torch.float64)
    torch.nn.init.zeros_(model.bias)
    model.log_std.data.copy_(0.5 * torch.log(x.var(0).mean() if scale == "tied" else x.var(0)))
    return model


@torch.no_grad()
def posterior(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """The E-step: mean (samples × factors) and covariance (factors × factors) of h given x."""
    scaled = model.weight * torch.exp(-2 * model.log_std).expand(SIGNALS).unsqueeze(1)
    covariance = torch.linalg.inv(torch.eye(FACTORS, dtype=x.dtype) + model.weight.T @ scaled)
    return (x - model.bias) @ scaled @ covariance, covariance


def descend(model: Model, opt: torch.optim.Optimizer, x: Tensor) -> None:
    """One step along the gradient of −log p(x), that of the expectation of −log p(x | h) over the posterior."""
    mean, covariance = posterior(model, x)
    columns = math.sqrt(FACTORS) * torch.linalg.cholesky(covariance).T
    points = mean + torch.cat([columns, -columns]).unsqueeze(1)  # (2·factors × samples × factors)
    opt.zero_grad()
    (-model.log_prob(x.expand(len(points), -1, -1), points).mean()).backward()
    opt.step()


@torch.no_grad()
def em(model: Model, x: Tensor) -> None:
    """One step of EM."""
    mean, covariance = posterior(model, x)
    u = torch.cat([mean, torch.ones(SAMPLES, 1, dtype=x.dtype)], 1)
    moments = u.T @ u / SAMPLES + torch.block_diag(covariance, torch.zeros(1, 1, dtype=x.dtype))
    loadings = torch.linalg.solve(moments, u.T @ x / SAMPLES).T
    variances = x.square().mean(0) - (loadings * (x.T @ u / SAMPLES)).sum(1)
    variances = variances.mean() if model.log_std.numel() == 1 else variances
    for own, new in zip(model.parameters(), (loadings[:, :-1], loadings[:, -1], variances.log() / 2)):
        own.copy_(new)


def log_likelihood(model: Model, x: Tensor) -> float:
    """log p(x), the mean over the samples."""
    covariance = model.weight @ model.weight.T + torch.diag(torch.exp(2 * model.log_std).expand(SIGNALS))
    return torch.distributions.MultivariateNormal(model.bias, covariance).log_prob(x).mean().item()


def maximum(scale: str, x: Tensor) -> float:
    """The greatest log-likelihood: in closed form, or for factor analysis where 1,500 steps of EM end."""
    if scale == "constant":
        climb(model := make_model(scale, x, 1), None, x, math.inf, 1500)
        return log_likelihood(model, x)
    large = torch.linalg.eigvalsh(x.T.cov(correction=0)).flip(0)
    logs = large[:FACTORS].log().sum() + (SIGNALS - FACTORS) * large[FACTORS:].mean().log()
    return -0.5 * float(SIGNALS * math.log(2 * math.pi) + logs + SIGNALS)


def climb(model: Model, opt: torch.optim.Optimizer | None, x: Tensor, best: float, most: int) -> tuple[list, float]:
    """How far log p(x) is below its maximum before the first step and after each, until it is close; the seconds."""
    below, spent = [best - log_likelihood(model, x)], 0.0
    while below[-1] > CLOSE and len(below) <= most:
        began = time.perf_counter()
        em(model, x) if opt is None else descend(model, opt, x)
        spent += time.perf_counter() - began
        below.append(best - log_likelihood(model, x))
    return below, spent


def draw(runs: dict[str, dict[str, list[float]]], out: Path) -> None:
    """How far each run is below the maximum against its steps, one panel for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    figure.supylabel("log-likelihood below its maximum, nats per sample", fontsize=10)
    for axes, (title, found) in zip(figure.subplots(1, 2, sharey=True), runs.items()):
        fastest = min((label for label in found if "Adam" in label), key=lambda label: len(found[label]))
        for label, style in zip(shown := [*list(found)[:3], fastest], line_styles(shown)):
            axes.plot(found[label], label=label, **{**style, "marker": None})
        axes.set(yscale="log", xlabel="steps", title=title)
        axes.grid(color=FAINT, linewidth=0.8)
        axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/factor_analysis.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    options = parser.parse_args()
    x, runs, gaps, lines = make_data(), {}, [], []
    for title, scale in MODELS.items():
        natural, other, best, runs[title] = make_model(scale, x), make_model(scale, x), maximum(scale, x), {}
        descend(natural, NATURAL(natural.parameters()), x)
        em(other, x)
        gaps.append(max((getattr(natural, w) - getattr(other, w)).abs().max().item() for w in ("weight", "bias")))
        print(f"{title}: W and μ after a natural step and after a step of EM differ by {gaps[-1]:.0e}.")
        for label in list(METHODS)[: 4 if options.quick else None]:
            model, most = make_model(scale, x), 100 if options.quick and "Adam" in label else 2000
            opt = METHODS[label] and METHODS[label](model.parameters())
            below, seconds = climb(model, opt, x, best, most)
            steps = str(len(below) - 1) if below[-1] < CLOSE else f"more than {most}"
            lines.append([title, label, steps, f"{seconds:.2f}", f"{below[-1]:.1e}"])
            runs[title][label] = below
    print(table(["model", "steps of", f"steps to {CLOSE:.0e}", "seconds", "below the maximum"], lines))
    draw(runs, options.out)
