"""Adaptive damping: the curvature ratio against dense matrices, and what is made of it."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import SettingError
from dagfisher.optim import damping as damping_module
from dagfisher.optim.damping import adapted

F64 = torch.float64


def layer(seed: int = 0, units: int = 3) -> dagfisher.nn.BernoulliLinear:
    torch.manual_seed(seed)
    return dagfisher.nn.BernoulliLinear(4, units, dtype=F64)


def batch(seed: int, n: int = 20, units: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=F64)
    return x, torch.rand(n, units, generator=generator, dtype=F64).round()


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean over samples of −log p(y|x): its Hessian is the Fisher matrix of the samples."""
    return nn.functional.binary_cross_entropy_with_logits(net(x), y, reduction="sum") / len(x)


@torch.no_grad()
def blocks(net: dagfisher.nn.BernoulliLinear, x: Tensor) -> Tensor:
    u = torch.cat([x, torch.ones(len(x), 1, dtype=F64)], 1)
    rho = torch.sigmoid(net(x))
    return torch.einsum("nj,nd,ne->jde", rho * (1 - rho), u, u) / len(x)


@given(damping=st.floats(0.02, 5), lr=st.floats(1e-3, 1), judged=st.integers(1, 5), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_the_damping_follows_the_curvature_of_another_minibatch(
    damping: float, lr: float, judged: int, seed: int
) -> None:
    net = layer(seed)
    optimizer = DAGNaturalGradient(net.parameters(), lr=lr, damping=damping, solver="dense")
    x, y = batch(100 + seed)
    other = batch(judged)
    loss(net, x, y).backward()
    v = torch.cat([g.reshape(3, -1) for g in optimizer.natural_gradient().values()], 1)
    own = blocks(net, x) + damping * torch.eye(5, dtype=F64)
    found = torch.einsum("jd,jde,je->", v, blocks(net, other[0]), v)
    ratio = float(found / torch.einsum("jd,jde,je->", v, own, v))
    before = copy.deepcopy(net.state_dict())
    with patch.object(damping_module, "PROBE", 1e-5):  # terms of the fourth order vanish
        optimizer.adapt_damping(lambda: loss(net, *other))
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    wanted = damping * min(max(ratio / damping_module.TARGET, 0.5), 2.0)
    assert optimizer.param_groups[0]["damping"] == pytest.approx(wanted, rel=1e-3)


def test_groups_with_losses_of_their_own_adapt_alone() -> None:
    """Two networks in one optimizer do what each does in its own."""

    def alone(seed: int) -> float:
        net = layer(seed)
        optimizer = DAGNaturalGradient(net.parameters(), damping=0.3)
        loss(net, *batch(seed)).backward()
        optimizer.adapt_damping(lambda: loss(net, *batch(seed + 10)))
        return float(optimizer.param_groups[0]["damping"])

    nets = [layer(1), layer(2)]
    optimizer = DAGNaturalGradient([{"params": net.parameters()} for net in nets], damping=0.3)
    for i, net in enumerate(nets):
        loss(net, *batch(i + 1)).backward()
    optimizer.adapt_damping(lambda: [loss(net, *batch(i + 11)) for i, net in enumerate(nets)])
    got = [group["damping"] for group in optimizer.param_groups]
    assert got == pytest.approx([alone(1), alone(2)], rel=1e-9)
    assert got[0] != pytest.approx(got[1], rel=1e-3)


def test_one_loss_of_all_groups_adapts_them_alike() -> None:
    """Weight and bias of two layers in two groups, judged together, do as one group does."""

    def dampings(groups: int) -> list[float]:
        nets = [layer(1), layer(1)]
        each = [list(net.parameters()) for net in nets]
        optimizer = DAGNaturalGradient(
            [{"params": p} for p in each] if groups == 2 else [*each[0], *each[1]], damping=0.3
        )
        for net in nets:
            loss(net, *batch(1)).backward()
        optimizer.adapt_damping(lambda: loss(nets[0], *batch(11)) + loss(nets[1], *batch(11)))
        return [group["damping"] for group in optimizer.param_groups]

    apart, together = dampings(2), dampings(1)
    assert apart[0] == apart[1] != 0.3
    assert apart[0] == pytest.approx(together[0], rel=1e-2)


def test_the_new_damping_enters_at_the_next_refresh() -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), lr=0.1, damping=5.0, update_every=2, solver="dense")
    seen, undamped = [], []
    for step in range(4):
        optimizer.zero_grad()
        undamped.append(blocks(net, batch(step)[0])[0, 0, 0].item())
        loss(net, *batch(step)).backward()
        if step == 1:
            optimizer.adapt_damping(lambda: loss(net, *batch(9)))
        damped = optimizer.fisher_blocks(net.weight)
        seen.append(damped[0, 0, 0].item())
        optimizer.step()
    assert optimizer.param_groups[0]["damping"] < 4
    alpha = optimizer.param_groups[0]["damping"]
    for step, used in ((0, 5.0), (2, alpha)):
        assert seen[step] == pytest.approx((used + undamped[step]) / (1 + used))
        assert seen[step + 1] == pytest.approx(seen[step])


def test_adapting_twice_before_a_refresh_changes_no_more_than_once() -> None:
    """The ratio is about the damping that was solved with, which stays until the refresh."""
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), lr=0.0, damping=5.0, update_every=3)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss(net, *batch(0)).backward()
        optimizer.adapt_damping(lambda: loss(net, *batch(9)))
        found.append(optimizer.param_groups[0]["damping"])
        optimizer.step()
    assert found[1] == pytest.approx(found[2]) and 0.5 * found[0] <= found[1] < found[0] < 5.0


@pytest.mark.parametrize("every", [1, 3, lambda step: 2 + step % 3], ids=["1", "3", "schedule"])
def test_which_steps_refresh_is_known_before(every: int | Callable[[int], int]) -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), lr=0.1, update_every=every)
    (bound,) = optimizer._layers
    refreshed, soon, later = [], [], []
    for step in range(12):
        optimizer.zero_grad()
        loss(net, *batch(step)).backward()
        soon.append(optimizer.refreshes_within(1))
        later.append(optimizer.refreshes_within(2))
        optimizer.step()
        refreshed.append(bound.refreshed == step)
    assert soon[:-1] == refreshed[1:]
    assert later[:-2] == [a or b for a, b in itertools.pairwise(refreshed[1:])]


def test_losses_may_be_numbers() -> None:
    dampings = []
    for read in (lambda value: value, float):
        net = layer()
        optimizer = DAGNaturalGradient(net.parameters(), damping=0.3)
        loss(net, *batch(0)).backward()
        optimizer.adapt_damping(lambda net=net, read=read: read(loss(net, *batch(1))))  # type: ignore[misc]
        dampings.append(optimizer.param_groups[0]["damping"])
    assert dampings[0] == dampings[1] != 0.3


@pytest.mark.parametrize(
    ("damping", "ratio", "wanted"),
    [
        (0.2, 0.6, 0.2),
        (0.2, 0.72, 0.24),
        (0.2, 10.0, 0.4),
        (0.2, math.inf, 0.4),
        (0.2, 0.0, 0.1),
        (0.2, -1.0, 0.1),
        (0.2, math.nan, 0.2),
        (1e4, 1.0, 1e4),
        (1e-4, 0.0, 1e-4),
    ],
)
def test_the_rule(damping: float, ratio: float, wanted: float) -> None:
    assert adapted(damping, ratio) == pytest.approx(wanted)


@pytest.mark.parametrize(("target", "wanted"), [(0.3, 0.4), (1.2, 0.1), (0.5, 0.24), (1e9, 0.1)])
def test_the_rule_with_a_target(target: float, wanted: float) -> None:
    assert adapted(0.2, 0.6, target) == pytest.approx(wanted)


def test_each_group_has_its_target_and_none_falls_below_the_least() -> None:
    """Two equal networks, of which the one with the larger target gets less damping."""

    def dampings(target: float | tuple[float, ...], least: float) -> list[float]:
        nets = [layer(1), layer(1)]
        optimizer = DAGNaturalGradient([{"params": net.parameters()} for net in nets], damping=0.3)
        for net in nets:
            loss(net, *batch(1)).backward()
        optimizer.adapt_damping(lambda: [loss(net, *batch(11)) for net in nets], target=target, least=least)
        return [group["damping"] for group in optimizer.param_groups]

    usual = dampings(0.6, 1e-4)
    assert usual[0] == usual[1] == dampings((0.6, 0.6), 1e-4)[0] != 0.3
    apart = dampings((0.6, 0.65), 1e-4)
    assert apart == pytest.approx([usual[0], usual[0] * 0.6 / 0.65])
    assert dampings((0.6, 1e6), 0.17) == pytest.approx([max(usual[0], 0.17), 0.17])


@pytest.mark.parametrize("target", [0.0, -1.0, (0.6, 2.0), (), math.nan])
def test_a_target_that_cannot_be_is_refused_and_nothing_changes(target: float | tuple[float, ...]) -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), damping=0.3)
    loss(net, *batch(0)).backward()
    with pytest.raises(SettingError, match="positive target, or one for each of 1 groups"):
        optimizer.adapt_damping(lambda: loss(net, *batch(1)), target=target)
    assert optimizer.param_groups[0]["damping"] == 0.3


def test_a_gradient_of_zero_changes_nothing() -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), damping=0.3)
    (0 * loss(net, *batch(0))).backward()
    optimizer.adapt_damping(lambda: loss(net, *batch(1)))
    assert optimizer.param_groups[0]["damping"] == 0.3


def test_an_error_in_the_loss_leaves_the_parameters_where_they_were() -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), damping=0.3)
    loss(net, *batch(0)).backward()
    before = copy.deepcopy(net.state_dict())
    calls: list[int] = []

    def breaks() -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of batches")
        return loss(net, *batch(1))

    with pytest.raises(RuntimeError, match="out of batches"):
        optimizer.adapt_damping(breaks)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert optimizer.param_groups[0]["damping"] == 0.3


@pytest.mark.parametrize(
    "bad",
    [lambda: torch.zeros(3), lambda: [torch.zeros(())] * 3, lambda: [], lambda: None, lambda: "low"],
    ids=["vector", "three", "no", "None", "text"],
)
def test_losses_that_do_not_fit_are_refused(bad: Callable[[], Tensor]) -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), damping=0.3)
    loss(net, *batch(0)).backward()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(SettingError, match="one loss, or one for each of 1 groups"):
        optimizer.adapt_damping(bad)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_a_damping_that_is_a_schedule_is_not_adapted() -> None:
    net = layer()
    optimizer = DAGNaturalGradient(net.parameters(), damping=lambda step: 0.3)
    loss(net, *batch(0)).backward()
    with pytest.raises(SettingError, match="a number, not a schedule"):
        optimizer.adapt_damping(lambda: loss(net, *batch(1)))
