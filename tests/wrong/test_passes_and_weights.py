"""Which passes count: those of the loss, with the weights that belong to them, whenever these are known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from torch import Tensor, nn
from torch.func import functional_call

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError, SampleWeightError

F64 = torch.float64
X, Y = torch.randn(8, 4, dtype=F64), torch.bernoulli(torch.full((8, 3), 0.5, dtype=F64))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 3, dtype=F64))
    dagfisher.declare(made[0], "bernoulli")
    return made


def optimizer(model: nn.Module) -> DAGNaturalGradient:
    return exact(model.parameters(), damping=0.1, solver="dense")


def log_prob(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    return -F.binary_cross_entropy_with_logits(model(x), y, reduction="none").sum(1)


def importance(log_p: Tensor) -> Tensor:
    return torch.softmax(2 * log_p.detach(), 0)


def joined(opt: DAGNaturalGradient) -> Tensor:
    return torch.cat([v.flatten() for v in opt.natural_gradient().values()])


def expected() -> Tensor:
    """The natural gradient with a first pass that was told not to count."""
    model = net()
    opt = optimizer(model)
    with torch.no_grad():
        w = importance(log_prob(model))
    with dagfisher.sample_weights(w):
        (-(w * log_prob(model)).sum()).backward()
    return joined(opt)


def test_a_pass_that_never_reaches_the_loss_does_not_count() -> None:
    """RWS code computes log p once to get its weights, and again inside sample_weights."""
    model = net()
    opt = optimizer(model)
    w = importance(log_prob(model))  # with a graph that no backward pass goes through
    with dagfisher.sample_weights(w):
        (-(w * log_prob(model)).sum()).backward()
    torch.testing.assert_close(joined(opt), expected(), rtol=1e-13, atol=0)


def test_if_no_backward_pass_came_all_passes_count() -> None:
    """Gradients may be put into .grad by hand."""
    model = net()
    opt = optimizer(model)
    model(X[:5]), model(X[5:])
    blocks = opt.fisher_blocks(model[0].weight)
    opt.zero_grad()
    model(X)
    torch.testing.assert_close(blocks, opt.fisher_blocks(model[0].weight))


def test_weights_may_be_given_after_the_pass() -> None:
    model = net()
    opt = optimizer(model)
    log_p = log_prob(model)
    w = importance(log_p)
    opt.set_sample_weights(w)
    (-(w * log_p).sum()).backward()
    torch.testing.assert_close(joined(opt), expected(), rtol=1e-13, atol=0)


def test_weights_that_were_given_with_a_pass_stay() -> None:
    model = net()
    opt = optimizer(model)
    w = importance(log_prob(model))
    opt.zero_grad()
    with dagfisher.sample_weights(w):
        log_p = log_prob(model)
    opt.set_sample_weights(torch.ones(8))
    (-(w * log_p).sum()).backward()
    torch.testing.assert_close(joined(opt), expected(), rtol=1e-13, atol=0)


def test_weights_may_be_given_to_some_modules() -> None:
    first, second = net(), net()
    model = nn.ModuleList([first, second])
    opt = optimizer(model)
    w = torch.rand(8, dtype=F64)
    first(X), second(X[:5])
    with pytest.raises(SampleWeightError, match=r"layer '1\.0': .*\(8,\) do not fit.*\(5,\)"):
        opt.set_sample_weights(w)
    opt.zero_grad()
    first(X), second(X[:5])
    opt.set_sample_weights(w, modules=[first])
    passes = [layer.recorder.passes[0] for layer in opt._layers]
    assert torch.equal(passes[0].sample_weights, w)
    assert torch.equal(passes[1].sample_weights, torch.ones(5, dtype=F64))


def test_a_pass_too_large_to_keep_must_be_given_its_weights_before() -> None:
    conv = nn.Conv2d(8, 2, 5)
    dagfisher.declare(conv, "bernoulli")
    opt = exact(conv.parameters())
    conv(torch.randn(4, 8, 80, 80))
    with pytest.raises(SampleWeightError, match=r"too large to keep.*inside sample_weights"):
        opt.set_sample_weights(torch.ones(4))


def test_one_pass_may_have_two_losses() -> None:
    """zero_grad() between two backward passes through one graph: the pass comes back with the second."""
    model = net()
    opt = optimizer(model)
    out = model(X)
    out.square().sum().backward(retain_graph=True)
    opt.zero_grad()
    F.binary_cross_entropy_with_logits(out, Y, reduction="sum").div(8).backward()
    found = joined(opt)
    opt.step()
    other = net()
    twin = optimizer(other)
    F.binary_cross_entropy_with_logits(other(X), Y, reduction="sum").div(8).backward()
    torch.testing.assert_close(found, joined(twin), rtol=0, atol=0)
    twin.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_pass_whose_gradients_were_cleared_does_not_come_back_by_itself() -> None:
    model = net()
    opt = optimizer(model)
    out = model(X)  # its graph lives on
    out.sum().backward(retain_graph=True)
    opt.zero_grad()
    model(X[:2]).sum().backward()
    assert [p.samples.numel() for p in opt._layers[0].recorder.take()] == [2]
    assert out.grad_fn is not None


def test_a_cleared_pass_goes_when_its_graph_goes() -> None:
    model = net()
    opt = optimizer(model)
    out = model(X)
    out.sum().backward(retain_graph=True)
    opt.zero_grad()
    assert len(opt._layers[0].recorder._cleared) == 1
    del out
    assert not opt._layers[0].recorder._cleared


def test_two_heads_may_have_two_losses_too() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"mean": nn.Linear(4, 2, dtype=F64), "scale": nn.Linear(4, 2, dtype=F64)})
    dagfisher.declare_gaussian(mean=model["mean"], log_std=model["scale"])
    opt = optimizer(model)
    mean, scale = model["mean"](X), model["scale"](X)
    (mean + scale).sum().backward(retain_graph=True)
    opt.zero_grad()
    (mean.square() + scale).sum().backward()
    blocks = opt.fisher_blocks(model["mean"].weight)
    opt.step()
    opt.zero_grad()
    assert blocks.shape == (2, 5, 5)


def test_functional_call_with_other_tensors_does_not_feed_the_fisher() -> None:
    model = net()
    opt = optimizer(model)
    others = {name: torch.randn_like(p).requires_grad_() for name, p in model.named_parameters()}
    functional_call(model, others, X)
    functional_call(model, dict(model.named_parameters()), X).sum().backward()
    assert len(opt._layers[0].recorder.passes) == 1


def test_functional_call_with_tensors_made_of_the_parameters_is_refused() -> None:
    model = net()
    opt = optimizer(model)
    made = {name: p * 0.9 for name, p in model.named_parameters()}
    with pytest.raises(DeclarationError, match=r"layer '0' .*functional_call.*no_capture"):
        functional_call(model, made, X)
    with dagfisher.no_capture():
        functional_call(model, made, X)
    assert not opt._layers[0].recorder.passes
