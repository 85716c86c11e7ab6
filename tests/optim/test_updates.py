"""Acceleration of the natural gradient is what torch.optim does with gradients; decay comes after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import exact
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dagfisher.nn import BernoulliLinear
from dagfisher.optim.updates import apply_update

F64 = torch.float64
PLAIN: dict[str, Any] = {
    "lr": 0.1,
    "betas": None,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "l1": 0.0,
}


def trajectories(settings: dict[str, Any], reference: type, options: dict[str, Any], seed: int, steps: int = 7) -> Any:
    """Our parameters and those of a torch optimizer, after each step along the same vectors."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 2), (4,), ()]
    ours = [torch.randn(s, generator=generator, dtype=F64) for s in shapes]
    theirs = [torch.nn.Parameter(p.clone()) for p in ours]
    states: list[dict[str, Any]] = [{} for _ in shapes]
    optimizer = reference(theirs, lr=settings["lr"], **options)
    for _ in range(steps):
        vectors = [torch.randn(s, generator=generator, dtype=F64) for s in shapes]
        kept = [v.clone() for v in vectors]
        apply_update(ours, vectors, states, settings)
        assert all(torch.equal(v, k) for v, k in zip(vectors, kept, strict=True))
        for p, v in zip(theirs, kept, strict=True):
            p.grad = v
        optimizer.step()
        yield ours, [p.detach() for p in theirs]


def assert_same(settings: dict[str, Any], reference: type, options: dict[str, Any], seed: int) -> None:
    for ours, theirs in trajectories({**PLAIN, **settings}, reference, options, seed):
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)


seeds = st.integers(0, 999)


@given(lr=st.floats(1e-4, 1), seed=seeds)
def test_a_plain_step_is_minus_lr_times_the_vector(lr: float, seed: int) -> None:
    assert_same({"lr": lr}, torch.optim.SGD, {}, seed)


@pytest.mark.parametrize("nesterov", [False, True])
@given(lr=st.floats(1e-4, 1), momentum=st.floats(0.01, 0.99), seed=seeds)
def test_momentum_is_that_of_sgd(nesterov: bool, lr: float, momentum: float, seed: int) -> None:
    options = {"momentum": momentum, "nesterov": nesterov}
    assert_same({"lr": lr, **options}, torch.optim.SGD, options, seed)


@given(lr=st.floats(1e-4, 1), first=st.floats(0, 0.99), second=st.floats(0, 0.9999), seed=seeds)
def test_adam_is_adam(lr: float, first: float, second: float, seed: int) -> None:
    assert_same({"lr": lr, "betas": (first, second)}, torch.optim.Adam, {"betas": (first, second)}, seed)


@given(decay=st.floats(0.001, 1), seed=seeds)
def test_weight_decay_with_adam_is_decoupled(decay: float, seed: int) -> None:
    options = {"betas": (0.9, 0.999), "weight_decay": decay}
    assert_same(options, torch.optim.AdamW, options, seed)


@given(decay=st.floats(0, 1), l1=st.floats(0, 1), lr=st.floats(1e-3, 1), seed=seeds)
def test_decay_and_l1_are_added_to_the_vector(decay: float, l1: float, lr: float, seed: int) -> None:
    """p ← p − lr (v + weight_decay · p + l1 · sign p), with sign 0 = 0."""
    generator = torch.Generator().manual_seed(seed)
    p, v = torch.randn(2, 5, generator=generator, dtype=F64)
    p[2] = 0
    expected = p - lr * (v + decay * p + l1 * p.sign())
    apply_update([p], [v], [{}], {**PLAIN, "lr": lr, "weight_decay": decay, "l1": l1})
    torch.testing.assert_close(p, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"betas": (0.9, 0.99)}])
def test_decay_does_not_enter_the_moments(settings: dict[str, Any]) -> None:
    """The buffers are the same with and without decay: it comes after acceleration."""
    states: list[dict[str, Any]] = []
    for decay in (0.0, 0.5):
        generator = torch.Generator().manual_seed(0)
        p, state = torch.ones(4, dtype=F64), {}
        for _ in range(3):
            v = torch.randn(4, generator=generator, dtype=F64)
            apply_update([p], [v], [state], {**PLAIN, **settings, "weight_decay": decay, "l1": decay})
        states.append(state)
    for key, value in states[0].items():
        if isinstance(value, Tensor):
            assert torch.equal(value, states[1][key])


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({"momentum": 0.9}, torch.optim.SGD),
        ({"momentum": 0.95, "nesterov": True}, torch.optim.SGD),
        ({"betas": (0.9, 0.999)}, torch.optim.Adam),
    ],
    ids=["momentum", "nesterov", "adam"],
)
def test_the_optimizer_accelerates_the_natural_gradient_and_not_the_gradient(
    settings: dict[str, Any], plain: type[torch.optim.Optimizer]
) -> None:
    """A run with momentum or Adam is torch's own, fed with the natural vectors."""
    torch.manual_seed(0)
    layer = BernoulliLinear(4, 3, dtype=F64)
    optimizer = exact(layer.parameters(), lr=0.05, update_every=2, **settings)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in layer.parameters()]
    reference = plain(copies, lr=0.05, **settings)  # type: ignore[call-arg]
    for _ in range(6):
        optimizer.zero_grad()
        layer(torch.randn(12, 4, dtype=F64)).square().mean().backward()
        vectors = optimizer.natural_gradient()
        for copy, p in zip(copies, layer.parameters(), strict=True):
            copy.grad = vectors[p]
        optimizer.step()
        reference.step()
    for copy, p in zip(copies, layer.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), copy.detach(), rtol=1e-12, atol=1e-13)
