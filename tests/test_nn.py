"""The ready-made layers are conditional distributions whose predictor is a linear map of the parents."""

from __future__ import annotations

import math

import pytest
import torch
from exact import exact
from reference import states
from torch import Tensor, distributions

import dagfisher
from dagfisher.nn import BernoulliLinear, CategoricalLinear, GaussianLinear, PoissonLinear, Prior, StochasticLayer

F64 = torch.float64


def theirs(layer: StochasticLayer, predictor: Tensor) -> distributions.Distribution:
    """The same distribution from torch.distributions."""
    if isinstance(layer, CategoricalLinear):
        return distributions.OneHotCategorical(logits=predictor)
    if isinstance(layer, PoissonLinear):
        return distributions.Poisson(predictor.exp())
    if isinstance(layer, GaussianLinear):
        mean, scale = predictor.chunk(2, -1)
        return distributions.Normal(mean, scale.exp())
    return distributions.Bernoulli(logits=predictor)


LAYERS = [
    pytest.param(lambda: BernoulliLinear(3, 4, dtype=F64), id="bernoulli"),
    pytest.param(lambda: GaussianLinear(3, 4, dtype=F64), id="gaussian"),
    pytest.param(lambda: PoissonLinear(3, 4, dtype=F64), id="poisson"),
    pytest.param(lambda: CategoricalLinear(3, 4, dtype=F64), id="categorical"),
]


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("leading", [(), (5,), (2, 5)])
def test_a_layer_is_the_distribution_that_its_parents_give_it(make, leading: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = make()
    parents = torch.randn(*leading, 3, dtype=F64)
    child = layer.sample(parents)
    expected = theirs(layer, layer(parents))
    assert child.shape == (*leading, 4)
    summed = expected.log_prob(child) if isinstance(layer, CategoricalLinear) else expected.log_prob(child).sum(-1)
    torch.testing.assert_close(layer.log_prob(child, parents), summed)
    assert layer.log_prob(child, parents).shape == layer.entropy(parents).shape == torch.Size(leading)
    torch.testing.assert_close(layer.distribution(parents).mean, expected.mean)
    if not isinstance(layer, PoissonLinear):
        entropy = expected.entropy() if isinstance(layer, CategoricalLinear) else expected.entropy().sum(-1)
        torch.testing.assert_close(layer.entropy(parents), entropy)


@pytest.mark.parametrize("states_", [(0, 1), (-1, 1)])
def test_the_probabilities_of_all_children_sum_to_one(states_: tuple[int, int]) -> None:
    layer = BernoulliLinear(2, 3, states=states_, dtype=F64)
    parents = torch.tensor([0.3, -1.0], dtype=F64)
    children = states(3, *states_)
    log_p = layer.log_prob(children, parents.expand(8, -1))
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert layer.entropy(parents).item() == pytest.approx(-(log_p.exp() * log_p).sum().item(), abs=1e-12)


@pytest.mark.parametrize("make", LAYERS)
def test_log_prob_has_the_gradient_of_the_parameters_and_a_sample_has_none(make) -> None:
    layer = make()
    parents = torch.randn(6, 3, dtype=F64)
    child = layer.sample(parents)
    assert not child.requires_grad
    layer.log_prob(child, parents).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


@pytest.mark.parametrize("make", LAYERS)
def test_samples_repeat_with_their_generator(make) -> None:
    layer, parents = make(), torch.randn(50, 3, dtype=F64)
    one, two, other = (layer.sample(parents, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_the_scale_may_be_a_log_variance_or_fixed() -> None:
    parents, child = torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
    layer = GaussianLinear(3, 2, scale="log_var", dtype=F64)
    mean, log_var = layer(parents).chunk(2, -1)
    expected = distributions.Normal(mean, (log_var / 2).exp()).log_prob(child).sum(1)
    torch.testing.assert_close(layer.log_prob(child, parents), expected)
    fixed = GaussianLinear(3, 2, std=0.5, dtype=F64)
    assert fixed.weight.shape == (2, 3)
    expected = distributions.Normal(fixed(parents), 0.5).log_prob(child).sum(1)
    torch.testing.assert_close(fixed.log_prob(child, parents), expected)
    torch.testing.assert_close(fixed.entropy(parents), torch.full((5,), math.log(2 * math.pi * math.e / 4), dtype=F64))


def test_several_categorical_variables_in_one_layer() -> None:
    layer = CategoricalLinear(3, 6, classes=3, dtype=F64)
    parents = torch.randn(5, 3, dtype=F64)
    child = layer.sample(parents)
    each = distributions.OneHotCategorical(logits=layer(parents).reshape(5, 2, 3))
    torch.testing.assert_close(layer.log_prob(child, parents), each.log_prob(child.reshape(5, 2, 3)).sum(1))
    torch.testing.assert_close(layer.entropy(parents), each.entropy().sum(1))


# A layer without parents


@pytest.mark.parametrize("shape", [4, (4,), (2, 3), torch.Size([5])])
def test_a_prior_has_one_predictor_for_all_samples(shape) -> None:
    prior = Prior(3, dtype=F64)
    prior.bias.data = torch.tensor([-1.0, 0.0, 2.0], dtype=F64)
    leading = (shape,) if isinstance(shape, int) else tuple(shape)
    assert prior(shape).shape == (*leading, 3)
    child = prior.sample(shape)
    assert child.shape == (*leading, 3)
    expected = distributions.Bernoulli(logits=prior.bias).log_prob(child).sum(-1)
    torch.testing.assert_close(prior.log_prob(child), expected)
    torch.testing.assert_close(prior.log_prob(child, leading), expected)
    entropy = distributions.Bernoulli(logits=prior.bias).entropy().sum()
    torch.testing.assert_close(prior.entropy(shape), entropy.expand(leading))


@pytest.mark.parametrize(
    ("family", "settings", "outputs"),
    [
        ("bernoulli", {"states": (-1, 1)}, 3),
        ("gaussian", {}, 6),
        ("gaussian", {"scale": "log_var"}, 6),
        ("gaussian", {"std": 1.0}, 3),
        ("poisson", {}, 3),
        ("categorical", {}, 3),
    ],
)
def test_a_prior_of_any_family_has_units_of_that_family(family: str, settings: dict, outputs: int) -> None:
    prior = Prior(3, family, **settings)
    assert prior.bias.shape == (outputs,)
    child = prior.sample(7)
    assert child.shape == (7, 3)
    assert prior.log_prob(child).shape == (7,)


def test_the_fisher_of_a_prior_is_the_variance_of_its_units() -> None:
    prior = Prior(3, dtype=F64)
    prior.bias.data = torch.tensor([-1.0, 0.0, 2.0], dtype=F64)
    optimizer = exact(prior.parameters(), damping=0.1)
    with dagfisher.sample_weights(torch.rand(9)):
        prior.log_prob(prior.sample(9))
    rho = torch.sigmoid(prior.bias.detach())
    torch.testing.assert_close(1.1 * optimizer.fisher_blocks(prior.bias)[:, 0, 0] - 0.1, rho * (1 - rho))


# The layers are declared


@pytest.mark.parametrize("make", LAYERS)
def test_a_ready_made_layer_takes_natural_steps(make) -> None:
    layer = make()
    optimizer = exact(layer.parameters(), undeclared="error")
    layer(torch.randn(20, 3, dtype=F64)).square().sum().backward()
    vectors = optimizer.natural_gradient()
    assert not torch.allclose(vectors[layer.weight], layer.weight.grad)
