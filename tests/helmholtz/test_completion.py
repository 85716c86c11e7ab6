"""Unknown pixels are drawn from p(unknown | known): exactly with candidates, and only then."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dagfisher.errors import SettingError, ShapeError
from dagfisher.helmholtz import HelmholtzMachine

from .enumeration import all_states, tiny_machine

KNOWN = torch.tensor([True, False, True, False, False, True])


def enumerated(machine: HelmholtzMachine, x: Tensor) -> tuple[Tensor, Tensor]:
    """p(unknown | known) of every completion of x, and the completions, from exact p(x) of every image."""
    images = all_states(6, (0, 1))
    fitting = images[(images[:, KNOWN] == x[KNOWN]).all(1)]
    return torch.softmax(machine.exact_log_likelihood(fitting), 0), fitting


@pytest.mark.parametrize("states", [(0, 1), (-1, 1)])
def test_with_candidates_the_limit_is_exact_and_without_it_is_not(states: tuple[float, float]) -> None:
    machine = tiny_machine(states, (6, 3, 2))
    x = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    probabilities, images = enumerated(machine, x)
    many = x.expand(400, 6)
    generator = torch.Generator().manual_seed(0)
    found = machine.complete(many, KNOWN, sweeps=200, candidates=4, generator=generator)
    assert found.exact and 0.05 < found.moved < 1
    expected = probabilities @ images
    assert float((found.mean.mean(0) - expected).abs().max()) < 0.01
    drawn = (found.sample[:, None] == images).all(-1).double().mean(0)
    assert float((drawn - probabilities).abs().max()) < 4 * 0.5 / math.sqrt(400)
    plain = machine.complete(many, KNOWN, sweeps=200, candidates=0, generator=generator)
    assert not plain.exact and plain.moved == 1
    assert float((plain.mean.mean(0) - expected).abs().max()) > 0.05


def test_without_candidates_the_limit_is_exact_if_q_is_the_posterior() -> None:
    # One hidden unit: its posterior is a sigmoid of the pixels, which a recognition layer can be.
    torch.manual_seed(0)
    machine = HelmholtzMachine([6, 1], states=(-1, 1)).double()
    with torch.no_grad():
        for p in machine.parameters():
            p.copy_(torch.randn_like(p))
        weight, bias = machine.generative[0].weight, machine.generative[0].bias
        up = machine.recognition[0]
        # log p(x|h=1) − log p(x|h=−1) = Σ_j x_j w_j − Σ_j log cosh terms, with states ±1.
        up.weight.copy_(weight.T)
        shift = (
            torch.nn.functional.softplus(bias - weight[:, 0]) - torch.nn.functional.softplus(bias + weight[:, 0])
        ).sum()
        up.bias.copy_(machine.prior.bias + shift + weight.sum())
    x = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    h = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    joint = machine.generative[0].log_prob(machine.encode(x[None]), h) + machine.prior.log_prob(h)
    torch.testing.assert_close(machine.recognition[0](machine.encode(x[None])).squeeze(), joint[0] - joint[1])
    probabilities, images = enumerated(machine, x)
    found = machine.complete(
        x.expand(400, 6), KNOWN, sweeps=100, candidates=0, generator=torch.Generator().manual_seed(1)
    )
    assert float((found.mean.mean(0) - probabilities @ images).abs().max()) < 0.02


def test_known_pixels_stay_and_masks_may_differ_between_images() -> None:
    machine = HelmholtzMachine([8, 4, 2])
    x = torch.rand(5, 8).round()
    known = torch.rand(5, 8) < 0.5
    found = machine.complete(torch.where(known, x, torch.nan), known, sweeps=3)
    for image in (found.mean, found.sample):
        assert torch.equal(image[known], x[known])
        assert bool(((image >= 0) & (image <= 1)).all())
    assert set(found.sample.unique().tolist()) <= {0.0, 1.0}


def test_all_known_gives_back_the_image_and_grey_values_can_be_completed() -> None:
    machine = HelmholtzMachine([4, 3], families=["gaussian", "bernoulli"])
    x = torch.rand(2, 4)
    torch.testing.assert_close(machine.complete(x, torch.ones(4), sweeps=1).mean, x)
    found = machine.complete(x, torch.tensor([1, 1, 0, 0]), sweeps=5)
    assert bool(torch.isfinite(found.sample).all()) and not torch.equal(found.sample[:, 2:], x[:, 2:])


def test_what_cannot_be_completed_is_said() -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(SettingError, match="lateral"):
        HelmholtzMachine([4, 3], lateral="generative").complete(x, torch.ones(4))
    machine = HelmholtzMachine([4, 3], lateral="recognition")
    with pytest.raises(ShapeError, match="known has the shape"):
        machine.complete(x, torch.ones(3))
    with pytest.raises(SettingError, match="sweeps"):
        machine.complete(x, torch.ones(4), sweeps=0)
    assert machine.complete(x, torch.zeros(4), sweeps=2).sample.shape == (2, 4)
