"""Adam's second moment of units and layers: the squared length of the natural gradient in the Fisher metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from exact import exact
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import SettingError
from dagfisher.optim.updates import ADAM_EPS

F64 = torch.float64
BETAS = (0.8, 0.95)
KINDS = ("unit", "layer")


def batch(seed: int, parents: int = 4, units: int = 3, n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, parents, generator=generator, dtype=F64)
    return x, torch.randint(2, (n, units), generator=generator).double()


def fit(net: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
    opt.zero_grad()
    (scale * binary_cross_entropy_with_logits(net(x), y, reduction="sum") / len(x)).backward()
    opt.step()


def bernoulli(parents: int = 4, units: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return dagfisher.nn.BernoulliLinear(parents, units, dtype=F64)


def by_hand(kind: str, lr: float, damping: float, every: int, steps: int) -> np.ndarray:
    """Weight and bias of a logistic layer, (units × parents + 1), after some steps, in NumPy from the formulas."""
    layer = bernoulli()
    w = np.concatenate([layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]], 1)
    m, v, blocks = np.zeros_like(w), np.zeros((len(w), 1)), []
    for step in range(steps):
        x, y = (part.numpy() for part in batch(step))
        u = np.concatenate([x, np.ones((len(x), 1))], 1)
        p = 1 / (1 + np.exp(-u @ w.T))
        g = (p - y).T @ u / len(u)
        if step % every == 0:
            blocks = [(u.T * q) @ u / len(u) + damping * np.eye(u.shape[1]) for q in (p * (1 - p)).T]
        natural = (1 + damping) * np.stack([np.linalg.solve(b, each) for b, each in zip(blocks, g, strict=True)])
        square = (g * natural).sum(1, keepdims=True)
        square = square if kind == "unit" else np.full_like(square, square.sum())
        m = BETAS[0] * m + (1 - BETAS[0]) * natural
        v = BETAS[1] * v + (1 - BETAS[1]) * square
        first, second = m / (1 - BETAS[0] ** (step + 1)), v / (1 - BETAS[1] ** (step + 1))
        w = w - lr * first / (np.sqrt(second) + ADAM_EPS)
    return w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [1, 3])
def test_steps_are_those_of_the_formula(kind: str, every: int) -> None:
    """v ← β₂v + (1 − β₂) gᵀx and m ← β₁m + (1 − β₁) x; the step is −lr·m̂/(√v̂ + ε)."""
    layer = bernoulli()
    opt = exact(layer.parameters(), lr=0.05, damping=0.2, update_every=every, betas=BETAS, second_moment=kind)
    for step in range(7):
        fit(layer, opt, *batch(step))
    found = np.concatenate([layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]], 1)
    np.testing.assert_allclose(found, by_hand(kind, 0.05, 0.2, every, 7), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_another_scale_makes_the_same_steps(kind: str) -> None:
    layers = [bernoulli() for _ in range(2)]
    for layer, scale in zip(layers, (1.0, 100.0), strict=True):
        opt = exact(layer.parameters(), lr=0.05, betas=BETAS, second_moment=kind)
        for step in range(5):
            fit(layer, opt, *batch(step), scale)
    for p, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(p, other, rtol=1e-5, atol=1e-7)


def predictors_after(kind: str, mix: Tensor) -> Tensor:
    """Of a logistic layer whose parents are multiplied by a matrix, and its weights by the inverse."""
    layer = bernoulli()
    with torch.no_grad():
        layer.weight.copy_(layer.weight @ torch.linalg.inv(mix))
    opt = exact(layer.parameters(), lr=0.05, damping=0.0, solver="dense", betas=BETAS, second_moment=kind)
    for step in range(5):
        x, y = batch(step)
        fit(layer, opt, x @ mix.T, y)
    return layer(batch(99)[0] @ mix.T).detach()


def test_without_damping_steps_of_units_and_layers_do_not_depend_on_the_coordinates_and_those_of_elements_do() -> None:
    mix = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=F64) + 2 * torch.eye(4, dtype=F64)
    straight = torch.eye(4, dtype=F64)
    for kind in KINDS:
        torch.testing.assert_close(predictors_after(kind, mix), predictors_after(kind, straight), rtol=1e-6, atol=1e-8)
    assert (predictors_after("element", mix) - predictors_after("element", straight)).abs().max() > 0.01


def gaussian() -> nn.Module:
    layer = nn.Linear(4, 6)
    dagfisher.declare(layer, "gaussian", scale="log_var")
    return layer


def declared(module: nn.Module) -> nn.Module:
    dagfisher.declare(module, "bernoulli")
    return module


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: declared(nn.Linear(4, 3)), (9, 4)),
    "no bias": (lambda: declared(nn.Linear(4, 3, bias=False)), (9, 4)),
    "two halves": (gaussian, (9, 4)),
    "convolution": (lambda: declared(nn.Conv2d(2, 4, 2, groups=2)), (5, 2, 3, 3)),
    "transposed convolution": (lambda: declared(nn.ConvTranspose2d(4, 6, 2, groups=2)), (5, 4, 3, 3)),
    "mask": (lambda: dagfisher.nn.MaskedBernoulliLinear(torch.ones(4, 4).tril(-1)), (9, 4)),
}


def as_matrix(module: nn.Module, of: dict[Tensor, Tensor]) -> Tensor:
    """What the parameters have, as (units × parents)."""
    weight, bias = of[module.weight], None if module.bias is None else of[module.bias]
    if isinstance(module, nn.ConvTranspose2d):  # (parents, units in a group, space)
        weight = torch.cat([part.transpose(0, 1) for part in weight.chunk(module.groups)])
    rows = weight.flatten(1)
    return rows if bias is None else torch.cat([rows, bias[:, None]], 1)


@pytest.mark.parametrize("trust_region", [None, 1e-4], ids=["free", "shortened"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_parameter_of_a_unit_has_the_length_of_its_natural_gradient(
    case: tuple[Any, tuple[int, ...]], kind: str, trust_region: float | None
) -> None:
    """vᵀF̃v of the damped blocks F̃, also where the trust region has made v shorter."""
    build, shape = case
    torch.manual_seed(0)
    module = build().double()
    opt = exact(
        module.parameters(), damping=0.3, solver="dense", betas=BETAS, second_moment=kind, trust_region=trust_region
    )
    (module(torch.randn(*shape, dtype=F64)) - 1).square().mean().backward()
    blocks, vectors = opt.fisher_blocks(module.weight), opt.natural_gradient()
    opt.step()
    moments = {p: opt.state[p]["exp_avg_sq"] / (1 - BETAS[1]) for p in module.parameters()}
    v = as_matrix(module, vectors)
    lengths = torch.einsum("jd,jde,je->j", v, blocks, v)
    lengths = lengths if kind == "unit" else lengths.sum().expand_as(lengths)
    torch.testing.assert_close(as_matrix(module, moments), lengths[:, None].expand_as(v), rtol=1e-6, atol=1e-12)
    if trust_region is not None:
        assert opt.diagnostics()["groups"][0]["factor"] < 0.5


def test_coupled_logits_are_one_unit() -> None:
    torch.manual_seed(0)
    layer = dagfisher.nn.CategoricalLinear(4, 6, classes=3, dtype=F64)  # two variables
    opt = exact(layer.parameters(), betas=BETAS, second_moment="unit", solver="dense", tolerance=1e-12)
    x, y = torch.randn(20, 4, dtype=F64), torch.randint(3, (40,))
    cross_entropy(layer(x).reshape(-1, 3), y, reduction="sum").div(20).backward()
    vectors = opt.natural_gradient()
    products = (layer.weight.grad * vectors[layer.weight]).sum(1) + layer.bias.grad * vectors[layer.bias]
    opt.step()
    expected = products.reshape(2, 3).sum(1).repeat_interleave(3)
    torch.testing.assert_close(opt.state[layer.bias]["exp_avg_sq"] / (1 - BETAS[1]), expected, rtol=1e-8, atol=0)
    assert expected.unique().numel() == 2


def test_parameters_that_nobody_declared_have_a_moment_for_each_element() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5, dtype=F64), dagfisher.nn.BernoulliLinear(5, 3, dtype=F64))
    opt = exact(net.parameters(), betas=BETAS, second_moment="unit")
    x, y = batch(0)
    binary_cross_entropy_with_logits(net(x), y).backward()
    opt.step()
    plain = net[0].weight
    torch.testing.assert_close(opt.state[plain]["exp_avg_sq"], (1 - BETAS[1]) * plain.grad.square())


def test_climbing_is_descending_on_the_negative() -> None:
    down, up = bernoulli(), bernoulli()
    for layer, sign in ((down, 1.0), (up, -1.0)):
        opt = exact(layer.parameters(), lr=0.05, betas=BETAS, second_moment="unit", maximize=sign < 0)
        for step in range(4):
            fit(layer, opt, *batch(step), sign)
    for p, other in zip(down.parameters(), up.parameters(), strict=True):
        torch.testing.assert_close(p, other, rtol=1e-12, atol=1e-14)


def test_a_weight_and_its_bias_have_one_kind() -> None:
    layer = bernoulli()
    groups: list[dict[str, Any]] = [{"params": [layer.weight], "second_moment": "unit"}, {"params": [layer.bias]}]
    with pytest.raises(SettingError, match=r"differ in one of .*second_moment; give both the same"):
        DAGNaturalGradient(groups, betas=BETAS)
    # Their rates, decays and betas may differ.
    groups[1] |= {"second_moment": "unit", "lr": 0.01, "betas": (0.5, 0.9)}
    opt = DAGNaturalGradient(groups, betas=BETAS)
    fit(layer, opt, *batch(0))
    weight, bias = (opt.state[p]["exp_avg_sq"] for p in (layer.weight, layer.bias))
    torch.testing.assert_close(weight[:, 0] / (1 - BETAS[1]), bias / (1 - 0.9))
