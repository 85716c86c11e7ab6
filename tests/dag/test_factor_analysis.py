"""Factor analysis and probabilistic PCA as declared models: natural steps are EM's M-steps, and end at the maximum."""

from __future__ import annotations

import math

import pytest
import torch
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.nn import GaussianLinear

F64 = torch.float64
SAMPLES, SIGNALS, FACTORS = 100, 8, 2


def data() -> Tensor:
    torch.manual_seed(3)
    strong = torch.randn(SAMPLES, FACTORS, dtype=F64) @ torch.randn(FACTORS, SIGNALS, dtype=F64)
    return strong + torch.linspace(0.6, 1.0, SIGNALS, dtype=F64) * torch.randn(SAMPLES, SIGNALS, dtype=F64) + 2


def model(scale: str) -> GaussianLinear:
    torch.manual_seed(0)
    made = GaussianLinear(FACTORS, SIGNALS, scale=scale, dtype=F64)
    with torch.no_grad():
        made.log_std.copy_(0.4 + 0.1 * torch.arange(made.log_std.numel(), dtype=F64))
    return made


@torch.no_grad()
def posterior(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of h given x, from the joint normal distribution of (h, x)."""
    noise = torch.diag(torch.exp(2 * layer.log_std).expand(SIGNALS))
    gain = torch.linalg.solve(layer.weight @ layer.weight.T + noise, layer.weight).T
    return (x - layer.bias) @ gain.T, torch.eye(FACTORS, dtype=F64) - gain @ layer.weight


def points_of(mean: Tensor, covariance: Tensor) -> Tensor:
    """Equally weighted points with these moments, (2·factors × samples × factors)."""
    columns = math.sqrt(FACTORS) * torch.linalg.cholesky(covariance).T
    return mean + torch.cat([columns, -columns]).unsqueeze(1)


def residuals(x: Tensor, mean: Tensor, covariance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The posterior expectation of (x − W h − μ)² of each signal, the mean over the samples."""
    return (x - mean @ weight.T - bias).square().mean(0) + torch.einsum("ja,ab,jb->j", weight, covariance, weight)


def log_likelihood(layer: nn.Linear, x: Tensor) -> float:
    noise = torch.diag(torch.exp(2 * layer.log_std).expand(SIGNALS))
    normal = torch.distributions.MultivariateNormal(layer.bias, layer.weight @ layer.weight.T + noise)
    return normal.log_prob(x).mean().item()


def optimizer(layer: nn.Module, solver: str = "dense", **settings: float) -> DAGNaturalGradient:
    return exact(layer.parameters(), lr=1.0, damping=0.0, solver=solver, **settings)


def step(layer: GaussianLinear, opt: torch.optim.Optimizer, x: Tensor) -> None:
    points = points_of(*posterior(layer, x))
    opt.zero_grad()
    (-layer.log_prob(x.expand(len(points), -1, -1), points).mean()).backward()
    opt.step()


def test_the_points_have_the_moments_of_the_posterior() -> None:
    mean, covariance = posterior(model("constant"), data())
    points = points_of(mean, covariance)
    torch.testing.assert_close(points.mean(0), mean)
    apart = points - mean
    torch.testing.assert_close(torch.einsum("kna,knb->ab", apart, apart) / points[..., 0].numel(), covariance)


@pytest.mark.parametrize("scale", ["constant", "tied"])
def test_the_gradient_over_the_points_is_that_of_the_marginal_likelihood(scale: str) -> None:
    layer, x = model(scale), data()
    points = points_of(*posterior(layer, x))
    (-layer.log_prob(x.expand(len(points), -1, -1), points).mean()).backward()
    noise = torch.diag(torch.exp(2 * layer.log_std).expand(SIGNALS))
    normal = torch.distributions.MultivariateNormal(layer.bias, layer.weight @ layer.weight.T + noise)
    names = ["weight", "bias", "log_std"]
    wanted = torch.autograd.grad(-normal.log_prob(x).mean(), [getattr(layer, name) for name in names])
    for name, gradient in zip(names, wanted, strict=True):
        torch.testing.assert_close(getattr(layer, name).grad, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", ["constant", "tied"])
def test_the_natural_step_of_the_loadings_is_the_m_step(scale: str) -> None:
    """At every step of a whole run, to 1e-10; that of log σ is ½(r/σ² − 1), EM's ½ log(r/σ²) to first order."""
    layer, x = model(scale), data()
    opt = optimizer(layer)
    for _ in range(20):
        mean, covariance = posterior(layer, x)
        u = torch.cat([mean, torch.ones(SAMPLES, 1, dtype=F64)], 1)
        second = u.T @ u / SAMPLES
        second[:FACTORS, :FACTORS] += covariance
        loadings = torch.linalg.solve(second, u.T @ x / SAMPLES).T
        weight, bias, log_std = (getattr(layer, name).detach().clone() for name in ("weight", "bias", "log_std"))
        r = residuals(x, mean, covariance, weight, bias)
        ratio = (r if scale == "constant" else r.mean(0, keepdim=True)) * torch.exp(-2 * log_std)
        step(layer, opt, x)
        torch.testing.assert_close(layer.weight.detach(), loadings[:, :FACTORS], rtol=0, atol=1e-10)
        torch.testing.assert_close(layer.bias.detach(), loadings[:, FACTORS], rtol=0, atol=1e-10)
        torch.testing.assert_close(layer.log_std.detach(), log_std + (ratio - 1) / 2, rtol=0, atol=1e-10)


def test_a_declared_linear_layer_and_weighted_rows_give_the_same_step() -> None:
    """The points twice, once with the weights 2/3 and once with 1/3, are the points."""
    layer, x = model("constant"), data()
    plain = nn.Linear(FACTORS, SIGNALS, dtype=F64)
    dagfisher.declare(plain, "gaussian", scale="constant")
    plain.load_state_dict(layer.state_dict())
    points = points_of(*posterior(layer, x)).flatten(0, 1)
    signals = x.repeat(2 * FACTORS, 1)
    weights = torch.cat([torch.full((len(points),), w, dtype=F64) for w in (2 / 3, 1 / 3)]) / len(points)
    opt = optimizer(plain)
    with dagfisher.sample_weights(weights):
        mean = plain(points.repeat(2, 1))
    scaled = (signals.repeat(2, 1) - mean) * torch.exp(-plain.log_std)
    (weights @ (0.5 * scaled.square() + plain.log_std).sum(1)).backward()
    opt.step()
    step(layer, optimizer(layer), x)
    for own, other in zip(plain.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_probabilistic_pca_reaches_its_closed_form_maximum(momentum: float) -> None:
    layer, x = model("tied"), data()
    eigenvalues = torch.linalg.eigvalsh(x.T.cov(correction=0)).flip(0)
    noise = eigenvalues[FACTORS:].mean()
    logs = eigenvalues[:FACTORS].log().sum() + (SIGNALS - FACTORS) * noise.log()
    greatest = -0.5 * float(SIGNALS * math.log(2 * math.pi) + logs + SIGNALS)
    opt = optimizer(layer, momentum=momentum)
    for _ in range(100):
        step(layer, opt, x)
    assert -1e-10 < greatest - log_likelihood(layer, x) < 1e-6
    torch.testing.assert_close(torch.exp(2 * layer.log_std[0]).detach(), noise, rtol=1e-3, atol=0)
    torch.testing.assert_close(layer.bias.detach(), x.mean(0), rtol=1e-3, atol=1e-3)


def test_factor_analysis_ends_at_a_maximum() -> None:
    """At the end the gradient of the marginal likelihood is zero."""
    layer, x = model("constant"), data()
    opt = optimizer(layer, momentum=0.7)
    for _ in range(200):
        step(layer, opt, x)
    gradients = torch.cat([p.grad.flatten() for p in layer.parameters()])
    assert gradients.abs().max() < 1e-8
