"""Drawing examples by norms: variances against enumeration, weights that leave the mean as it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from dagfisher.errors import SettingError
from dagfisher.importance import ImportanceSampler, sampling_variance


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 7), width=st.integers(1, 4), uniform=st.booleans(), seed=st.integers(0, 99))
def test_the_variance_is_the_trace_of_the_covariance_of_the_weighted_gradient_of_a_drawn_example(
    count: int, width: int, uniform: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(count, width, generator=generator, dtype=torch.float64)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    pi = torch.full_like(weights, 1 / count) if uniform else weights / weights.sum()
    drawn = gradients / (count * pi)[:, None]
    mean = (pi[:, None] * drawn).sum(0)
    covariance = (pi[:, None, None] * (drawn - mean)[:, :, None] * (drawn - mean)[:, None]).sum(0)
    found = sampling_variance(gradients.norm(dim=1), None if uniform else weights, float(gradients.mean(0).norm()))
    assert found == pytest.approx(float(covariance.trace()), abs=1e-12)


def test_weights_that_are_the_norms_have_the_least_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    norms = torch.rand(20, generator=generator) ** 3
    norms[3] = 0  # an example that has no gradient need never be drawn
    least = sampling_variance(norms, norms)
    assert least == pytest.approx(float(norms.double().mean()) ** 2)
    for _ in range(50):
        others = norms * torch.exp(0.3 * torch.randn(20, generator=generator))
        assert least < sampling_variance(norms, others) < sampling_variance(norms) * 2
    assert least < 0.7 * sampling_variance(norms)


def test_probabilities_are_smoothed_norms_and_unknown_examples_count_as_the_mean() -> None:
    sampler = ImportanceSampler(4, 2, smoothing=0.5)
    assert sampler.probabilities().tolist() == [0.25] * 4
    sampler.update(torch.tensor([0, 2]), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(sampler.probabilities(), torch.tensor([2.0, 3.0, 4.0, 3.0]) / 12)
    sampler.smoothing = float("inf")
    assert sampler.probabilities().tolist() == [0.25] * 4
    sampler.update(torch.arange(4), torch.zeros(4))  # every loss has reached its least
    assert sampler.probabilities().tolist() == [0.25] * 4


def test_examples_are_drawn_with_these_probabilities_and_their_weights_leave_the_mean_as_it_is() -> None:
    values = torch.tensor([1.0, -2.0, 5.0, 0.5, 3.0])
    sampler = ImportanceSampler(5, 20_000, smoothing=0.2, generator=torch.Generator().manual_seed(0))
    sampler.update(torch.arange(5), torch.tensor([0.1, 4.0, 1.0, 0.5, 2.0]))
    (batch,) = sampler
    drawn = torch.tensor(batch)
    torch.testing.assert_close(drawn.bincount() / 20_000, sampler.probabilities(), rtol=0, atol=0.01)
    assert float((sampler.weights(drawn) * values[drawn]).mean()) == pytest.approx(float(values.mean()), abs=0.05)
    assert abs(float(values[drawn].mean() - values.mean())) > 0.5  # without the weights it would be another


def test_weights_are_those_of_the_draw_although_norms_have_changed_since() -> None:
    sampler = ImportanceSampler(3, 30)
    sampler.update(torch.arange(3), torch.tensor([1.0, 2.0, 3.0]))
    expected = 1 / (3 * sampler.probabilities())
    next(iter(sampler))
    sampler.update(torch.arange(3), torch.tensor([9.0, 1.0, 1.0]))
    torch.testing.assert_close(sampler.weights(torch.arange(3)), expected)


def test_a_data_loader_takes_it() -> None:
    sampler = ImportanceSampler(10, 4)
    loader = DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_sampler=sampler)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    for values, numbers in batches:
        assert values.tolist() == numbers.tolist() and len(values) == 4


def test_settings_without_a_meaning_are_refused() -> None:
    for count, size, smoothing in ((0, 1, 0.1), (1, 0, 0.1), (1, 1, -1.0), (1, 1, float("nan"))):
        with pytest.raises(SettingError):
            ImportanceSampler(count, size, smoothing=smoothing)
