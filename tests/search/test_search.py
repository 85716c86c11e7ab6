"""Searches follow the natural gradient of E[f], whatever the network, and find minima that are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dagfisher
from dagfisher import search
from dagfisher.errors import DagFisherWarning, SettingError, ShapeError
from dagfisher.search import BinaryNetwork, GaussianNetwork, SearchNetwork


def all_states(n: int, states: tuple[float, float]) -> Tensor:
    return torch.tensor(list(itertools.product(states, repeat=n)), dtype=torch.float64)


def dense_natural_gradient(network: SearchNetwork, x: Tensor, weights: Tensor, loss: Callable[[], Tensor]) -> Tensor:
    """(Σ w s sᵀ)⁻¹ g over all parameters at once, with scores s by automatic differentiation."""
    parameters = list(network.parameters())

    def flat(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)]
        )

    scores = torch.stack([flat(network.log_prob(row[None]).sum()) for row in x])
    fisher = scores.T @ (weights[:, None] * scores)
    return torch.linalg.pinv(fisher, rtol=1e-10, hermitian=True) @ flat(loss())


@pytest.mark.parametrize("states", [(0, 1), (-1, 1)])
@pytest.mark.parametrize("kind", [search.independent, search.chain, search.fully_visible])
def test_the_natural_gradient_of_a_binary_network_is_that_of_its_whole_fisher_matrix(kind: Any, states: Any) -> None:
    torch.manual_seed(0)
    network = kind(4, states)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = all_states(4, states)
    f = torch.randn(16, dtype=torch.float64)
    p = network.log_prob(x).exp().detach()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)

    def expectation() -> Tensor:
        return (network.log_prob(x).exp() * f).sum()

    expected = dense_natural_gradient(network, x, p, expectation)
    opt = dagfisher.DAGNaturalGradient(network.parameters(), damping=1e-10, solver="dense")
    with dagfisher.no_capture():
        loss = expectation()
    with dagfisher.sample_weights(p):
        network.log_prob(x)
    loss.backward()
    found = opt.natural_gradient()
    torch.testing.assert_close(
        torch.cat([found[q].flatten() for q in network.parameters()]), expected, rtol=1e-6, atol=1e-7
    )


@given(n=st.integers(2, 6), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_draws_of_a_binary_network_have_its_probabilities(n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = BinaryNetwork(torch.bernoulli(torch.full((n, n), 0.5), generator=generator).tril(-1), (-1, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
    drawn = network.sample(4000, generator)
    p = network.log_prob(all_states(n, (-1, 1))).exp().detach()
    code = (((drawn + 1) / 2).long() * 2 ** torch.arange(n - 1, -1, -1)).sum(1)
    counted = torch.bincount(code, minlength=2**n) / 4000
    assert float((counted - p).abs().max()) < 5 * 0.5 / math.sqrt(4000)


def moved(network: SearchNetwork, x: Tensor, utilities: Tensor, population: int) -> None:
    """One generation's step, by the public parts of a network."""
    opt = dagfisher.DAGNaturalGradient(network.groups(population), damping=0)
    with dagfisher.no_capture():
        loss = -network.objective(x, utilities)
    network.log_prob(network.points(0))
    loss.backward()
    opt.step()
    network.settle(x, utilities)


def test_a_gaussian_network_moves_along_the_natural_gradient_in_mean_and_covariance() -> None:
    torch.manual_seed(1)
    network = GaussianNetwork([0.3, -1.0, 2.0], std=torch.tensor([0.5, 2.0, 1.0]), cumulation=False)
    with torch.no_grad():
        network.layer.weight.normal_()
    network.settle(torch.empty(0), torch.empty(0))  # count states from the new mean
    mean, covariance, x = network.mean, network.covariance, network.sample(8)
    utilities = 1e-6 * (search.rank_utilities(x[:, 0] ** 2) + 0.05)  # so small that coordinates do not matter
    rate = network.groups(8)[1]["lr"]
    moved(network, x, utilities, 8)
    # In (μ, Σ) the natural gradient of Σ u log p is Σ u (x − μ) and Σ u ((x − μ)(x − μ)ᵀ − Σ).
    off = x - mean
    torch.testing.assert_close(network.mean - mean, utilities @ off, rtol=1e-4, atol=1e-11)
    expected = rate * ((off.T * utilities) @ off - utilities.sum() * covariance)
    torch.testing.assert_close(network.covariance - covariance, expected, rtol=1e-4, atol=1e-10)


def test_the_points_of_a_gaussian_network_have_its_moments() -> None:
    network = GaussianNetwork([1.0, 2.0, 3.0], std=torch.tensor([1e-6, 2e-6, 3e-6]))
    with torch.no_grad():
        network.layer.weight.normal_(generator=torch.Generator().manual_seed(0))
    points = network.points(0)
    torch.testing.assert_close(points.mean(0), network.mean)
    off = points - network.mean
    torch.testing.assert_close(off.T @ off / len(points), network.covariance, rtol=1e-6, atol=1e-20)
    normal = torch.distributions.MultivariateNormal(network.mean, network.covariance)
    x = network.sample(5)
    torch.testing.assert_close(network.log_prob(x).detach(), normal.log_prob(x), rtol=1e-6, atol=1e-6)


def test_a_path_moves_the_covariance_towards_it_and_not_the_mean() -> None:
    network = GaussianNetwork([0.0, 0.0], std=1.0)
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    network.groups(4)
    network.steps = 5
    network.path.copy_(torch.tensor([2.0, 2.0]))
    network.objective(x, torch.zeros(4, dtype=torch.float64)).backward()
    assert float(network.layer.bias.grad.abs().max()) < 1e-12
    assert float(network.layer.weight.grad[1, 0]) > 0
    assert bool((network.layer.log_std.grad > 0).all())


def test_rank_utilities_do_not_change_with_increasing_functions_and_ties_share() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 1.0, 9.0, 2.5, math.inf], dtype=torch.float64)
    found = search.rank_utilities(values)
    torch.testing.assert_close(found, search.rank_utilities(torch.exp(values)))
    assert float(found.sum()) == pytest.approx(0, abs=1e-12)
    assert float(found[1]) == float(found[3]) == float(found.max())
    weights = torch.tensor([max(0.0, math.log(4.5) - math.log(rank)) for rank in range(1, 8)], dtype=torch.float64)
    expected = weights / weights.sum() - 1 / 7
    assert float(found[1]) == pytest.approx(float(expected[:2].mean()))
    assert float(found[2]) == pytest.approx(float(expected[2]))


def test_value_utilities_estimate_the_gradient_of_the_expectation() -> None:
    network = search.chain(3)
    with torch.no_grad():
        network.layer.bias.copy_(torch.tensor([0.3, -0.5, 1.0]))
    x, f = all_states(3, (0, 1)), torch.arange(8, dtype=torch.float64) ** 1.5
    (network.log_prob(x).exp() * f).sum().backward()
    exact = network.layer.bias.grad.clone()
    network.zero_grad()
    drawn = network.sample(200_000, torch.Generator().manual_seed(0))
    code = (drawn.long() * torch.tensor([4, 2, 1])).sum(1)
    (-network.objective(drawn, search.value_utilities(f[code]))).backward()
    torch.testing.assert_close(network.layer.bias.grad, exact, rtol=0.05, atol=0.03)


@pytest.mark.parametrize(("variables", "neighbours"), [(8, 2), (7, 3), (6, 0), (6, 5), (5, 4)])
def test_the_minimum_of_an_nk_landscape_is_that_of_all_states(variables: int, neighbours: int) -> None:
    for seed in range(3):
        problem = search.nk_landscape(variables, neighbours, seed)
        assert problem.least == pytest.approx(float(problem(all_states(variables, (0, 1))).min()), abs=1e-12)


def test_the_other_problems_have_the_minima_that_they_say() -> None:
    origin, ones = torch.zeros(1, 5, dtype=torch.float64), torch.ones(1, 5, dtype=torch.float64)
    for problem, at in ((search.ellipsoid(5), origin), (search.rastrigin(5), origin), (search.rosenbrock(5), ones)):
        assert float(problem(at)) == pytest.approx(problem.least, abs=1e-12)
        assert bool((problem(at + 0.1 * torch.randn(50, 5, dtype=torch.float64)) > 0).all())
    formula = search.max_sat(10, 30)
    assert float(formula(all_states(10, (0, 1))).min()) == 0


def test_a_search_finds_the_bottom_of_an_ellipsoid_and_learns_its_shape() -> None:
    network = GaussianNetwork([3.0] * 4, std=2.0)
    seen = []
    problem = search.ellipsoid(4)
    found = search.minimise(
        problem,
        network,
        evaluations=5000,
        target=1e-10,
        generator=torch.Generator().manual_seed(0),
        on_generation=seen.append,
    )
    assert found.reason == "target" and found.value <= 1e-10 and found.restarts == 0
    assert float(problem(found.x[None])) == found.value
    assert seen == found.history and found.evaluations == seen[-1].evaluations < 3000
    spread = torch.linalg.eigvalsh(network.covariance)
    assert 1e4 < float(spread[-1] / spread[0]) < 1e8  # that of the function is 1e6


def test_a_chain_finds_what_depends_on_neighbours_sooner_than_independent_variables() -> None:
    # Neighbours are to differ: two minima, and no variable alone tells anything.
    def f(x: Tensor) -> Tensor:
        return (x[:, 1:] == x[:, :-1]).sum(1)

    def evaluations(kind: Any) -> int:
        found = [
            search.minimise(
                f,
                kind(20),
                evaluations=4000,
                population=100,
                target=0,
                generator=torch.Generator().manual_seed(seed),
            )
            for seed in range(4)
        ]
        return sum(result.evaluations if result.reason == "target" else 4000 for result in found)

    assert evaluations(search.chain) < evaluations(search.independent)


def test_a_search_that_rests_starts_again_with_a_larger_population_until_it_may_not() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.zeros(len(x))

    network = GaussianNetwork([0.0, 0.0])
    found = search.minimise(f, network, evaluations=10**6, population=4, restarts=2)
    assert found.reason == "at rest" and found.restarts == 2
    assert [g.population for g in found.history] == sorted(g.population for g in found.history)
    assert {g.population for g in found.history} == {4, 8, 16}
    stopped = search.minimise(f, network, evaluations=10**6, population=4, on_generation=lambda g: g.evaluations > 10)
    assert stopped.reason == "stopped" and stopped.evaluations == 12
    assert search.minimise(f, network, evaluations=9, population=4).evaluations == 12


def test_values_that_are_not_finite_count_as_worst() -> None:
    def f(x: Tensor) -> list[float]:
        return [math.nan if row[0] > 0.5 else float(row.square().sum()) for row in x]

    found = search.minimise(
        f,
        GaussianNetwork([2.0, 2.0], std=2.0),
        evaluations=3000,
        target=1e-6,
        generator=torch.Generator().manual_seed(1),
    )
    assert found.value <= 1e-6
    values = torch.tensor([1.0, math.inf, 3.0], dtype=torch.float64)
    torch.testing.assert_close(search.value_utilities(values), search.value_utilities(values.clamp(max=3)))
    assert not search.value_utilities(torch.full((3,), math.inf)).any()


def test_a_search_of_what_falls_without_end_gives_what_it_has_found() -> None:
    network = GaussianNetwork([1.0, 2.0])
    generator = torch.Generator().manual_seed(0)
    with pytest.warns(DagFisherWarning, match="broken down"):
        found = search.minimise(lambda x: x.sum(1), network, evaluations=10**5, generator=generator, restarts=1)
    assert found.reason == "broken down" and found.restarts == 1
    assert found.value == min(g.best for g in found.history) < -1e6
    assert float(found.x.sum()) == found.value


def test_two_samples_are_enough_for_a_gaussian_network() -> None:
    for cumulation in (True, False):
        network = GaussianNetwork([1.0, 2.0], cumulation=cumulation)
        generator = torch.Generator().manual_seed(0)
        found = search.minimise(
            lambda x: x.square().sum(1), network, evaluations=2000, population=2, target=1e-3, generator=generator
        )
        assert found.reason == "target"


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ShapeError, match="one for each"):
        search.minimise(lambda x: x, search.independent(3), evaluations=10)
    with pytest.raises(SettingError, match="population"):
        search.minimise(lambda x: x.sum(1), search.independent(3), evaluations=10, population=1)
    with pytest.raises(ShapeError, match="strictly lower triangular"):
        BinaryNetwork(torch.ones(3, 3))
    with pytest.raises(SettingError, match="std"):
        GaussianNetwork([0.0], std=0.0)
    with pytest.raises(ShapeError, match="vector"):
        GaussianNetwork(torch.zeros(2, 2))
    with pytest.raises(SettingError, match="neighbours"):
        search.nk_landscape(3, 3)
