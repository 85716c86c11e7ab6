"""The trust region that is found: layers that are independent share it, layers that act together are gentle."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.optim.trust import CHANGE, _shared

F64 = torch.float64
NUMBERS = st.floats(1e-6, 1e9)


@given(st.lists(NUMBERS, min_size=1, max_size=12), NUMBERS, st.sampled_from([torch.float32, F64]))
@settings(max_examples=200, deadline=None)
def test_layers_share_what_there_is(divergences: list[float], most: float, dtype: torch.dtype) -> None:
    """Σ min(d, t) is what there is, or all that is wanted; t by bisection."""
    low, high = 0.0, max(divergences) + most
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(d, middle) for d in divergences) < most else (low, middle)
    wanted = [min(1.0, high / d) ** 0.5 for d in divergences]
    found = _shared(torch.tensor(divergences, dtype=dtype), most).tolist()
    assert found == pytest.approx(wanted, rel=1e-5)
    left = sum(d * f**2 for d, f in zip(divergences, found, strict=True))
    assert left == pytest.approx(min(most, sum(divergences)), rel=1e-5)


def machine() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    layers = [dagfisher.nn.BernoulliLinear(6, 50, dtype=F64), dagfisher.nn.BernoulliLinear(50, 10, dtype=F64)]
    return nn.Sequential(*layers), torch.randn(9, 6, dtype=F64)


def natural(net: nn.Sequential, x: Tensor, scale: float, **more: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """The natural gradients of the weights where the last layer's gradient is `scale` times as large, and the step."""
    optimizer = DAGNaturalGradient(net.parameters(), momentum=0.0, tolerance=1e-12, **more)
    hidden = net[0](x)
    (0.01 * hidden.square().sum() + scale * net[1](hidden.detach().sigmoid()).square().sum()).div(9).backward()
    vectors = optimizer.natural_gradient()
    optimizer.step()
    return [vectors[layer.weight] for layer in net], optimizer.diagnostics()["groups"][0]


def test_a_layer_that_wants_little_gets_it_all() -> None:
    """One layer that wants far too much does not hold up the other, and the two keep to the bound together."""
    (calm, large), group = natural(*machine(), scale=1e4)
    (alone, _), _ = natural(*machine(), scale=0.0)
    torch.testing.assert_close(calm, alone, rtol=0, atol=0)
    assert group["factor"] < 0.1 and large.norm() > 0
    assert group["divergence"] / 0.2**2 == pytest.approx(0.06 * 60, rel=1e-5)


def test_a_damping_that_is_given_shortens_all_layers_alike() -> None:
    (calm, _), _ = natural(*machine(), scale=1e4, damping=0.2, trust_region=3.6)
    (alone, _), _ = natural(*machine(), scale=0.0, damping=0.2, trust_region=3.6)
    ratio = calm / alone
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-6, atol=0)
    assert ratio[0, 0] < 0.1


def sleeping(last: float = 1e-3) -> nn.Sequential:
    """Three layers that do next to nothing to the output, since the last one does."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    with torch.no_grad():
        net[4].weight.mul_(last)
        net[4].bias.zero_()
    for module in net[::2]:
        dagfisher.declare(module, "bernoulli" if module is net[4] else "deterministic")
    return net


def changes(net: nn.Sequential, steps: int, scale: float = 1e3, **more: Any) -> list[list[float]]:
    """How much of its weights each layer changes at each step, with a loss that wants to go far."""
    optimizer = DAGNaturalGradient(net.parameters(), **more)
    x, rows = torch.randn(32, 6, dtype=F64), []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = net(x)
        optimizer.sample_fisher()
        (-scale * logits.sum() / 32).backward()
        before = [torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone() for layer in net[::2]]
        optimizer.step()
        after = [torch.cat([layer.weight, layer.bias[:, None]], 1).detach() for layer in net[::2]]
        usual = [float(b[:, :-1].norm().clamp_min((len(b) / 3) ** 0.5)) for b in before]  # of the weight
        rows.append([float((a - b).norm()) / u for a, b, u in zip(after, before, usual, strict=True)])
    return rows


def test_a_layer_that_does_nothing_yet_changes_by_a_part_of_itself_at_most() -> None:
    """Whatever its Fisher matrix allows; with momentum after many steps in one direction."""
    rows = changes(sleeping(), 30)
    assert max(map(max, rows)) <= CHANGE / 3 * (1 + 1e-6)
    assert max(rows[-1]) > 0.5 * CHANGE / 3  # momentum is under way, and something is bounded
    assert max(rows[0]) == pytest.approx(0.2 * CHANGE / 3, rel=1e-5)  # (1 − momentum) of it at first


def test_without_the_bound_it_would_change_by_far_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagfisher.optim.trust.CHANGE", 1e9)
    assert max(map(max, changes(sleeping(), 30))) > 2 * CHANGE / 3


def test_weights_of_zero_can_leave_it() -> None:
    """The part is one of the usual initial weights where there are less."""
    rows = changes(sleeping(last=0.0), 3)
    assert rows[0][2] == pytest.approx(0.2 * CHANGE / 3, rel=1e-5)


def test_a_tiny_rate_needs_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bounded is the step, rate and momentum included, so that nothing is shortened then."""
    bounded = changes(sleeping(), 3, lr=1e-6)
    monkeypatch.setattr("dagfisher.optim.trust.CHANGE", 1e9)
    assert bounded == changes(sleeping(), 3, lr=1e-6)


def test_the_formula_has_no_such_bound() -> None:
    """With a damping that is given, a trust region is the only bound."""
    assert max(changes(sleeping(), 1, damping=1e-3, lr=1.0, trust_region=1e9)[0]) > 1


def test_stochastic_layers_have_no_such_bound() -> None:
    net, x = machine()
    optimizer = DAGNaturalGradient(net.parameters(), momentum=0.0, lr=1.0, trust_region=1e9)
    (1e6 * net[1](net[0](x)).sum()).backward()
    before = net[1].weight.detach().clone()
    optimizer.step()
    assert float((net[1].weight.detach() - before).norm() / before.norm()) > 1


def test_layers_that_act_together_have_the_mean_bound_of_the_stochastic_ones() -> None:
    """0.06 nats for each of their variables, 16 at most; the deterministic layer does not count."""
    for units, wanted in ((50, 3.0), (600, 16.0)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, units)).double()
        for module, family in ((net[0], "deterministic"), (net[2], "bernoulli")):
            dagfisher.declare(module, family)
        optimizer = DAGNaturalGradient(net.parameters(), lr=1.0, betas=(0.0, 0.0))  # without the bound on changes
        logits = net(torch.randn(9, 6, dtype=F64))
        optimizer.sample_fisher()
        (1e6 * logits).square().sum().backward()
        optimizer.step()
        assert optimizer.diagnostics()["groups"][0]["divergence"] == pytest.approx(wanted, rel=1e-4)


def test_the_slower_momentum_of_weight_and_bias_counts() -> None:
    """Steps of a weight without momentum are as short as those of its bias with momentum want it."""
    net = sleeping()
    weights, biases = ([p for n, p in net.named_parameters() if n.endswith(kind)] for kind in ("weight", "bias"))
    groups = [{"params": weights, "momentum": 0.0}, {"params": biases, "momentum": 0.95}]
    optimizer = DAGNaturalGradient(groups, lr=0.2)
    logits = net(torch.randn(32, 6, dtype=F64))
    optimizer.sample_fisher()
    (-1e3 * logits.sum() / 32).backward()
    vectors = optimizer.natural_gradient()
    moved = torch.cat([vectors[net[4].weight], vectors[net[4].bias][:, None]], 1).norm() * 0.2 / (1 - 0.95)
    usual = max(float(net[4].weight.detach().norm()), (4 / 3) ** 0.5)
    assert float(moved) / usual == pytest.approx(CHANGE / 3, rel=1e-5)


def test_what_was_shortened_is_counted_though_it_hardly_counts_in_the_metric() -> None:
    net = sleeping()
    optimizer = DAGNaturalGradient(net.parameters())
    logits = net(torch.randn(32, 6, dtype=F64))
    optimizer.sample_fisher()
    (-1e3 * logits.sum() / 32).backward()
    optimizer.step()
    assert optimizer.diagnostics()["groups"][0]["shortened"] == 1


def test_a_pace_of_an_older_checkpoint_is_read() -> None:
    """It had a second number."""
    net = sleeping()
    optimizer = DAGNaturalGradient(net.parameters())
    layer = next(iter(optimizer.named_layers().values()))
    logits = net(torch.randn(32, 6, dtype=F64))
    optimizer.sample_fisher()
    (-logits.sum() / 32).backward()
    optimizer.step()
    state = {**layer.state(), "pace": [3, 0.25]}
    layer.restore(layer.restored(state, 1))
    assert layer.pace == (3,)
