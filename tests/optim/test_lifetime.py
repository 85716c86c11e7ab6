"""Copies of models with their optimizers, and layers that run, rest, or never run."""

import copy
import pickle

import pytest
import torch

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import MissingStatisticsError


def test_a_model_and_its_optimizer_are_copied_together_and_go_on_alike() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2, dtype=torch.float64))
    dagfisher.declare(model[0], "bernoulli")
    optimizer = DAGNaturalGradient(model.parameters(), lr=0.1, update_every=3, momentum=0.5)
    x = torch.randn(5, 3, dtype=torch.float64)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    step(model, optimizer)
    copies = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    for _ in range(4):
        step(model, optimizer)
        for other in copies:
            step(*other)
    for other, _ in copies:
        assert torch.equal(other[0].weight, model[0].weight)


def test_a_declared_layer_that_never_ran_is_an_error_and_one_that_rests_is_not() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "idle": torch.nn.Linear(3, 2)})
    for layer in model.values():
        dagfisher.declare(layer, "bernoulli")
    optimizer = DAGNaturalGradient(model.parameters())
    x = torch.randn(5, 3)
    before = model["used"].weight.clone()
    model["used"](x).sum().backward()
    with pytest.raises(MissingStatisticsError, match="'idle' has never run"):
        optimizer.step()
    model["used"](x).sum().backward()
    with torch.no_grad():
        model["idle"](x)
    with pytest.raises(MissingStatisticsError, match="'idle' has run only in eval"):
        optimizer.step()
    assert torch.equal(model["used"].weight, before)
    model["used"](x).sum().backward()
    model["idle"](x).sum().backward()
    optimizer.step()
    resting = model["idle"].weight.clone()
    optimizer.zero_grad()
    model["used"](x).sum().backward()
    optimizer.step()
    assert torch.equal(model["idle"].weight, resting)
