"""The trust region: the divergence of every natural gradient is bounded, and one inside it is not touched."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from exact import exact
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import NonFiniteError, SettingError
from dagfisher.optim.settings import BY_ITSELF

F64 = torch.float64


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [dagfisher.nn.BernoulliLinear(6, 5, dtype=F64), dagfisher.nn.GaussianLinear(5, 3, dtype=F64)]
    return nn.Sequential(*layers)


def passed(net: nn.Sequential, seed: int = 1) -> None:
    """Gradients of some loss."""
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(seed), dtype=F64)
    (net[1](torch.tanh(net[0](x))) - 3).square().sum().backward()


def damped(optimizer: DAGNaturalGradient, layer: Any, damping: float) -> Tensor:
    """αI + F_j as the optimizer shows it; that this is right is tested elsewhere."""
    return optimizer.fisher_blocks(layer.weight) * (1 + damping)


def divergence(blocks: list[Tensor], moves: list[Tensor]) -> float:
    """½ΔᵀBΔ over all units, for blocks B."""
    return 0.5 * sum(float(torch.einsum("jd,jde,je->", m, b, m)) for b, m in zip(blocks, moves, strict=True))


def matrices(net: nn.Sequential, vectors: dict[Tensor, Tensor]) -> list[Tensor]:
    """Weight and bias of each layer side by side."""
    return [torch.cat([vectors[layer.weight], vectors[layer.bias][:, None]], 1) for layer in net]


@given(
    epsilon=st.floats(1e-6, 1e-1),
    lr=st.floats(1e-3, 10),
    damping=st.floats(1e-3, 2),
    every=st.integers(1, 3),
    solver=st.sampled_from(["dense", "woodbury", "conjugate", "auto"]),
)
@settings(max_examples=25, deadline=None)
def test_no_step_passes_the_bound(epsilon: float, lr: float, damping: float, every: int, solver: str) -> None:
    """½vᵀ(αI + F)v ≤ ε, and ½Δᵀ(αI + F)Δ ≤ min(lr, 1)²·ε of the step Δ = −lr·v."""
    net = model()
    optimizer = exact(
        net.parameters(),
        lr=lr,
        damping=damping,
        update_every=every,
        trust_region=epsilon,
        solver=solver,
        tolerance=1e-9,
    )
    for number in range(4):
        optimizer.zero_grad()
        passed(net, number)
        before = {p: p.detach().clone() for p in net.parameters()}
        whole = [damped(optimizer, layer, damping) for layer in net]
        vectors = matrices(net, optimizer.natural_gradient())
        optimizer.step()
        moves = matrices(net, {p: p.detach() - old for p, old in before.items()})
        assert divergence(whole, vectors) <= epsilon * (1 + 1e-6)
        assert divergence(whole, moves) <= min(lr, 1) ** 2 * epsilon * (1 + 1e-6)
        blocks = [b - damping * torch.eye(b.shape[1], dtype=F64) for b in whole]
        assert divergence(blocks, moves) <= min(lr, 1) ** 2 * epsilon * (1 + 1e-6)
        shown = optimizer.diagnostics()["groups"][0]
        assert shown["divergence"] == pytest.approx(divergence(whole, moves), rel=1e-5)
        assert shown["factor"] <= 1


@pytest.mark.parametrize("tolerance", [0.02, BY_ITSELF["tolerance"]])
@pytest.mark.parametrize("damping", [0.01, 0.2])
def test_a_solve_that_is_not_exact_and_a_fisher_that_is_reused_pass_the_bound_by_no_more_than_the_tolerance(
    damping: float, tolerance: float
) -> None:
    """Correlated parents, the conjugate solver in float32: with iterations at the small damping, without at the other.

    What was reused is the metric, so the blocks are those of the last refresh.
    """
    torch.manual_seed(0)
    layer, mix, truth = dagfisher.nn.BernoulliLinear(120, 60), torch.randn(120, 120) / 5, torch.randn(120, 60) / 4
    given: dict[str, Any] = {"damping": damping, "update_every": 5, "solver": "conjugate", "trust_region": 1e-3}
    optimizer = exact(layer.parameters(), lr=0.5, tolerance=tolerance, **given)
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
        bound = 0.5**2 * 1e-3
        assert (1 - tolerance) * bound < whole < (1 + tolerance) * bound  # every step is shortened, and to the bound
    assert optimizer.diagnostics()["groups"][0]["shortened"] == 10


def step(trust_region: float | None, lr: float = 0.1, **more: Any) -> list[Tensor]:
    net = model()
    optimizer = exact(net.parameters(), lr=lr, damping=0.2, trust_region=trust_region, **more)
    start = [p.detach().clone() for p in net.parameters()]
    passed(net)
    optimizer.step()
    return [p.detach() - s for p, s in zip(net.parameters(), start, strict=True)]


def test_a_step_inside_the_region_is_not_touched_and_one_outside_is_only_shortened() -> None:
    free, wide, tight = step(None), step(1e6), step(1e-3)
    torch.testing.assert_close(wide, free, rtol=0, atol=0)
    factor = float(tight[0].norm() / free[0].norm())
    assert factor < 0.5
    torch.testing.assert_close(tight, [f * factor for f in free], rtol=1e-6, atol=1e-12)


def test_the_bound_is_reached_where_it_is_passed() -> None:
    """With the damped metric, ½vᵀ(αI + F)v = ε exactly; four times the ε is twice the step."""
    small, large = step(1e-4), step(4e-4)
    torch.testing.assert_close(large, [2 * s for s in small], rtol=1e-6, atol=1e-12)


def test_a_falling_rate_makes_steps_shorter_in_proportion() -> None:
    """Whether or not they are shortened, since the bound is on what the rate multiplies."""
    for trust_region in (1e-4, 1e6):
        whole = step(trust_region, lr=1.0)
        for lr in (0.5, 0.03, 1e-4):
            torch.testing.assert_close(step(trust_region, lr=lr), [lr * w for w in whole], rtol=1e-6, atol=1e-12)


def test_a_rate_above_one_does_not_pass_the_bound_of_a_whole_step() -> None:
    """A step with such a rate that is shortened is as long as one with a rate of 1."""
    torch.testing.assert_close(step(1e-4, lr=7.0), step(1e-4, lr=1.0), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(step(1e9, lr=7.0), [7 * s for s in step(None, lr=1.0)], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}], ids=str)
def test_the_bound_is_on_the_natural_gradient_whatever_is_made_of_it(settings: dict[str, Any]) -> None:
    net, twin = model(), model()
    plain = exact(twin.parameters(), damping=0.2, trust_region=1e-3)
    optimizer = exact(net.parameters(), damping=0.2, trust_region=1e-3, **settings)
    passed(net), passed(twin)
    for vector, expected in zip(optimizer.natural_gradient().values(), plain.natural_gradient().values(), strict=True):
        torch.testing.assert_close(vector, expected, rtol=0, atol=0)


def test_each_group_has_a_region_of_its_own() -> None:
    net = model()
    groups = [{"params": net[0].parameters(), "trust_region": 1e-5}, {"params": net[1].parameters()}]
    optimizer = exact(groups, lr=0.1, damping=0.2)
    start = [p.detach().clone() for p in net.parameters()]
    passed(net)
    optimizer.step()
    moved = [p.detach() - s for p, s in zip(net.parameters(), start, strict=True)]
    free = step(None)
    torch.testing.assert_close(moved[2:], free[2:], rtol=0, atol=0)
    assert float(moved[0].norm()) < float(free[0].norm())
    bounded, unbounded = optimizer.diagnostics()["groups"]
    assert bounded["shortened"] == 1 and bounded["divergence"] == pytest.approx(0.1**2 * 1e-5, rel=1e-5)
    assert unbounded == pytest.approx({"lr": 0.1, "damping": 0.2})


def test_the_bound_is_over_all_layers_of_a_group() -> None:
    """Two layers in one group share ε; in groups of their own each has it."""
    both = step(1e-4)
    net = model()
    optimizer = exact([{"params": layer.parameters()} for layer in net], lr=0.1, damping=0.2, trust_region=1e-4)
    start = [p.detach().clone() for p in net.parameters()]
    passed(net)
    whole = [damped(optimizer, layer, 0.2) for layer in net]
    optimizer.step()
    moved = [p.detach() - s for p, s in zip(net.parameters(), start, strict=True)]
    pairs = [torch.cat([moves[0], moves[1][:, None]], 1) for moves in (moved[:2], moved[2:])]
    for block, pair in zip(whole, pairs, strict=True):
        assert divergence([block], [pair]) == pytest.approx(0.1**2 * 1e-4, rel=1e-5)
    together = [torch.cat([moves[0], moves[1][:, None]], 1) for moves in (both[:2], both[2:])]
    assert divergence(whole, together) == pytest.approx(0.1**2 * 1e-4, rel=1e-5)


def test_weight_and_bias_may_have_rates_of_their_own() -> None:
    """The bound is on the natural gradient, shorter by the largest rate if that is above 1; each moves by its rate."""
    net = model()
    weights, biases = ([p for n, p in net.named_parameters() if n.endswith(kind)] for kind in ("weight", "bias"))
    optimizer = exact([{"params": weights, "lr": 0.1}, {"params": biases, "lr": 4.0}], damping=0.2, trust_region=1e-3)
    passed(net)
    whole = [damped(optimizer, layer, 0.2) for layer in net]
    vectors = optimizer.natural_gradient()
    assert divergence(whole, matrices(net, vectors)) == pytest.approx(1e-3 / 4.0**2, rel=1e-5)
    start = {p: p.detach().clone() for p in net.parameters()}
    optimizer.step()
    for p in net.parameters():
        rate = 0.1 if any(p is w for w in weights) else 4.0
        torch.testing.assert_close(start[p] - p.detach(), rate * vectors[p], rtol=1e-10, atol=1e-14)


def test_a_layer_whose_weight_and_bias_have_different_regions_is_refused() -> None:
    net = model()
    weights, biases = ([p for n, p in net.named_parameters() if n.endswith(kind)] for kind in ("weight", "bias"))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(SettingError, match="groups that differ"):
        exact([{"params": weights}, {"params": biases, "trust_region": None}], trust_region=1e-3)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_shortened_steps_are_counted() -> None:
    for trust_region, every in ((1e-4, 1), (1e-4, 3), (1e9, 1)):
        net = model()
        optimizer = exact(net.parameters(), damping=0.2, trust_region=trust_region, update_every=every)
        assert optimizer.diagnostics()["groups"] == [{"lr": optimizer.defaults["lr"]}]
        for number in range(5):
            optimizer.zero_grad()
            passed(net, number)
            optimizer.natural_gradient()  # looking is not a step
            optimizer.step()
            group = optimizer.diagnostics()["groups"][0]
            assert group["shortened"] == (0 if trust_region == 1e9 else number + 1)
            assert (group["factor"] == 1) == (trust_region == 1e9)


@pytest.mark.parametrize(("growth", "bound", "factor"), [(5.0, 1e-4, None), (6.0, 1e-4, 0.0), (6.0, 1e9, 1.0)])
def test_a_fisher_that_went_wrong_adds_nothing(growth: float, bound: float, factor: float | None) -> None:
    """Gradients `growth` times as large have a divergence of growth² times: up to 30 times is let through."""
    net = model()
    optimizer = exact(net.parameters(), lr=0.0, damping=0.2, trust_region=bound, update_every=100)
    passed(net)
    optimizer.step()
    before = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    for p, gradient in zip(net.parameters(), before, strict=True):
        p.grad = growth * gradient
    optimizer.step()
    found = optimizer.diagnostics()["groups"][0]["factor"]
    assert 0 < found < 1 if factor is None else found == factor


def test_a_step_that_failed_is_not_counted() -> None:
    net = model()
    optimizer = exact(net.parameters(), damping=0.2, trust_region=1e-4)
    passed(net)
    optimizer.step()
    optimizer.zero_grad()
    passed(net)
    net[0].weight.grad.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        optimizer.step()
    assert optimizer.diagnostics()["groups"][0]["shortened"] == 1
    assert optimizer.diagnostics()["step"] == 1


def test_a_bad_gradient_is_blamed_on_its_own_layer() -> None:
    """One layer's NaN makes the factor of the whole group NaN."""
    net = model()
    optimizer = exact(net.named_parameters(), lr=0.1, trust_region=1e-3)
    net[1](torch.tanh(net[0](torch.randn(4, 6, dtype=F64)))).square().sum().backward()
    net[1].weight.grad.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"layer '1': its gradient"):
        optimizer.step()


def test_a_gradient_of_zero_stays_zero() -> None:
    net = model()
    optimizer = exact(net.parameters(), lr=0.1, trust_region=1e-3)
    (0 * net[1](torch.tanh(net[0](torch.randn(4, 6, dtype=F64))))).sum().backward()
    before = copy.deepcopy(net.state_dict())
    optimizer.step()
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), float("nan"), "wide"])
def test_bad_regions_are_refused(bad: Any) -> None:
    with pytest.raises(SettingError, match="trust_region must be a finite number above 0 or None"):
        DAGNaturalGradient(model().parameters(), trust_region=bad)


def found(*layers: nn.Module, **settings: Any) -> dict[str, Any]:
    """What the trust region did to one step with a gradient that is far too long, the damping being found."""
    net = nn.Sequential(*layers)
    optimizer = DAGNaturalGradient(net.parameters(), lr=1.0, momentum=0.0, **settings)
    x = torch.randn(9, *([6] if isinstance(layers[0], nn.Linear) else [1, 6, 6]), dtype=F64)
    (1e3 * net(x)).square().sum().backward()
    optimizer.step()
    group: dict[str, Any] = optimizer.diagnostics()["groups"][0]
    return group


def test_the_bound_that_is_found_counts_the_variables_of_stochastic_layers() -> None:
    """0.06 nats for each, 32 at most; all outputs of a convolution count."""
    torch.manual_seed(0)
    one = found(dagfisher.nn.BernoulliLinear(6, 50, dtype=F64))
    two = found(dagfisher.nn.BernoulliLinear(6, 50, dtype=F64), dagfisher.nn.BernoulliLinear(50, 10, dtype=F64))
    pixels = found(dagfisher.nn.BernoulliConv2d(1, 2, 3, padding=1, dtype=F64))
    wide = found(dagfisher.nn.BernoulliLinear(6, 600, dtype=F64))
    assert [g["divergence"] for g in (one, two, pixels, wide)] == pytest.approx([3.0, 3.6, 4.32, 32.0], rel=1e-4)
    assert all(g["factor"] < 1 for g in (one, two, pixels, wide))


def test_a_layer_with_a_large_damping_does_not_use_up_the_bound_where_dampings_are_found() -> None:
    """Each layer moves by the same multiple of (αI + F)⁻¹g; with a deterministic layer by (1 + α) times as much."""
    for family, grown in (("bernoulli", False), ("deterministic", True)):
        torch.manual_seed(0)
        first, last = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()
        dagfisher.declare(first, family)
        dagfisher.declare(last, "gaussian", std=0.01)  # Fisher weights of 10⁴, and so a large damping
        wide: dict[str, Any] = {"trust_region": 1e12, "lr": 1e-9, "momentum": 0.0}  # nothing is shortened
        optimizer = DAGNaturalGradient(nn.Sequential(first, last).parameters(), tolerance=1e-12, **wide)
        output = last(torch.tanh(first(torch.randn(9, 6, dtype=F64))))
        optimizer.sample_fisher()
        output.square().sum().div(9).backward()
        vectors, scales = optimizer.natural_gradient(), []
        for layer in (first, last):
            blocks = optimizer.fisher_blocks(layer.weight)
            gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            bare = torch.linalg.solve(blocks[0], gradient[0])  # (1 + α)(αI + F)⁻¹g
            scales.append(float(vectors[layer.weight][0, 0] / bare[0]))
        optimizer.step()
        alphas = [entry["damping"] for entry in optimizer.diagnostics()["layers"].values()]
        assert alphas[1] > 1.5 * alphas[0]
        wanted = 1.0 if grown else (1 + alphas[1]) / (1 + alphas[0])
        assert scales[0] / scales[1] == pytest.approx(wanted, rel=1e-6)
