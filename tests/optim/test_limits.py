"""Between the plain gradient and the natural one: limits of the damping, duality and change of coordinates."""

from __future__ import annotations

import pytest
import torch
from exact import exact
from hypothesis import given
from hypothesis import strategies as st
from reference import FAMILIES, make_layer, matrix_of, random_parents, states
from torch import Tensor

import dagfisher
from dagfisher.errors import SettingError, SingularBlockError
from dagfisher.nn import BernoulliLinear, Prior

SOLVERS = ("dense", "woodbury", "conjugate", "diagonal", "auto")


# Damping


@pytest.mark.parametrize("solver", SOLVERS)
@given(family=st.sampled_from(sorted(FAMILIES)), n=st.integers(1, 8), d=st.integers(1, 8), seed=st.integers(0, 999))
def test_infinite_damping_is_plain_gradient_descent(solver: str, family: str, n: int, d: int, seed: int) -> None:
    """(1+α)(αI+F)⁻¹ = I + O(1/α): the distance to the gradient is bounded by ‖F − I‖/α."""
    layer = make_layer(family, d, 4, dtype=torch.float64, seed=seed).module
    inputs = random_parents("real", n, d, torch.Generator().manual_seed(seed))
    for alpha in (1e6, 1e9):
        optimizer = exact(layer.parameters(), damping=alpha, solver=solver, tolerance=1e-15)
        layer.zero_grad()
        layer(inputs).square().sum().backward()
        fisher = (1 + alpha) * optimizer.fisher_blocks(layer.weight)
        fisher = fisher - alpha * torch.eye(fisher.shape[-1], dtype=torch.float64)
        vectors = optimizer.natural_gradient()
        for p in layer.parameters():
            scale = p.grad.norm() + sum(q.grad.norm() for q in layer.parameters())
            bound = (2 * (fisher.abs().sum() + d + 1) / alpha + 1e-13) * scale
            assert (vectors[p] - p.grad).norm() <= bound


def test_large_damping_moves_as_sgd_does() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(20, 5, dtype=torch.float64)
    ours = make_layer("bernoulli 0,1", 5, 3, dtype=torch.float64, seed=0).module
    theirs = make_layer("bernoulli 0,1", 5, 3, dtype=torch.float64, seed=0).module
    optimizers = [
        exact(ours.parameters(), lr=0.3, damping=1e10),
        torch.optim.SGD(theirs.parameters(), lr=0.3),
    ]
    for _ in range(10):
        for layer, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            layer(inputs).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(matrix_of(ours, lambda p: p), matrix_of(theirs, lambda p: p), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("alpha", [1e-3, 0.2, 5.0])
def test_the_damped_blocks_are_renormalised(alpha: float) -> None:
    """(αI + F)/(1 + α) lies between F and the identity."""
    layer = make_layer("bernoulli 0,1", 3, 2, dtype=torch.float64, seed=4).module
    optimizer = exact(layer.parameters(), damping=alpha)
    inputs = random_parents("-1,1", 12, 3, torch.Generator().manual_seed(4))
    q = torch.sigmoid(layer(inputs)) * torch.sigmoid(-layer(inputs))
    u = torch.cat([inputs, torch.ones(12, 1, dtype=torch.float64)], dim=1)
    expected = torch.stack(
        [(alpha * torch.eye(4, dtype=torch.float64) + (u * q[:, [j]]).T @ u / 12) / (1 + alpha) for j in range(2)]
    )
    torch.testing.assert_close(optimizer.fisher_blocks(layer.bias), expected.detach(), rtol=1e-12, atol=1e-14)


def test_without_damping_a_singular_block_is_an_error_with_a_remedy() -> None:
    layer = BernoulliLinear(3, 2, dtype=torch.float64)
    optimizer = exact(layer.named_parameters(prefix="head"), damping=0.0)
    before = matrix_of(layer, lambda p: p.clone())
    layer(torch.ones(5, 3, dtype=torch.float64)).sum().backward()
    with pytest.raises(SingularBlockError, match=r"layer 'head'.*condition.*damping"):
        optimizer.step()
    torch.testing.assert_close(matrix_of(layer, lambda p: p), before, rtol=0, atol=0)


@pytest.mark.parametrize("solver", ["woodbury", "conjugate"])
def test_solvers_that_divide_by_the_damping_say_so(solver: str) -> None:
    layer = BernoulliLinear(3, 2)
    optimizer = exact(layer.parameters(), damping=0.0, solver=solver)
    layer(torch.randn(9, 3)).sum().backward()
    with pytest.raises(SettingError, match="damping > 0"):
        optimizer.step()


# Change of coordinates


def undamped_step(layer: BernoulliLinear, parents: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """The natural vector of a cross-entropy, rows [weights, bias]."""
    optimizer = exact(layer.parameters(), damping=0.0, solver="dense")
    with dagfisher.sample_weights(weights):
        logits = layer(parents)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)
    (weights * loss).sum().backward()
    vectors = optimizer.natural_gradient()
    return matrix_of(layer, lambda p: vectors[p])


@given(parents=st.integers(1, 4), units=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_the_natural_step_does_not_depend_on_how_parents_are_coded(parents: int, units: int, seed: int) -> None:
    """Parents {0,1} with (w, b) and parents {−1,+1} with (w/2, b + Σw/2) are the same function; so are their steps."""
    generator = torch.Generator().manual_seed(seed)
    zero_one, plus_minus = (BernoulliLinear(parents, units, dtype=torch.float64) for _ in range(2))
    for p in zero_one.parameters():
        p.data.normal_(generator=generator)
    plus_minus.weight.data = zero_one.weight.data / 2
    plus_minus.bias.data = zero_one.bias.data + zero_one.weight.data.sum(1) / 2
    bits = states(parents, 0, 1)
    weights = torch.softmax(torch.randn(len(bits), generator=generator, dtype=torch.float64), 0)
    target = torch.rand(len(bits), units, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(zero_one(bits), plus_minus(2 * bits - 1), rtol=1e-12, atol=1e-12)

    ours = undamped_step(zero_one, bits, target, weights)
    theirs = undamped_step(plus_minus, 2 * bits - 1, target, weights)
    one = torch.ones(len(bits), 1, dtype=torch.float64)
    in_logits = torch.cat([bits, one], 1) @ ours.T
    torch.testing.assert_close(torch.cat([2 * bits - 1, one], 1) @ theirs.T, in_logits, rtol=1e-8, atol=1e-8)
    carried = torch.cat([ours[:, :-1] / 2, ours[:, -1:] + ours[:, :-1].sum(1, keepdim=True) / 2], dim=1)
    torch.testing.assert_close(theirs, carried, rtol=1e-8, atol=1e-8)


def test_the_plain_step_does_depend_on_how_parents_are_coded() -> None:
    """What the invariance above is worth: the gradient itself has none."""
    gradients = []
    for low in (0, -1):
        layer = BernoulliLinear(2, 1, dtype=torch.float64)
        layer.weight.data.fill_(1.0 if low == 0 else 0.5)
        layer.bias.data.fill_(0.0 if low == 0 else 1.0)
        parents = states(2, low, 1)
        layer(parents).sum().backward()
        change = torch.cat([parents, torch.ones(4, 1, dtype=torch.float64)], 1) @ matrix_of(layer, lambda p: p.grad).T
        gradients.append(change)
    assert (gradients[0] - gradients[1]).abs().max() > 0.5


# Duality: the natural gradient in θ is the plain gradient in the expectations η


def test_the_natural_gradient_of_a_prior_is_the_gradient_in_its_probabilities() -> None:
    """F = ∂ρ/∂a, so F⁻¹ ∂L/∂a = ∂L/∂ρ."""
    prior = Prior(4, dtype=torch.float64)
    prior.bias.data = torch.tensor([-2.0, 0.0, 0.5, 3.0], dtype=torch.float64)
    target = torch.tensor([0.9, 0.1, 0.5, 0.2], dtype=torch.float64)
    optimizer = exact(prior.parameters(), damping=0.0)
    (torch.sigmoid(prior(1)[0]) - target).pow(4).sum().backward()
    rho = torch.sigmoid(prior.bias.detach()).requires_grad_()
    (rho - target).pow(4).sum().backward()
    torch.testing.assert_close(optimizer.natural_gradient()[prior.bias], rho.grad, rtol=1e-11, atol=1e-13)


def test_the_natural_gradient_of_a_table_is_the_gradient_in_its_joint_probabilities() -> None:
    """One-hot parents c with probability P(c) make η_jc = P(c) ρ_jc the expectations dual to the weights."""
    table = BernoulliLinear(3, 2, bias=False, dtype=torch.float64)
    probability = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    optimizer = exact(table.parameters(), damping=0.0)
    with dagfisher.sample_weights(probability):
        rho = torch.sigmoid(table(torch.eye(3, dtype=torch.float64))).T
    (probability * rho).cos().sum().backward()
    eta = (probability * rho.detach()).requires_grad_()
    eta.cos().sum().backward()
    torch.testing.assert_close(optimizer.natural_gradient()[table.weight], eta.grad, rtol=1e-11, atol=1e-13)
