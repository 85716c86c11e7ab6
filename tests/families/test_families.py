"""Each family is a distribution, and its Fisher weight is the variance of its score."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dagfisher.errors import DeclarationError
from dagfisher.families import (
    Bernoulli,
    Categorical,
    Conditional,
    Family,
    Gaussian,
    GaussianScale,
    Poisson,
    make_family,
)

F64 = torch.float64
logits = st.floats(-60, 60)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def enumerated(family: Family, predictor: Tensor) -> tuple[Tensor, Tensor]:
    """All outcomes of one variable, (outcomes × units), and their log-probabilities."""
    if isinstance(family, Bernoulli):
        values = double(*family.states).unsqueeze(1)
    elif isinstance(family, Poisson):
        values = torch.arange(400, dtype=F64).unsqueeze(1)
    else:
        values = torch.eye(len(predictor), dtype=F64)
    return values, family.log_prob(values, predictor.expand(len(values), -1)).sum(1)


DISCRETE = [
    pytest.param(Bernoulli((0, 1)), double(0.7), id="bernoulli 0,1"),
    pytest.param(Bernoulli((-1, 1)), double(-1.3), id="bernoulli -1,1"),
    pytest.param(Poisson(), double(2.2), id="poisson"),
    pytest.param(Categorical(coupled=False), double(0.3, -1.0, 2.0, 0.1), id="categorical"),
]
GAUSSIAN = [
    pytest.param(Gaussian("log_std"), double(0.4, -0.8), 1.0, id="log_std"),
    pytest.param(Gaussian("log_var"), double(0.4, -0.8), 0.5, id="log_var"),
    pytest.param(Gaussian(std=0.6), double(0.4), None, id="fixed std"),
]


# Probabilities


@pytest.mark.parametrize(("family", "predictor"), DISCRETE)
def test_probabilities_sum_to_one(family: Family, predictor: Tensor) -> None:
    _, log_p = enumerated(family, predictor)
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("family", "predictor"), DISCRETE)
def test_mean_and_entropy_are_expectations_over_all_outcomes(family: Family, predictor: Tensor) -> None:
    values, log_p = enumerated(family, predictor)
    mean = (log_p.exp().unsqueeze(1) * values).sum(0)
    torch.testing.assert_close(family.mean(predictor), mean, rtol=1e-11, atol=1e-12)
    assert family.entropy(predictor).sum().item() == pytest.approx(-(log_p.exp() * log_p).sum().item(), abs=1e-11)


@pytest.mark.parametrize(("family", "predictor"), DISCRETE)
def test_the_fisher_weight_is_the_variance_of_the_score(family: Family, predictor: Tensor) -> None:
    values, log_p = enumerated(family, predictor)
    scores = torch.autograd.functional.jacobian(lambda a: enumerated(family, a)[1], predictor)
    torch.testing.assert_close(log_p.exp() @ scores, torch.zeros_like(predictor), rtol=0, atol=1e-12)
    variance = log_p.exp() @ scores.square()
    (q,) = family.fisher_weights(predictor.unsqueeze(0))
    torch.testing.assert_close(q[0], variance, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(family.score(values, predictor.expand(len(values), -1)), scores, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("family", "predictor", "multiple"), GAUSSIAN)
def test_a_gaussian_is_the_normal_distribution(family: Gaussian, predictor: Tensor, multiple: float | None) -> None:
    std = torch.tensor(0.6, dtype=F64) if multiple is None else (multiple * predictor[1]).exp()
    normal = torch.distributions.Normal(predictor[0], std)
    values = torch.linspace(-3, 3, 13, dtype=F64).unsqueeze(1)
    rows = predictor.expand(13, -1)
    torch.testing.assert_close(family.log_prob(values, rows), normal.log_prob(values))
    torch.testing.assert_close(family.entropy(rows)[:, 0], normal.entropy().expand(13))
    torch.testing.assert_close(family.mean(rows)[:, 0], normal.mean.expand(13))
    grid = torch.linspace(-12, 12, 20001, dtype=F64).unsqueeze(1)
    density = family.log_prob(grid, predictor.expand(len(grid), -1)).exp()
    assert torch.trapezoid(density[:, 0], grid[:, 0]).item() == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize(("family", "predictor", "multiple"), GAUSSIAN)
def test_the_gaussian_fisher_weights_are_variances_of_scores(
    family: Gaussian, predictor: Tensor, multiple: float | None
) -> None:
    """By quadrature: q of the mean is 1/σ², q of log σ is 2, q of log σ² is 1/2, and their scores are uncorrelated."""
    grid = torch.linspace(-12, 12, 20001, dtype=F64).unsqueeze(1)

    rows = predictor.expand(len(grid), -1).clone().requires_grad_()
    log_p = family.log_prob(grid, rows)
    (scores,) = torch.autograd.grad(log_p.sum(), rows)
    density = log_p.detach().exp()
    covariance = torch.trapezoid(density.unsqueeze(2) * scores.unsqueeze(2) * scores.unsqueeze(1), dx=24 / 20000, dim=0)
    q = torch.cat(family.fisher_weights(predictor.unsqueeze(0)), dim=1)[0]
    torch.testing.assert_close(covariance, torch.diag(q), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(family.score(grid, predictor.expand(len(grid), -1)), scores, rtol=1e-11, atol=1e-11)
    std = 0.6 if multiple is None else math.exp(multiple * float(predictor[1]))
    assert q[0].item() == pytest.approx(std**-2)
    if multiple is not None:
        assert q[1].item() == {1.0: 2.0, 0.5: 0.5}[multiple]


def test_two_gaussian_heads_have_the_weights_of_the_two_halves() -> None:
    scale = torch.tensor([[0.1, -0.5], [0.3, 2.0]], dtype=F64)
    for kind in ("log_std", "log_var"):
        halves = Gaussian(kind).fisher_weights(torch.cat([torch.zeros_like(scale), scale], dim=1))
        torch.testing.assert_close(GaussianScale(kind).mean_weights(scale)[0], halves[0], rtol=0, atol=0)
        torch.testing.assert_close(GaussianScale(kind).fisher_weights(scale)[0], halves[1], rtol=0, atol=0)
        assert halves[1].shape == (2, 1)


@pytest.mark.parametrize("scale", [-3.0, -0.5, 0.7])
@pytest.mark.parametrize(("kind", "bound"), [("log_std", 0.3), ("log_var", 0.3)])
def test_a_bounded_gaussian_by_quadrature(kind: str, bound: float, scale: float) -> None:
    """σ = ε + eˢ, or σ² = ε² + eˢ: the density, the Fisher weights, the score and the entropy of that σ."""
    family, predictor = Gaussian(kind, min_std=bound), double(0.4, scale)
    std = bound + math.exp(scale) if kind == "log_std" else math.sqrt(bound**2 + math.exp(scale))
    normal = torch.distributions.Normal(double(0.4), double(std))
    grid = torch.linspace(-25, 25, 40001, dtype=F64).unsqueeze(1)
    rows = predictor.expand(len(grid), -1).clone().requires_grad_()
    log_p = family.log_prob(grid, rows)
    torch.testing.assert_close(log_p, normal.log_prob(grid))
    (scores,) = torch.autograd.grad(log_p.sum(), rows)
    torch.testing.assert_close(family.score(grid, rows.detach()), scores, rtol=1e-10, atol=1e-10)
    density = log_p.detach().exp()
    covariance = torch.trapezoid(density.unsqueeze(2) * scores.unsqueeze(2) * scores.unsqueeze(1), dx=50 / 40000, dim=0)
    q = torch.cat(family.fisher_weights(predictor.unsqueeze(0)), dim=1)[0]
    torch.testing.assert_close(covariance, torch.diag(q), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(family.entropy(predictor), normal.entropy())


BOUNDED = [
    pytest.param(Gaussian(kind, min_std=0.3), double(0.4, -0.8), id=f"bounded {kind}")
    for kind in ("log_std", "log_var")
]
SCORED = [*DISCRETE, *BOUNDED, *[pytest.param(*case.values[:2], id=case.id) for case in GAUSSIAN]]


@pytest.mark.parametrize(("family", "predictor"), SCORED)
def test_the_entropy_score_is_the_derivative_of_the_entropy(family: Family, predictor: Tensor) -> None:
    """Against finite differences of the entropy, which is itself checked by summation or integration above."""
    rows = predictor.expand(3, -1) * double(0.5, 1.0, -1.5).unsqueeze(1)
    found = family.entropy_score(rows)
    step = 1e-6
    for i in range(rows.shape[1]):
        shift = torch.zeros_like(rows)
        shift[:, i] = step
        difference = (family.entropy(rows + shift).sum(1) - family.entropy(rows - shift).sum(1)) / (2 * step)
        torch.testing.assert_close(found[:, i], difference, rtol=1e-6, atol=1e-8)


def test_the_entropy_score_of_a_large_rate_and_of_a_saturated_unit() -> None:
    large = double(math.log(300.0)).requires_grad_()
    Poisson().entropy(large).backward()
    torch.testing.assert_close(Poisson().entropy_score(large.detach()), large.grad, rtol=1e-9, atol=0)
    assert Bernoulli().entropy_score(torch.tensor([-200.0, 200.0])).abs().max() < 1e-30


# Samples


SAMPLED = [*DISCRETE, *[pytest.param(*case.values[:2], id=case.id) for case in GAUSSIAN]]


@pytest.mark.parametrize(("family", "predictor"), SAMPLED)
def test_samples_follow_the_distribution(family: Family, predictor: Tensor) -> None:
    """Mean and mean log-probability (minus the entropy) of 40,000 draws, to five standard errors."""
    draws = 40_000
    rows = predictor.expand(draws, -1)
    value = family.sample(rows, generator=torch.Generator().manual_seed(0))
    standard_error = value.std(0) / math.sqrt(draws)
    assert ((value.mean(0) - family.mean(predictor)).abs() <= 5 * standard_error).all()
    log_p = family.log_prob(value, rows).sum(1)
    bound = 5 * float(log_p.std()) / math.sqrt(draws)
    assert abs(float(log_p.mean() + family.entropy(predictor).sum())) <= bound


@pytest.mark.parametrize(("family", "predictor"), SAMPLED)
def test_samples_repeat_with_their_generator_and_carry_no_gradient(family: Family, predictor: Tensor) -> None:
    rows = predictor.expand(50, -1).clone().requires_grad_()
    first, second = (family.sample(rows, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not first.requires_grad
    assert first.dtype == predictor.dtype


def test_binary_samples_are_one_of_the_two_states() -> None:
    for states in ((0, 1), (-1, 1)):
        drawn = Bernoulli(states).sample(torch.zeros(100, 3), generator=torch.Generator().manual_seed(0))
        assert sorted(drawn.unique().tolist()) == list(states)
        bits = Bernoulli(states).to_bits(drawn)
        assert sorted(bits.unique().tolist()) == [0, 1]
        torch.testing.assert_close(Bernoulli(states).from_bits(bits), drawn, rtol=0, atol=0)


def test_categorical_samples_are_one_hot_in_every_variable() -> None:
    family = Categorical(classes=3)
    drawn = family.sample(torch.randn(2, 7, 6), generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 7, 6)
    torch.testing.assert_close(drawn.reshape(2, 7, 2, 3).sum(-1), torch.ones(2, 7, 2), rtol=0, atol=0)


def test_several_categorical_variables_are_independent() -> None:
    predictor = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    together = Categorical(classes=3)
    for which in (slice(0, 3), slice(3, 6)):
        alone = Categorical().fisher_weights(predictor[:, which])[0]
        torch.testing.assert_close(together.fisher_weights(predictor)[0][:, which], alone)
        torch.testing.assert_close(together.mean(predictor)[:, which], Categorical().mean(predictor[:, which]))


# Extremes


@given(a=logits)
def test_the_bernoulli_fisher_weight_is_exact_for_saturated_units(a: float) -> None:
    """ρ(1−ρ) = 1/(2 + e^a + e^−a), to relative precision even where 1 − ρ rounds to 0."""
    q = Bernoulli().fisher_weights(double(a))[0].item()
    assert q == pytest.approx(1 / (2 + math.exp(a) + math.exp(-a)), rel=1e-13, abs=0)


@given(gap=st.floats(0, 60))
def test_the_categorical_fisher_weight_is_exact_for_saturated_units(gap: float) -> None:
    """Of two classes, each has the Fisher weight of a Bernoulli unit."""
    (q,) = Categorical(coupled=False).fisher_weights(double(gap, 0.0))
    assert q.tolist() == pytest.approx([1 / (2 + math.exp(gap) + math.exp(-gap))] * 2, rel=1e-13, abs=0)


@given(a=logits)
def test_saturated_units_are_still_normalised(a: float) -> None:
    family = Bernoulli()
    both = family.log_prob(double(0, 1), double(a).expand(2))
    assert both.exp().sum().item() == pytest.approx(1, abs=1e-14)
    assert family.entropy(double(a)).item() == pytest.approx(
        math.log1p(math.exp(-abs(a))) + abs(a) / (1 + math.exp(abs(a))), abs=1e-13
    )


@given(a=logits, bit=st.sampled_from([0.0, 1.0]))
def test_the_gradient_of_a_saturated_unit_is_its_score(a: float, bit: float) -> None:
    predictor = double(a).requires_grad_()
    Bernoulli().log_prob(double(bit), predictor).backward()
    assert predictor.grad.item() == pytest.approx(bit - 1 / (1 + math.exp(-a)), abs=1e-14)
    predictor.grad = None
    Bernoulli().entropy(predictor).backward()
    assert predictor.grad.item() == pytest.approx(-a / (2 + math.exp(a) + math.exp(-a)), abs=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "family", [Bernoulli(), Bernoulli((-1, 1)), Categorical(), Gaussian(), Gaussian("log_var"), Gaussian(std=2.0)]
)
def test_extreme_predictors_stay_finite(family: Family, dtype: torch.dtype) -> None:
    size = 20.0 if isinstance(family, Gaussian) else 1e4
    predictor = torch.tensor([[size, -size], [-size, size], [0.0, 0.0]], dtype=dtype)
    value = family.sample(predictor)
    for result in (value, family.log_prob(value, predictor), family.mean(predictor), family.entropy(predictor)):
        assert result.isfinite().all()
    for q in family.fisher_weights(predictor):
        assert q.isfinite().all()
        assert (q >= 0).all()


def test_poisson_entropy_at_small_and_large_rates() -> None:
    """Against the expansion ½ log 2πeλ − 1/12λ − 1/24λ² for large λ, and λ(1 − log λ) + O(λ²) for small."""
    found = Poisson().entropy(double(math.log(300.0), -12.0))
    large = 0.5 * math.log(2 * math.pi * math.e * 300) - 1 / 3600 - 1 / (24 * 300**2)
    assert found[0].item() == pytest.approx(large, abs=1e-8)
    assert found[1].item() == pytest.approx(math.exp(-12) * 13, rel=1e-4)


# What cannot be


@pytest.mark.parametrize(
    ("name", "settings", "outputs"),
    [
        ("bernoulli", {"states": (0, 2)}, 2),
        ("gaussian", {"scale": "variance"}, 2),
        ("gaussian", {"std": 0.0}, 2),
        ("gaussian", {"std": -1.0}, 2),
        ("gaussian", {"std": math.inf}, 2),
        ("gaussian", {}, 3),
        ("categorical", {"classes": 4}, 6),
        ("categorical", {"classes": 1}, 6),
        ("bernoulli", {"classes": 3}, 2),
        ("cauchy", {}, 2),
    ],
)
def test_impossible_families_are_refused(name: str, settings: dict[str, object], outputs: int) -> None:
    with pytest.raises(DeclarationError):
        make_family(name, **settings).split(outputs)


@pytest.mark.parametrize("family", [Bernoulli(), Gaussian(), Gaussian(std=1.0), Poisson(), Categorical()])
def test_the_groups_of_units_cover_the_outputs(family: Family) -> None:
    assert sum(family.split(6)) == 6


def test_a_conditional_adds_up_its_units() -> None:
    predictor = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    conditional = Conditional(Bernoulli(), predictor)
    value = conditional.sample(torch.Generator().manual_seed(1))
    torch.testing.assert_close(conditional.log_prob(value), Bernoulli().log_prob(value, predictor).sum(1))
    torch.testing.assert_close(conditional.entropy(), Bernoulli().entropy(predictor).sum(1))
    torch.testing.assert_close(conditional.mean, torch.sigmoid(predictor))
