"""What zero_grad() clears, the statistics forget: skipped, broken and accumulated steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Net, affine, assert_step, backward, data, declared, loss, natural, optimizer, same, scaled
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient, sample_weights

X = data(6, 4)
W = torch.tensor([1.0, 0.5, 0.0, 2.0, 3.0, 0.25], dtype=torch.float64)
LR = 0.01


def pair(**settings: Any) -> tuple[tuple[Net, DAGNaturalGradient], tuple[Net, DAGNaturalGradient]]:
    """Two equal models with optimizers of their own."""
    first, second = ((net := Net(), optimizer(net.parameters(), **{"lr": LR, **settings})) for _ in range(2))
    return first, second


@pytest.mark.parametrize("settings", [{}, {"update_every": 2, "momentum": 0.9}, {"betas": (0.9, 0.99)}])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("early", [False, True], ids=["zero_grad first", "forward first"])
def test_scaled_and_skipped_steps_leave_the_run_of_who_never_saw_them(
    settings: dict[str, Any], parts: int, early: bool
) -> None:
    (net, opt), (twin, other) = pair(**settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def losses(net: Net, step: int, bad: bool = False) -> list[Tensor]:
        batches = enumerate(data(6, 4, seed=step).split(6 // parts))
        return [loss(net(x)) * (torch.inf if bad and i == parts - 1 else 1.0) for i, x in batches]

    skipped = 0
    for step in range(6):
        for bad in (True, False) if step in (0, 3, 4) else (False,):
            before = [p.clone() for p in net.parameters()]
            terms = losses(net, 50 + step if bad else step, bad) if early else None
            opt.zero_grad()
            for term in terms or losses(net, 50 + step if bad else step, bad):
                scaler.scale(term).backward()
            scaler.step(opt)
            scaler.update()
            skipped += all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
        other.zero_grad()
        for term in losses(twin, step):
            term.backward()
        other.step()
        assert same(net, twin)
    assert skipped == 3


@pytest.mark.parametrize("clear", [lambda opt: opt.zero_grad(), lambda opt: opt.zero_grad(set_to_none=False)])
def test_passes_that_never_came_to_a_step_do_not_feed_a_later_one(clear: Callable[[DAGNaturalGradient], None]) -> None:
    (net, opt), _ = pair()
    value = loss(net(5 * X))  # a loss that someone did not like, and still holds
    clear(opt)
    with pytest.raises(KeyError):  # a pass that broke off behind the first layer
        net.head(net.encoder(7 * X) * {}["missing"])
    clear(opt)
    loss(net(3 * X)).backward()  # a gradient for somebody else, as a discriminator gives it to a generator
    dagfisher.observe(net.head, data(6, 3), data(6, 2))
    clear(opt)
    loss(net(X)).backward()
    assert value.requires_grad
    assert_step(opt, scaled(LR, net.natural(X, 0.1)))


def test_a_closure_that_breaks_leaves_no_trace() -> None:
    (net, opt), (twin, other) = pair(momentum=0.9)

    def closure(x: Tensor, breaks: bool) -> Tensor:
        opt.zero_grad()
        value = loss(net(x))
        value.backward()
        if breaks:
            raise KeyError
        return value

    for step in range(3):
        with pytest.raises(KeyError):
            opt.step(lambda: closure(9 * X, True))
        opt.step(lambda step=step: closure(data(6, 4, seed=step), False))
        backward(twin, other, data(6, 4, seed=step))
        other.step()
        assert same(net, twin)


def test_the_two_heads_of_a_gaussian_are_forgotten_together() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"mean": nn.Linear(4, 2), "scale": nn.Linear(4, 2)}).double()
    dagfisher.declare_gaussian(mean=model["mean"], log_std=model["scale"])
    opt = optimizer(model.parameters())
    x = data(5, 4, seed=3)
    early = loss(model["scale"](x)) + loss(model["mean"](x))
    loss(model["mean"](9 * X)).backward()  # its scale head never ran
    opt.zero_grad()
    model["scale"](7 * X)  # nor did its mean head
    opt.zero_grad()
    early.backward()
    loss(model["scale"](X)).backward()
    loss(model["mean"](X)).backward()
    rows = torch.cat([x, X])
    q = np.exp(-2 * affine(model["scale"], rows))
    expected = natural(model["mean"], rows, 0.1, q=q) | natural(model["scale"], rows, 0.1, q=np.full((11, 2), 2.0))
    assert_step(opt, expected)


@pytest.mark.parametrize("family, settings", [("bernoulli", {}), ("gaussian", {"min_std": 0.1}), ("poisson", {})])
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_weighted_micro_batches_equal_one_batch(family: str, settings: dict[str, Any], parts: int) -> None:
    layers = [declared(4, 2, family=family, **settings) for _ in range(2)]
    for layer, k in zip(layers, (1, parts), strict=True):
        opt = optimizer(layer.parameters(), momentum=0.9, solver="auto", tolerance=1e-14)
        for step in range(3):
            opt.zero_grad()
            for x, w in zip(data(6, 4, seed=step).split(6 // k), W.split(6 // k), strict=True):
                with sample_weights(w):
                    (w * layer(x).square().sum(1)).sum().mul(0.01).backward()
            opt.step()
    for p, q in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)
