"""The least damping that layers find: by their samples, and by whether their gradients are noise."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from by_hand import data, shown
from hypothesis import given
from test_found_damping import F64, LR, built, one
from torch import nn

import dagfisher
from dagfisher.fisher import statistics
from dagfisher.optim.damping import FLOOR, LEAST, LOWER_FLOOR, NOISY, SHARE, adapted, floor_of, noise_of


@given(
    parents=st.integers(1, 30),
    samples=st.integers(0, 3000),
    predicted=st.floats(0, 1e30),
    noise=st.floats(0, 1e30),
    stochastic=st.booleans(),
)
def test_the_floor_is_lower_the_more_samples_there_are_and_fades_with_the_gradient(
    parents: int, samples: int, predicted: float, noise: float, stochastic: bool
) -> None:
    found, highest = floor_of(parents, samples, predicted, noise, stochastic), FLOOR if stochastic else LOWER_FLOOR
    assert LEAST <= found <= highest
    whole = min(highest, SHARE * parents / max(samples, 1))
    fading = min(1.0, predicted / noise / NOISY) if noise > 0 else 1.0
    assert found == pytest.approx(max(LEAST, whole * fading))
    assert floor_of(parents, 2 * samples, predicted, noise, stochastic) <= found
    assert floor_of(parents, samples, predicted / 2, noise, stochastic) <= found


@pytest.mark.parametrize("damping", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("eigenvalue", [1e-3, 0.1, 10.0])
def test_noise_is_the_curvature_that_gradients_of_noise_find(eigenvalue: float, damping: float) -> None:
    """The mean of xᵀFx over gradients with the covariance F / n, for x = (αI + F)⁻¹g and blocks λI."""
    units, parents, n = 3, 4, 50
    draws = torch.Generator().manual_seed(0)
    g = math.sqrt(eigenvalue / n) * torch.randn(20_000, units * parents, generator=draws, dtype=F64)
    x = g / (damping + eigenvalue)
    drawn = float((eigenvalue * x.square()).sum(1).mean())
    assert noise_of(units, parents, n, units * parents * eigenvalue, damping) == pytest.approx(drawn, rel=0.02)


def test_the_damping_of_saturated_units_stays_at_its_floor() -> None:
    """Else the next sample that says something is divided by next to nothing, and their weights leap."""
    torch.manual_seed(0)
    layer = dagfisher.nn.BernoulliLinear(10, 10, dtype=F64)
    with torch.no_grad():
        layer.bias.fill_(25.0)
    opt = built(layer.named_parameters(), update_every=1)
    for seed in range(40):
        x = data(1000, 10, seed=seed)
        opt.zero_grad()
        (-layer.log_prob(torch.ones(1000, 10, dtype=F64), x).mean()).backward()
        opt.step()
    assert shown(opt, "damping") == [pytest.approx(SHARE * 11 / 1000)]
    before = layer.weight.detach().clone()
    opt.zero_grad()
    y = torch.ones(1000, 10, dtype=F64)
    y[0] = 0.0  # one sample in a thousand
    (-layer.log_prob(y, data(1000, 10, seed=40)).mean()).backward()
    opt.step()
    assert (layer.weight - before).abs().max() < 10 * LR


def test_a_gradient_without_noise_has_no_floor() -> None:
    """On the same samples at every step the damping of a regression goes on to fall, and so do its gradients."""
    torch.manual_seed(0)
    layer = dagfisher.nn.BernoulliLinear(4, 3, dtype=F64)
    opt = built(layer.named_parameters(), lr=1.0, update_every=1)
    x, y = data(200, 4, seed=0), torch.bernoulli(torch.full((200, 3), 0.3, dtype=F64))
    for _ in range(60):
        opt.zero_grad()
        (-layer.log_prob(y, x).mean()).backward()
        opt.step()
    assert shown(opt, "damping")[0] < 0.1 * SHARE * 5 / 200
    assert layer.weight.grad is not None and layer.weight.grad.norm() < 1e-8


def test_a_floor_is_reached_by_factors_of_two_and_passed_by_larger_ones() -> None:
    assert adapted(0.01, 1.0, 1.0, 0.1) == 0.02
    assert adapted(0.08, 1.0, 1.0, 0.1) == 0.1
    assert adapted(0.3, 0.1, 1.0, 0.1) == 0.15
    assert adapted(0.15, 0.1, 1.0, 0.1) == 0.1
    assert adapted(0.3, 3.0, 1.0, 0.1) == pytest.approx(0.9)
    assert adapted(0.01, 30.0, 1.0, 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize(("hidden", "floor"), [("bernoulli", FLOOR), ("deterministic", LOWER_FLOOR)])
def test_the_floor_is_lower_where_there_are_deterministic_layers(hidden: str, floor: float) -> None:
    """The same samples again and again leave only α as the difference between found and predicted: it falls."""
    torch.manual_seed(0)
    below = dagfisher.declare(nn.Linear(4, 3).double(), hidden)
    head = dagfisher.nn.BernoulliLinear(3, 2, dtype=F64)
    opt = built([*below.named_parameters("below"), *head.named_parameters("head")], lr=0.0)
    x = data(20, 4, seed=0)
    for _ in range(12):
        opt.zero_grad()
        out = head(torch.tanh(below(x)))
        if hidden == "deterministic":
            opt.sample_fisher(torch.Generator().manual_seed(0))
        (out - 3).square().mean().backward()
        opt.step()
    assert shown(opt, "damping")[1] == floor


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("kind", ["Bernoulli", "heads", "coupled", "convolution", "Gram matrices"])
def test_the_samples_of_a_floor_are_all_outputs_of_a_unit(
    kind: str, passes: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little curvature and a large gradient dampings fall to the floor, that of the samples of one refresh."""
    if "Gram" in kind:
        monkeypatch.setattr(statistics, "ACCUMULATE", 40)
    module, firsts, _ = one(kind)
    for parameter in module.parameters():
        parameter.requires_grad_(any(parameter is first for first in firsts))
    opt = built(module.named_parameters(), lr=0.0, window=window)
    shape = (120, 2, 4, 4) if firsts[0].dim() == 4 else (600, 4)
    x = 1e-3 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=F64)
    for _ in range(6):
        opt.zero_grad()
        for part in x.chunk(passes):
            (1e4 * (module(part) - 3)).square().sum().div(len(x)).backward()
        opt.step()
    found = opt._layers[0].gradient()
    assert found is not None
    expected = SHARE * found.shape[1] / (len(x) * (9 if x.dim() == 4 else 1))
    assert expected < FLOOR and shown(opt, "damping")[0] == expected
