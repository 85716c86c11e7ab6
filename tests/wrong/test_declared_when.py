"""No declared layer, or one that was declared too late, is never plain gradient descent without a word."""

from __future__ import annotations

import warnings

import pytest
import torch
from exact import exact
from torch import nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DagFisherWarning

X = torch.randn(6, 4, dtype=torch.float64)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3, dtype=torch.float64), nn.Sigmoid(), nn.Linear(3, 2, dtype=torch.float64))


def test_an_optimizer_without_declared_layers_warns() -> None:
    with pytest.warns(DagFisherWarning, match=r"none of these parameters.*plain sgd.*dagfisher\.declare"):
        exact(net().parameters())


def test_one_with_a_declared_layer_does_not() -> None:
    model = net()
    dagfisher.declare(model[0], "bernoulli")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact(model.parameters())


def late(when: str) -> tuple[nn.Sequential, DAGNaturalGradient]:
    model = net()
    dagfisher.declare(model[0], "bernoulli")
    opt = exact(model.parameters(), lr=0.1, damping=0.1, solver="dense")
    if when == "before zero_grad":
        dagfisher.declare(model[2], "bernoulli")
        with pytest.warns(DagFisherWarning, match="layer '2': declared after the optimizer was built"):
            opt.zero_grad()
    model(X).sum().backward()
    return model, opt


def test_a_late_declaration_is_noticed_at_the_next_zero_grad() -> None:
    model, opt = late("before zero_grad")
    opt.step()
    twin = net()
    dagfisher.declare(twin[0], "bernoulli")
    dagfisher.declare(twin[2], "bernoulli")
    other = exact(twin.parameters(), lr=0.1, damping=0.1, solver="dense")
    twin(X).sum().backward()
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_layer_declared_between_its_pass_and_the_step_follows_its_plain_gradient_once() -> None:
    model, opt = late("after")
    dagfisher.declare(model[2], "bernoulli")
    before, gradient = model[2].weight.clone(), model[2].weight.grad.clone()
    with pytest.warns(DagFisherWarning, match="layer '2': declared after.*from the next forward pass on"):
        opt.step()
    torch.testing.assert_close(model[2].weight, before - 0.1 * gradient)
    opt.zero_grad()
    model(X).sum().backward()
    assert not torch.equal(opt.natural_gradient()[model[2].weight], model[2].weight.grad)
    opt.step()


def test_an_undeclared_layer_goes_back_to_its_plain_gradient() -> None:
    model, opt = late("before zero_grad")
    opt.step()
    dagfisher.undeclare(model[2])
    opt.zero_grad()
    model(X).sum().backward()
    assert torch.equal(opt.natural_gradient()[model[2].weight], model[2].weight.grad)
    opt.step()
    assert not model[2]._forward_hooks


def test_undeclare_takes_off_what_declare_put_on() -> None:
    model = net()
    before = {k: v for k, v in model[0].__dict__.items()}
    dagfisher.declare(model[0], "bernoulli")
    assert dagfisher.undeclare(model[0]) is model[0]
    assert model[0].__dict__.keys() == before.keys()
    assert not model[0]._forward_hooks
    assert not model[0]._forward_hooks_with_kwargs
    dagfisher.declare(model[0], "poisson")
    torch.jit.script(dagfisher.undeclare(model[0]))


def test_both_heads_of_a_gaussian_layer_go_together() -> None:
    mean, scale = nn.Linear(3, 2), nn.Linear(3, 2)
    for head in (mean, scale):
        dagfisher.declare_gaussian(mean=mean, log_var=scale)
        dagfisher.undeclare(head)
        assert not mean._forward_hooks and not scale._forward_hooks
    with pytest.raises(dagfisher.errors.DeclarationError, match="not declared"):
        dagfisher.undeclare(mean)
