"""Scales that no parent moves, Laplace units, and normal distributions with a full covariance matrix."""

from __future__ import annotations

import copy

import pytest
import torch
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher.errors import DeclarationError
from dagfisher.families import Gaussian, Laplace
from dagfisher.nn import FullGaussian, GaussianLinear
from dagfisher.testing import check_family

F64 = torch.float64
ALPHA = 0.3


def fisher_by_draws(layer: GaussianLinear, x: Tensor, values: Tensor) -> Tensor:
    """The mean of score scoreᵀ over drawn values, of weight, bias and log σ in this order."""

    def log_prob(parameters: dict[str, Tensor], value: Tensor) -> Tensor:
        mean = x @ parameters["weight"].T + parameters["bias"]
        log_std = parameters["log_std"].expand(2)
        return (-0.5 * ((value - mean) * torch.exp(-log_std)).square() - log_std).sum()

    parameters = {name: getattr(layer, name).detach() for name in ("weight", "bias", "log_std")}
    scores = torch.func.vmap(torch.func.grad(log_prob), (None, 0))(parameters, values)
    flat = torch.cat([scores[name].flatten(1) for name in ("weight", "bias", "log_std")], dim=1)
    return flat.T @ flat / len(values)


@pytest.mark.parametrize("scale", ["constant", "tied"])
def test_blocks_of_mean_and_scale_are_those_of_the_joint_fisher(scale: str) -> None:
    """By drawn values: the joint Fisher matrix of (weight, bias, log σ) has these blocks and nothing between them."""
    torch.manual_seed(0)
    layer = GaussianLinear(1, 2, scale=scale, dtype=F64)
    with torch.no_grad():
        layer.log_std.copy_(torch.tensor([0.3] if scale == "tied" else [0.3, -0.4]))
    x = torch.tensor([[0.7]], dtype=F64)
    values = layer.sample(x.expand(40_000, 1), torch.Generator().manual_seed(0)).unsqueeze(1)
    full = fisher_by_draws(layer, x, values)
    opt = exact(layer.parameters(), damping=ALPHA, solver="dense")
    layer(x)
    blocks = opt.fisher_blocks(layer.weight) * (1 + ALPHA) - ALPHA * torch.eye(2, dtype=F64)
    for unit in range(2):
        own = full[[unit, 2 + unit]][:, [unit, 2 + unit]]
        torch.testing.assert_close(blocks[unit], own, rtol=0.06, atol=0.02)
    scales = (opt.fisher_blocks(layer.log_std) * (1 + ALPHA) - ALPHA).flatten()
    by_formula = torch.full((len(layer.log_std),), 4.0 if scale == "tied" else 2.0, dtype=F64)
    torch.testing.assert_close(scales, by_formula)
    torch.testing.assert_close(full[4:, 4:].diagonal(), by_formula, rtol=0.06, atol=0.0)
    assert full[:4, 4:].abs().max() < 0.08


def test_q_of_the_mean_is_exact() -> None:
    layer = GaussianLinear(3, 2, scale="constant", dtype=F64)
    with torch.no_grad():
        layer.log_std.copy_(torch.tensor([0.5, -1.0]))
    opt = exact(layer.parameters(), damping=ALPHA, solver="dense")
    x = torch.randn(6, 3, dtype=F64)
    layer(x)
    u = torch.cat([x, torch.ones(6, 1, dtype=F64)], 1)
    blocks = opt.fisher_blocks(layer.weight) * (1 + ALPHA) - ALPHA * torch.eye(4, dtype=F64)
    for unit in range(2):
        torch.testing.assert_close(blocks[unit], u.T @ u / 6 * torch.exp(-2 * layer.log_std[unit].detach()))


def test_any_linear_layer_can_have_one() -> None:
    layer = nn.Linear(3, 2)
    dagfisher.declare(layer, "gaussian", scale="tied")
    assert layer.log_std.shape == (1,)
    assert "log_std" in layer.state_dict()
    own = nn.Linear(3, 2)
    own.log_std = nn.Parameter(torch.full((2,), 0.7))
    dagfisher.declare(own, "gaussian", scale="constant")
    assert torch.equal(own.log_std.detach(), torch.full((2,), 0.7))
    twin = copy.deepcopy(own).double()
    opt = exact(twin.parameters())
    twin(torch.randn(4, 3, dtype=F64)).square().sum().backward()
    (twin.log_std.square().sum()).backward()
    opt.step()
    assert "gaussian log_std" in repr(opt)
    dagfisher.undeclare(own)
    exact([own.weight, nn.Parameter(torch.zeros(2))], undeclared="sgd")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dagfisher.declare(nn.Conv2d(1, 1, 1), "gaussian", scale="constant"), "only linear layers"),
        (lambda: dagfisher.declare(nn.Linear(2, 2), "gaussian", scale="tied", std=1.0), "does not go with std"),
        (lambda: dagfisher.declare(nn.Linear(2, 2), "gaussian", scale="tied", positions=1), "one position per sample"),
        (lambda: dagfisher.declare(nn.Linear(2, 2), "laplace", b=0.0), "b must be a positive"),
        (lambda: dagfisher.declare(nn.Linear(2, 3), "laplace"), "two halves, but it has 3 outputs"),
    ],
)
def test_what_cannot_be_is_refused(make, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        make()


def test_deterministic_layers_below_a_constant_scale_are_sampled() -> None:
    torch.manual_seed(0)
    hidden, out = nn.Linear(3, 4, dtype=F64), GaussianLinear(4, 2, scale="constant", dtype=F64)
    dagfisher.declare(hidden, "deterministic")
    model = nn.ModuleList([hidden, out])
    with torch.no_grad():
        out.log_std.fill_(-0.5)
    opt = exact(model.parameters(), damping=ALPHA, solver="dense")
    x = torch.randn(1, 3, dtype=F64)
    total = torch.zeros(4, dtype=F64)
    for seed in range(600):
        opt.zero_grad()
        a = hidden(x)
        out(torch.tanh(a))
        opt.sample_fisher(torch.Generator().manual_seed(seed))
        total += (opt.fisher_blocks(hidden.weight)[:, -1, -1] * (1 + ALPHA) - ALPHA) / 600
    slope = out.weight * (1 - torch.tanh(hidden(x)) ** 2)
    expected = (slope.square() * torch.exp(torch.tensor(1.0, dtype=F64))).sum(0)
    torch.testing.assert_close(total, expected.detach(), rtol=0.3, atol=0.02)


@pytest.mark.parametrize("family", [Laplace(), Laplace(b=0.7)])
def test_laplace_units_keep_the_contract(family: Laplace) -> None:
    at = -0.4 + 0.8 * torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=F64)
    check_family(family, at)


def test_laplace_is_torchs() -> None:
    at, value = torch.randn(5, 6, dtype=F64), torch.randn(5, 3, dtype=F64)
    reference = torch.distributions.Laplace(at[:, :3], at[:, 3:].exp())
    torch.testing.assert_close(Laplace().log_prob(value, at), reference.log_prob(value))
    torch.testing.assert_close(Laplace().entropy(at), reference.entropy())
    prior = dagfisher.nn.Prior(3, "laplace")
    assert prior.sample(7).shape == (7, 3)


def test_a_full_gaussian_is_the_multivariate_normal() -> None:
    torch.manual_seed(0)
    layer = FullGaussian(4, dtype=F64)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5)
    x = torch.randn(6, 4, dtype=F64)
    reference = torch.distributions.MultivariateNormal(layer.mean.detach(), layer.covariance.detach())
    torch.testing.assert_close(layer.log_prob(x), reference.log_prob(x))
    draws = layer.sample(100_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.T.cov(), layer.covariance.detach(), rtol=0.05, atol=0.05)
    torch.testing.assert_close(draws.mean(0), layer.mean.detach(), rtol=0.05, atol=0.03)


def test_its_blocks_are_the_whole_fisher_matrix() -> None:
    """Against ½ tr(Σ⁻¹∂Σ Σ⁻¹∂Σ) + ∂μᵀΣ⁻¹∂μ by automatic differentiation."""
    torch.manual_seed(0)
    layer = FullGaussian(3, dtype=F64)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5)
    names = ["weight", "bias", "log_std"]
    shapes = [getattr(layer, n).shape for n in names]
    start = torch.cat([getattr(layer, n).detach().reshape(-1) for n in names])

    def moments(flat: Tensor) -> tuple[Tensor, Tensor]:
        w, b, s = (part.reshape(shape) for part, shape in zip(flat.split([9, 3, 3]), shapes, strict=True))
        unmixing = torch.eye(3, dtype=F64) - w.tril(-1)
        root = torch.linalg.solve_triangular(unmixing, torch.diag(s.exp()), upper=False)
        return torch.linalg.solve_triangular(unmixing, b.unsqueeze(1), upper=False).squeeze(1), root @ root.T

    about_mean, about_cov = torch.autograd.functional.jacobian(moments, start)
    inverse = torch.linalg.inv(moments(start)[1])
    curved = torch.einsum("ab,bci,cd,daj->ij", inverse, about_cov, inverse, about_cov) / 2
    full = torch.einsum("ai,ab,bj->ij", about_mean, inverse, about_mean) + curved
    opt = exact(layer.parameters(), damping=ALPHA, solver="dense")
    x = layer.sample(100_000, torch.Generator().manual_seed(0))
    layer(x)
    blocks = opt.fisher_blocks(layer.weight) * (1 + ALPHA)
    for unit in range(3):
        kept = [3 * unit + i for i in range(unit)] + [9 + unit]
        own = blocks[unit][[*range(unit), 3]][:, [*range(unit), 3]] - ALPHA * torch.eye(unit + 1, dtype=F64)
        torch.testing.assert_close(own, full[kept][:, kept], rtol=0.02, atol=0.02)
        others = [3 * j + i for j in range(3) for i in range(j) if j != unit] + [9 + j for j in range(3) if j != unit]
        assert full[kept][:, [*others, 12, 13, 14]].abs().max() < 1e-10
    torch.testing.assert_close(full[12:, 12:], 2 * torch.eye(3, dtype=F64))


def test_one_natural_step_without_damping_is_the_maximum_of_a_gaussian() -> None:
    """Fisher scoring of a linear-Gaussian layer: the mean's step with rate 1 is least squares."""
    torch.manual_seed(0)
    data = torch.randn(500, 3, dtype=F64) @ torch.randn(3, 3, dtype=F64) + 2
    layer = FullGaussian(3, dtype=F64)
    opt = exact(layer.parameters(), lr=1.0, damping=0.0, solver="dense")
    for _ in range(12):
        opt.zero_grad()
        (-layer.log_prob(data).mean()).backward()
        opt.step()
    torch.testing.assert_close(layer.covariance, data.T.cov(correction=0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(layer.mean, data.mean(0), rtol=1e-8, atol=1e-8)
    assert isinstance(layer.distribution(data).family, Gaussian)
