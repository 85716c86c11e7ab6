"""Kirby's bars: the distribution is exact, and so is the divergence from it."""

from __future__ import annotations

import math

import pytest
import torch

from dagfisher import datasets
from dagfisher.datasets import Distribution


@pytest.fixture
def bars() -> Distribution:
    distribution = datasets.load("three-by-three").distribution
    assert distribution is not None
    return distribution


def test_all_patterns_are_there_in_order(bars: Distribution) -> None:
    assert bars.patterns.shape == (512, 9)
    numbers = bars.patterns @ (2.0 ** torch.arange(8, -1, -1))
    assert torch.equal(numbers, torch.arange(512.0))


def test_probabilities_sum_to_one_with_vertical_bars_twice_as_likely(bars: Distribution) -> None:
    images = bars.patterns.reshape(-1, 3, 3)
    plain = (images == images[:, :1, :1]).all(2).all(1)
    vertical = (images == images[:, :1, :]).all(2).all(1) & ~plain
    horizontal = (images == images[:, :, :1]).all(2).all(1) & ~plain
    assert (int(vertical.sum()), int(horizontal.sum())) == (6, 6)
    p = bars.probabilities
    assert float(p.sum()) == pytest.approx(1, abs=1e-15)
    assert float(p[vertical].sum()) == pytest.approx(2 / 3, abs=1e-15)
    assert (p[vertical] == 2 / 18).all() and (p[horizontal] == 1 / 18).all()
    assert (p[~vertical & ~horizontal] == 0).all()


def test_the_support_is_the_twelve_patterns_that_occur(bars: Distribution) -> None:
    assert bars.support.shape == (12, 9)
    assert bars.support_probabilities.shape == (12,)
    assert float(bars.support_probabilities.sum()) == pytest.approx(1, abs=1e-15)


def test_entropy_is_that_of_choosing_a_kind_and_then_one_of_six(bars: Distribution) -> None:
    kind = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert bars.entropy == pytest.approx(kind + math.log(6), abs=1e-14)


def test_the_divergence_of_the_distribution_from_itself_is_zero(bars: Distribution) -> None:
    assert abs(float(bars.kl_from(bars.support_probabilities.log()))) < 1e-15
    assert abs(float(bars.kl_from(bars.support_probabilities.log().float()))) < 1e-6


def test_the_divergence_from_uniform_is_what_the_entropy_lacks(bars: Distribution) -> None:
    uniform = torch.full((12,), -math.log(512))
    assert float(bars.kl_from(uniform)) == pytest.approx(math.log(512) - bars.entropy, abs=1e-6)
    assert float(bars.kl_from(torch.full((12,), -math.inf))) == math.inf


def test_the_divergence_has_a_gradient(bars: Distribution) -> None:
    log_p = torch.full((12,), -3.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(bars.kl_from(log_p), log_p)
    torch.testing.assert_close(gradient, -bars.support_probabilities.float())


def test_one_log_probability_per_row_of_the_support_is_needed(bars: Distribution) -> None:
    with pytest.raises(ValueError, match=r"shape \(512,\); it needs one value per row of support \(12\)"):
        bars.kl_from(torch.zeros(512))


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_splits_have_the_exact_frequencies(bars: Distribution, split: datasets.Split) -> None:
    data = datasets.load("three-by-three")
    images = data.evaluation(split)
    frequencies = (images[:, None, :] == bars.patterns).all(2).double().mean(0)
    torch.testing.assert_close(frequencies, bars.probabilities, rtol=0, atol=1e-15)


def test_every_pattern_says_what_it_is() -> None:
    data = datasets.load("three-by-three")
    assert (data.label, data.shape, data.sizes) == ("three-by-three B", (3, 3), (1800, 18, 18))


def test_moving_a_dataset_moves_its_patterns(bars: Distribution) -> None:
    moved = datasets.load("three-by-three").to("meta").distribution
    assert moved is not None and moved.patterns.device.type == "meta"
    assert torch.equal(moved.probabilities, bars.probabilities)
