"""The Fisher matrix is block diagonal with the blocks we use, and a step is exactly the natural step."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from exact import exact
from hypothesis import given
from reference import (
    FAMILIES,
    PARENTS,
    SAMPLE_WEIGHTS,
    attainable,
    block_diagonal,
    by_the_book,
    fisher_of,
    gaussian_fisher,
    make_layer,
    matrix_of,
    natural,
    random_parents,
    random_sample_weights,
    relative_error,
    score_covariance,
    states,
)
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal, Poisson, kl_divergence

import dagfisher
from dagfisher.nn import BernoulliLinear, Prior

EXACT = ("dense", "woodbury", "conjugate", "auto")


# Theorem 1: the Fisher matrix of a sigmoid belief network


class Belief(nn.Module):
    """p(h²) p(h¹|h²) p(x|h¹) with 2, 3 and 2 units."""

    def __init__(self, low: int) -> None:
        super().__init__()
        self.low = low
        self.prior = Prior(2, states=(low, 1), dtype=torch.float64)
        self.middle = BernoulliLinear(2, 3, states=(low, 1), dtype=torch.float64)
        self.bottom = BernoulliLinear(3, 2, states=(low, 1), dtype=torch.float64)
        generator = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)

    def units(self) -> list[nn.Module]:
        return [self.prior, self.middle, self.bottom]

    def joint(self) -> tuple[Tensor, Tensor, Tensor]:
        """All joint states (h², h¹, x), and nothing else."""
        return torch.split(states(7, self.low, 1), [2, 3, 2], dim=1)

    def theta(self) -> Tensor:
        """The parameters unit by unit: [weights of the unit, its bias]."""
        return torch.cat([matrix_of(layer, lambda p: p).flatten() for layer in self.units()])

    def log_joint(self, theta: Tensor) -> Tensor:
        """log p of every joint state, by the definition: log σ(±a) of every unit given its parents."""
        top, middle, bottom = self.joint()
        prior, w1, w2 = torch.split(theta, [2, 9, 8])
        one = torch.ones(len(top), 1, dtype=torch.float64)
        total = torch.zeros(len(top), dtype=torch.float64)
        for child, parents, weight in ((top, one, prior), (middle, top, w1), (bottom, middle, w2)):
            u = parents if parents is one else torch.cat([parents, one], dim=1)
            sign = torch.where(child == 1, 1.0, -1.0)
            total = total + torch.log(torch.sigmoid(sign * (u @ weight.reshape(child.shape[1], -1).T))).sum(1)
        return total


@pytest.fixture(params=[0, -1], ids=["states 0,1", "states -1,+1"])
def belief(request: pytest.FixtureRequest) -> Belief:
    return Belief(request.param)


def our_blocks(net: Belief) -> list[Tensor]:
    """Our Fisher blocks of every layer, when the samples are all joint states with their probabilities."""
    optimizer = exact(net.parameters(), damping=0.3)
    top, middle, _ = net.joint()
    with dagfisher.sample_weights(net.log_joint(net.theta()).exp()):
        net.prior(len(top))
        net.middle(top)
        net.bottom(middle)
    return [fisher_of(optimizer, layer.bias, 0.3) for layer in net.units()]


def test_the_fisher_of_a_belief_network_is_block_diagonal_with_our_blocks(belief: Belief) -> None:
    full = score_covariance(belief.log_joint, belief.theta())
    assert belief.log_joint(belief.theta()).exp().sum().item() == pytest.approx(1, abs=1e-12)
    ours = torch.block_diag(*[block_diagonal(blocks) for blocks in our_blocks(belief)])
    torch.testing.assert_close(ours, full, rtol=1e-12, atol=1e-13)
    assert full[ours == 0].abs().max() < 1e-13
    assert full[ours == 0].numel() == 19**2 - (2 * 1 + 3 * 9 + 2 * 16)


def test_a_block_is_not_a_product_of_expectations(belief: Belief) -> None:
    """E[q uuᵀ] is not E[q] E[uuᵀ]: no independence is assumed anywhere."""
    blocks = our_blocks(belief)[1]
    top, _, _ = belief.joint()
    probability = belief.log_joint(belief.theta()).exp()
    u = torch.cat([top, torch.ones(len(top), 1, dtype=torch.float64)], dim=1)
    moments = u.T @ (probability.unsqueeze(1) * u)
    factored = blocks[:, -1:, -1:] * moments
    assert ((blocks - factored).flatten(1).norm(dim=1) > 0.01 * blocks.flatten(1).norm(dim=1)).all()


def test_the_two_state_sets_have_the_same_fisher_weight() -> None:
    """At the same logits, only the parents differ between {0,1} and {−1,+1}."""
    parents, weights = states(2, 0, 1), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    found = []
    for low in (0, -1):
        layer = BernoulliLinear(2, 3, states=(low, 1), dtype=torch.float64)
        layer.load_state_dict(BernoulliLinearParameters)
        optimizer = exact(layer.parameters())
        with dagfisher.sample_weights(weights):
            layer(parents)
        found.append(optimizer.fisher_blocks(layer.weight))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


BernoulliLinearParameters = {
    "weight": torch.tensor([[0.3, -1.0], [2.0, 0.5], [-0.2, 0.1]], dtype=torch.float64),
    "bias": torch.tensor([0.1, -0.7, 1.0], dtype=torch.float64),
}


# Theorem 2: the Fisher matrix of a Gaussian layer

INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
SHARES = torch.tensor([0.3, 0.0, 0.1, 0.2, 0.35, 0.05], dtype=torch.float64)


def general_gaussian(theta: Tensor, log_std: float | None, std: float | None = None) -> Tensor:
    """The general formula, averaged over the inputs, of a layer whose μ and scale are linear maps of [u, 1]."""
    full = torch.zeros(theta.numel(), theta.numel(), dtype=torch.float64)
    for u, share in zip(INPUTS, SHARES, strict=True):
        one = torch.cat([u, torch.ones(1, dtype=torch.float64)])

        def mean(t: Tensor, one: Tensor = one) -> Tensor:
            outputs = t.reshape(-1, 4) @ one
            return outputs if std is not None else outputs.chunk(2)[0]

        def covariance(t: Tensor, one: Tensor = one) -> Tensor:
            outputs = t.reshape(-1, 4) @ one
            if std is not None:
                return std**2 * torch.eye(len(outputs), dtype=torch.float64) + 0 * outputs.sum()
            return torch.diag(torch.exp(2 * log_std * outputs.chunk(2)[1]))

        full += share * gaussian_fisher(mean, covariance, theta)
    return full


@pytest.mark.parametrize("family", ["gaussian log_std", "gaussian log_var", "gaussian std"])
def test_the_fisher_of_a_gaussian_layer_is_the_general_formula(family: str) -> None:
    layer = make_layer(family, 3, 4, dtype=torch.float64, seed=2).module
    optimizer = exact(layer.parameters(), damping=0.1)
    with dagfisher.sample_weights(SHARES):
        layer(INPUTS)
    theta = matrix_of(layer, lambda p: p).flatten()
    multiple = {"gaussian log_std": 1.0, "gaussian log_var": 0.5, "gaussian std": None}[family]
    full = general_gaussian(theta, multiple, 0.7 if multiple is None else None)
    ours = block_diagonal(fisher_of(optimizer, layer.weight, 0.1))
    torch.testing.assert_close(ours, full, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("kind", "multiple"), [("log_std", 1.0), ("log_var", 0.5)])
def test_two_gaussian_heads_are_one_gaussian_layer(kind: str, multiple: float) -> None:
    mean, scale = (nn.Linear(3, 2, dtype=torch.float64) for _ in range(2))
    dagfisher.declare_gaussian(mean=mean, **{kind: scale})
    optimizer = exact([*mean.parameters(), *scale.parameters()], damping=0.1)
    with dagfisher.sample_weights(SHARES):
        mean(INPUTS), scale(INPUTS)
    theta = torch.cat([matrix_of(head, lambda p: p).flatten() for head in (mean, scale)])
    ours = [block_diagonal(fisher_of(optimizer, head.weight, 0.1)) for head in (mean, scale)]
    torch.testing.assert_close(torch.block_diag(*ours), general_gaussian(theta, multiple), rtol=1e-12, atol=1e-13)


def test_a_mean_head_with_fixed_deviation_is_a_gaussian_layer() -> None:
    mean = nn.Linear(3, 2, dtype=torch.float64)
    dagfisher.declare_gaussian(mean=mean, std=0.7)
    optimizer = exact(mean.parameters(), damping=0.1)
    with dagfisher.sample_weights(SHARES):
        mean(INPUTS)
    full = general_gaussian(matrix_of(mean, lambda p: p).flatten(), None, 0.7)
    ours = block_diagonal(fisher_of(optimizer, mean.weight, 0.1))
    torch.testing.assert_close(ours, full, rtol=1e-12, atol=1e-13)


# Every family: the Fisher matrix is the Hessian of the divergence

DISTRIBUTIONS = {
    "bernoulli 0,1": lambda a: Bernoulli(logits=a),
    "bernoulli -1,1": lambda a: Bernoulli(logits=a),
    "gaussian log_std": lambda a: Normal(a.chunk(2, -1)[0], a.chunk(2, -1)[1].exp()),
    "gaussian log_var": lambda a: Normal(a.chunk(2, -1)[0], (a.chunk(2, -1)[1] / 2).exp()),
    "gaussian std": lambda a: Normal(a, torch.tensor(0.7, dtype=torch.float64)),
    "poisson": lambda a: Poisson(a.exp()),
    "categorical": lambda a: Categorical(logits=a),
}


def divergence_hessian(family: str, theta: Tensor) -> Tensor:
    """∂²/∂θ'² of the expected KL(p_θ ‖ p_θ') at θ' = θ, for a layer with these rows [weights, bias]."""
    u = torch.cat([INPUTS, torch.ones(len(INPUTS), 1, dtype=torch.float64)], dim=1)
    now = DISTRIBUTIONS[family](u @ theta.reshape(-1, 4).T)

    def divergence(moved: Tensor) -> Tensor:
        then = DISTRIBUTIONS[family](u @ moved.reshape(-1, 4).T)
        return (SHARES * kl_divergence(now, then).reshape(len(u), -1).sum(1)).sum()

    return torch.autograd.functional.hessian(divergence, theta)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_blocks_are_the_hessian_of_the_divergence(family: str) -> None:
    layer = make_layer(family, 3, 4, dtype=torch.float64, seed=3).module
    optimizer = exact(layer.parameters(), damping=0.1)
    with dagfisher.sample_weights(SHARES):
        layer(INPUTS)
    full = divergence_hessian(family, matrix_of(layer, lambda p: p).flatten())
    blocks = fisher_of(optimizer, layer.weight, 0.1)
    on_diagonal = torch.stack([full[i : i + 4, i : i + 4] for i in range(0, 16, 4)])
    torch.testing.assert_close(blocks, on_diagonal, rtol=1e-11, atol=1e-12)
    couplings = full[block_diagonal(torch.ones_like(blocks)) == 0]
    if family == "categorical":
        assert couplings.abs().max() > 1e-3  # ours is labelled the per-unit diagonal of a block that couples
    else:
        assert couplings.abs().max() < 1e-12


# The step


@st.composite
def layers(draw: st.DrawFn) -> dict[str, object]:
    """A layer of any family with its inputs; one sample or many, with or without bias, saturated or not."""
    return {
        "family": draw(st.sampled_from(sorted(FAMILIES))),
        "outputs": 2 * draw(st.integers(1, 3)),
        "parents": draw(st.integers(1, 9)),
        "samples": draw(st.integers(1, 14)),
        "bias": draw(st.booleans()),
        "saturation": draw(st.sampled_from([1.0, 1.0, 20.0])),
        "kind": draw(st.sampled_from(PARENTS)),
        "sample_weights": draw(st.sampled_from(SAMPLE_WEIGHTS)),
        "damping": 10 ** draw(st.floats(-3, 1)),
        "seed": draw(st.integers(0, 2**20)),
    }


def take_two_steps(spec: dict[str, object], solver: str, dtype: torch.dtype) -> tuple[list[float], float]:
    """The relative errors of a fresh and of a reusing step against the formula, and the error that they may have."""
    alpha, lr, n, d = spec["damping"], 0.1, spec["samples"], spec["parents"]
    generator = torch.Generator().manual_seed(spec["seed"])
    layer = make_layer(spec["family"], d, spec["outputs"], bias=spec["bias"], dtype=dtype, seed=spec["seed"])
    if spec["family"].startswith(("bernoulli", "categorical")):
        for p in layer.module.parameters():
            p.data.mul_(spec["saturation"])
    optimizer = exact(layer.module.parameters(), lr=lr, damping=alpha, solver=solver, tolerance=1e-16, update_every=2)
    inputs = random_parents(spec["kind"], n, d, generator).to(dtype)
    weights = random_sample_weights(spec["sample_weights"], n, generator).to(dtype)
    parents, q = by_the_book(layer, inputs, 3 * weights)
    errors = []
    for _ in range(2):
        before = matrix_of(layer.module, lambda p: p)
        optimizer.zero_grad()
        with dagfisher.sample_weights(3 * weights):
            output = layer.module(inputs)
        output.backward(torch.randn(output.shape, generator=generator).to(dtype))
        for p in layer.module.parameters():
            p.grad.add_(torch.randn(p.shape, generator=generator).to(dtype))
        expected = -lr * natural(parents, q, matrix_of(layer.module, lambda p: p.grad), alpha)
        vectors = optimizer.natural_gradient()
        announced = -lr * matrix_of(layer.module, lambda p, v=vectors: v[p])
        optimizer.step()
        errors.append(relative_error(announced, expected))
        moved = matrix_of(layer.module, lambda p: p) - before
        rounding = 4 * torch.finfo(dtype).eps * float(before.abs().max() + moved.abs().max())
        torch.testing.assert_close(moved, announced, rtol=0, atol=rounding)
    return errors, attainable(parents, q, alpha, dtype, solver)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("solver", EXACT)
@given(spec=layers())
def test_a_step_is_the_damped_natural_step(solver: str, dtype: torch.dtype, spec: dict[str, object]) -> None:
    errors, bound = take_two_steps(spec, solver, dtype)
    assert max(errors) < bound


@given(spec=layers())
def test_the_diagonal_solver_divides_by_the_diagonal(spec: dict[str, object]) -> None:
    generator = torch.Generator().manual_seed(spec["seed"])
    layer = make_layer(spec["family"], spec["parents"], spec["outputs"], dtype=torch.float64, seed=0)
    alpha = spec["damping"]
    optimizer = exact(layer.module.parameters(), damping=alpha, solver="diagonal")
    inputs = random_parents(spec["kind"], spec["samples"], spec["parents"], generator)
    layer.module(inputs).square().sum().backward()
    parents, q = by_the_book(layer, inputs, torch.ones(len(inputs)))
    gradient = matrix_of(layer.module, lambda p: p.grad)
    expected = (1 + alpha) * gradient / (alpha + q.T @ parents.square())
    vectors = optimizer.natural_gradient()
    torch.testing.assert_close(matrix_of(layer.module, lambda p: vectors[p]), expected, rtol=1e-12, atol=0)
