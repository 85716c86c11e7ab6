"""The trust region: the divergence of every step is bounded, and steps inside it are not touched."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import NonFiniteError, SettingError

F64 = torch.float64


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [dagfisher.nn.BernoulliLinear(6, 5, dtype=F64), dagfisher.nn.GaussianLinear(5, 3, dtype=F64)]
    return nn.Sequential(*layers)


def divergence(blocks: list[Tensor], moves: list[Tensor]) -> float:
    """½ΔᵀFΔ over all units, from the undamped blocks."""
    return 0.5 * sum(float(torch.einsum("jd,jde,je->", m, b, m)) for b, m in zip(blocks, moves, strict=True))


@given(
    epsilon=st.floats(1e-6, 1e-1),
    lr=st.floats(1e-3, 10),
    damping=st.floats(1e-3, 2),
    every=st.integers(1, 3),
    solver=st.sampled_from(["dense", "woodbury", "conjugate", "auto"]),
)
@settings(max_examples=25, deadline=None)
def test_no_step_passes_the_bound(epsilon: float, lr: float, damping: float, every: int, solver: str) -> None:
    net = model()
    optimizer = DAGNaturalGradient(
        net.parameters(), lr=lr, damping=damping, update_every=every, trust_region=epsilon, solver=solver
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(9, 6, generator=generator, dtype=F64)
        optimizer.zero_grad()
        hidden = net[0](x)
        (net[1](torch.tanh(hidden)) - 3).square().sum().backward()
        before = copy.deepcopy(net.state_dict())
        blocks = []
        for layer in net:
            damped = optimizer.fisher_blocks(layer.weight) * (1 + damping)
            blocks.append(damped - damping * torch.eye(damped.shape[1], dtype=F64))
        optimizer.step()
        after = net.state_dict()
        change = {name: after[name] - before[name] for name in after}
        moves = [torch.cat([change[f"{i}.weight"], change[f"{i}.bias"][:, None]], 1) for i in range(2)]
        assert divergence(blocks, moves) <= epsilon * (1 + 1e-6)
        whole = [b + damping * torch.eye(b.shape[1], dtype=F64) for b in blocks]
        assert divergence(whole, moves) <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize("damping", [0.01, 0.2])
def test_a_solve_that_is_not_exact_and_a_fisher_that_is_reused_pass_the_bound_by_no_more_than_the_tolerance(
    damping: float,
) -> None:
    """Correlated parents, the conjugate solver in float32: with iterations at the small damping, without at the other.

    What was reused is the metric, so the blocks are those of the last refresh.
    """
    torch.manual_seed(0)
    layer, mix, truth = dagfisher.nn.BernoulliLinear(120, 60), torch.randn(120, 120) / 5, torch.randn(120, 60) / 4
    settings: dict[str, Any] = {"damping": damping, "update_every": 5, "solver": "conjugate", "trust_region": 1e-3}
    optimizer = DAGNaturalGradient(layer.parameters(), lr=0.5, **settings)
    for number in range(10):
        x = torch.sign(torch.randn(200, 120) @ mix + 1)
        children = torch.bernoulli(torch.sigmoid(x @ truth))
        optimizer.zero_grad()
        logits = layer(x)
        binary_cross_entropy_with_logits(logits, children, reduction="sum").div(200).backward()
        if number % 5 == 0:
            rows = torch.cat([x, torch.ones(200, 1)], 1).double()
            q = (logits.sigmoid() * (-logits).sigmoid()).detach().double() / 200
        before = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()
        optimizer.step()
        move = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double() - before
        whole = 0.5 * float((q.T * (move @ rows.T).square()).sum() + damping * move.square().sum())
        assert 0.95e-3 < whole < (1 + 0.02) * 1e-3  # every step is shortened, and to the bound


def step(trust_region: float | None, **more: Any) -> list[Tensor]:
    net = model()
    optimizer = DAGNaturalGradient(net.parameters(), lr=0.1, damping=0.2, trust_region=trust_region, **more)
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=F64)
    start = [p.detach().clone() for p in net.parameters()]
    (net[1](torch.tanh(net[0](x))) - 3).square().sum().backward()
    optimizer.step()
    return [p.detach() - s for p, s in zip(net.parameters(), start, strict=True)]


def test_a_step_inside_the_region_is_not_touched_and_one_outside_is_only_shortened() -> None:
    free, wide, tight = step(None), step(1e6), step(1e-3)
    torch.testing.assert_close(wide, free, rtol=0, atol=0)
    factor = float(tight[0].norm() / free[0].norm())
    assert factor < 0.5
    torch.testing.assert_close(tight, [f * factor for f in free], rtol=1e-6, atol=1e-12)


def test_the_bound_is_reached_where_it_is_passed() -> None:
    """With the damped metric, ½Δᵀ(αI + F)Δ = ε exactly; four times the ε is twice the step."""
    small, large = step(1e-4), step(4e-4)
    torch.testing.assert_close(large, [2 * s for s in small], rtol=1e-6, atol=1e-12)


def test_each_group_has_a_region_of_its_own() -> None:
    net = model()
    groups = [{"params": net[0].parameters(), "trust_region": 1e-5}, {"params": net[1].parameters()}]
    optimizer = DAGNaturalGradient(groups, lr=0.1, damping=0.2)
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=F64)
    start = [p.detach().clone() for p in net.parameters()]
    (net[1](torch.tanh(net[0](x))) - 3).square().sum().backward()
    optimizer.step()
    moved = [p.detach() - s for p, s in zip(net.parameters(), start, strict=True)]
    free = step(None)
    torch.testing.assert_close(moved[2:], free[2:], rtol=0, atol=0)
    assert float(moved[0].norm()) < float(free[0].norm())


@pytest.mark.parametrize(
    ("bias", "match"), [({"lr": 10.0}, "different learning rates"), ({"trust_region": None}, "groups that differ")]
)
def test_a_layer_whose_weight_and_bias_differ_so_that_no_bound_could_hold_is_refused(
    bias: dict[str, Any], match: str
) -> None:
    net = model()
    weights, biases = ([p for n, p in net.named_parameters() if n.endswith(kind)] for kind in ("weight", "bias"))
    groups = [{"params": weights}, {"params": biases, **bias}]
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(SettingError, match=match):
        optimizer = DAGNaturalGradient(groups, lr=0.1, trust_region=1e-3)
        net[1](torch.tanh(net[0](torch.randn(4, 6, dtype=F64)))).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_a_bad_gradient_is_blamed_on_its_own_layer() -> None:
    """One layer's NaN makes the factor of the whole group NaN."""
    net = model()
    optimizer = DAGNaturalGradient(net.named_parameters(), lr=0.1, trust_region=1e-3)
    net[1](torch.tanh(net[0](torch.randn(4, 6, dtype=F64)))).square().sum().backward()
    net[1].weight.grad.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"layer '1': its gradient"):
        optimizer.step()


def test_a_gradient_of_zero_stays_zero() -> None:
    net = model()
    optimizer = DAGNaturalGradient(net.parameters(), lr=0.1, trust_region=1e-3)
    (0 * net[1](torch.tanh(net[0](torch.randn(4, 6, dtype=F64))))).sum().backward()
    before = copy.deepcopy(net.state_dict())
    optimizer.step()
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), float("nan"), "wide"])
def test_bad_regions_are_refused(bad: Any) -> None:
    with pytest.raises(SettingError, match="trust_region must be a finite number above 0 or None"):
        DAGNaturalGradient(model().parameters(), trust_region=bad)
