"""The damping that each layer finds: the rule against dense matrices, for every kind of layer, and what it leads to."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from by_hand import (
    Array,
    Net,
    array,
    assert_step,
    backward,
    data,
    fisher_of,
    scaled,
    shown,
    solve,
)
from by_hand import optimizer as by_hand_optimizer
from exact import exact
from hypothesis import given
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher._reading import answered
from dagfisher.fisher import statistics
from dagfisher.fisher.segments import GramSegment
from dagfisher.optim.damping import (
    FALL,
    FLOOR,
    LARGEST,
    LEAST,
    NOISY,
    RISE,
    SHARE,
    START,
    adapted,
    first_damping,
)

F64 = torch.float64
LR = 0.01


def built(parameters: Any, **settings: Any) -> DAGNaturalGradient:
    """An exact solver, and no other default than that of the damping."""
    return by_hand_optimizer(parameters, **{"lr": LR, "damping": "auto", **settings})


def by_rule(damping: float, ratio: float, floor: float = 0.0) -> float:
    """α times the ratio or the floor, changed by no more than a factor, within bounds."""
    wanted = np.clip(damping * ratio, damping / FALL, damping * RISE)
    return float(np.clip(max(wanted, min(floor, damping * FALL)), LEAST, LARGEST))


def floor_by_hand(g: Array | Tensor, rows: int, curvature: float, fresh: Sequence[Array], damping: float) -> float:
    """min(FLOOR, SHARE·d/n), in proportion to the curvature where that is less than a share of what noise gives."""
    mean = np.mean([np.diag(block).mean() for block in fresh])
    noise = g.shape[0] * g.shape[1] / rows * (mean / (mean + damping)) ** 2
    return min(FLOOR, SHARE * g.shape[1] / rows) * min(1.0, curvature / (NOISY * noise))


# The rule, written out


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate"])
def test_the_damping_and_the_steps_are_those_of_the_rule(solver: str, every: int) -> None:
    """x = (αI + F_old)⁻¹g with the gradient g of the refresh; α times xᵀFx of its own samples over x·g."""
    net = Net()
    opt = built(net.named_parameters(), solver=solver, update_every=every, tolerance=1e-13)
    layers = (net.encoder[0], net.head)
    dampings: dict[nn.Linear, float] = {}
    old: dict[nn.Linear, Array] = {}
    ratios: list[float] = []
    for number in range(7 * every):
        x = data(6, 4, seed=number) * (0.5 + number % 3)
        backward(net, opt, x)
        gradients = {layer: array(torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)) for layer in layers}
        if number % every == 0:
            fresh = fisher_of(net, x)
            for layer, g in gradients.items():
                if number == 0:
                    mean = np.mean([np.diag(f).mean() for f in fresh[layer]])
                    dampings[layer] = max(START, START * mean)
                    continue
                v = solve(old[layer], g, dampings[layer]) / (1 + dampings[layer])
                found = sum(float(u @ f @ u) for u, f in zip(v, fresh[layer], strict=True))
                expected_curvature = float((v * g).sum())
                ratios.append(found / expected_curvature)
                floor = floor_by_hand(g, len(x), expected_curvature, fresh[layer], dampings[layer])
                dampings[layer] = by_rule(dampings[layer], ratios[-1], floor)
            old = fresh
        expected = {}
        for layer, g in gradients.items():
            v = solve(old[layer], g, dampings[layer]) / (1 + dampings[layer])  # x itself, where α is found
            expected |= {layer.weight: v[:, :-1], layer.bias: v[:, -1]}
        assert_step(opt, scaled(LR, expected), 1e-8)
        assert shown(opt, "damping") == pytest.approx(list(dampings.values()), rel=1e-9)
        if number >= every:
            assert shown(opt, "ratio") == pytest.approx(ratios[-2:], rel=1e-8)
    assert any(1 / FALL < ratio < RISE for ratio in ratios)
    assert any(ratio > RISE for ratio in ratios) or any(ratio < 1 / FALL for ratio in ratios)


@given(
    damping=st.floats(LEAST, LARGEST),
    found=st.floats(0, 1e30) | st.sampled_from([math.inf, math.nan, -1.0]),
    predicted=st.floats(-1e30, 1e30) | st.sampled_from([math.inf, math.nan]),
)
def test_the_new_damping_is_never_out_of_bounds(damping: float, found: float, predicted: float) -> None:
    after = adapted(damping, found, predicted)
    assert LEAST <= after <= LARGEST
    assert damping / FALL * (1 - 1e-12) <= after <= damping * RISE * (1 + 1e-12)
    if not found >= 0 or not 0 < predicted < math.inf:
        assert after == damping
    else:
        assert after == pytest.approx(by_rule(damping, found / predicted))


def test_a_change_is_by_a_factor_at_most_and_ends_at_the_bounds() -> None:
    assert adapted(0.3, 30.0, 1.0) == 0.3 * RISE
    assert adapted(0.3, 0.0, 1.0) == 0.3 / FALL
    assert adapted(0.3, 1.1, 1.0) == pytest.approx(0.33)
    assert adapted(LARGEST / 1.5, 3.0, 1.0) == LARGEST
    assert adapted(LEAST * 1.5, 0.0, 1.0) == LEAST


# Where it starts


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_it_starts_at_a_share_of_the_mean_diagonal_element_if_that_is_more(size: float) -> None:
    net = Net()
    opt = built(net.named_parameters())
    x = size * data(6, 4)
    backward(net, opt, x)
    means = [np.mean([np.diag(f).mean() for f in found]) for found in fisher_of(net, x).values()]
    opt.step()
    assert shown(opt, "damping") == pytest.approx([min(max(START, START * m), LARGEST) for m in means], rel=1e-10)
    assert shown(opt, "ratio") == [None, None]


def test_a_layer_whose_trained_parameters_change_starts_anew() -> None:
    net = Net()
    opt = built(net.named_parameters())
    for seed in range(4):
        backward(net, opt, data(600, 4, seed=seed))
        opt.step()
    assert shown(opt, "damping")[1] != START
    net.head.bias.requires_grad_(False)
    backward(net, opt, data(600, 4, seed=5))
    opt.step()
    assert shown(opt, "damping")[1] == START


def segment(blocks_: Tensor, units: int) -> GramSegment:
    return GramSegment(blocks_, units)


def test_a_mean_that_overflows_or_is_larger_than_all_bounds_is_not_used() -> None:
    huge = torch.full((1, 2, 2), 1e300, dtype=F64)
    assert answered(first_damping([segment(huge, 3)])) == LARGEST
    assert answered(first_damping([segment(huge.float(), 3)])) == START
    assert answered(first_damping([segment(huge, 0)])) == START


# Every kind of layer


class Heads(nn.Module):
    """A Gaussian of two heads, in the second of which all units share a block."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale = nn.Linear(4, 2), nn.Linear(4, 2)
        dagfisher.declare_gaussian(mean=self.mean, log_std=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.mean(x), self.scale(x)], 1)


def masked() -> nn.Module:
    return dagfisher.nn.MaskedBernoulliLinear(torch.ones(4, 4).tril(-1))


def conv(**settings: Any) -> nn.Module:
    return dagfisher.declare(nn.Conv2d(2, 4, 2, **settings), "bernoulli")


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Bernoulli": (lambda: dagfisher.nn.BernoulliLinear(4, 3), (4,)),
    "without bias": (lambda: dagfisher.nn.BernoulliLinear(4, 3, bias=False), (4,)),
    "one block for the scales": (lambda: dagfisher.nn.GaussianLinear(4, 2), (4,)),
    "heads": (Heads, (4,)),
    "masked": (masked, (4,)),
    "coupled": (lambda: dagfisher.nn.CategoricalLinear(4, 6, classes=3), (4,)),
    "convolution": (conv, (2, 4, 4)),
    "grouped convolution": (lambda: conv(groups=2), (2, 4, 4)),
    "Gram matrices": (conv, (2, 4, 4)),
    "grouped Gram matrices": (lambda: conv(groups=2), (2, 4, 4)),
}


def pass_through(module: nn.Module, opt: DAGNaturalGradient, x: Tensor) -> None:
    opt.zero_grad()
    weights = torch.linspace(1, 2, len(x), dtype=F64)
    with dagfisher.sample_weights(weights):
        out = module(x)
    slopes = torch.linspace(0.5, 1.5, out[0].numel(), dtype=F64).reshape(out[0].shape)
    (weights.reshape(-1, *[1] * (out.dim() - 1)) * (slopes * out + 0.1 * out.square())).sum().div(len(x)).backward()


def rows_of(kind: str, x: Tensor) -> int:
    """Samples, times the positions of a convolution."""
    return len(x) * (9 if x.dim() == 4 else 1)


def undamped(opt: DAGNaturalGradient, parameter: Tensor, damping: float) -> Tensor:
    found = opt.fisher_blocks(parameter) * (1 + damping)
    return found - damping * torch.eye(found.shape[-1], dtype=F64)


def one(kind: str, seed: int = 0) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """A module of this kind, a parameter of each of its layers, and batches."""
    torch.manual_seed(seed)
    make, shape = KINDS[kind]
    module = make().to(F64)
    firsts = [module.mean.weight, module.scale.weight] if isinstance(module, Heads) else [next(module.parameters())]
    draws = torch.Generator().manual_seed(seed)
    sizes = [9, 5, 9, 5, 9, 6]
    return module, firsts, [torch.randn(n, *shape, generator=draws, dtype=F64) * (1 + n % 2) for n in sizes]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_holds_for_every_kind_of_layer(kind: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lr 0 a twin with a given damping shows the blocks of each batch alone, which are tested elsewhere.

    F_old is the mean over a window, F that of the fresh samples alone.
    """
    if "Gram" in kind:
        monkeypatch.setattr(statistics, "ACCUMULATE", 40)
    module, firsts, batches = one(kind)
    twin = copy.deepcopy(module)
    others = [dict(twin.named_parameters())[n] for n, p in module.named_parameters() if any(p is f for f in firsts)]
    opt = built(module.named_parameters(), lr=0.0, window=window, window_decay=0.6)
    alone = exact(twin.named_parameters(), lr=0.0, damping=0.3, solver="dense")
    past: dict[int, list[Tensor]] = {i: [] for i in range(len(firsts))}
    dampings: list[float] = []
    ratios: list[float] = []
    for number, x in enumerate(batches):
        pass_through(module, opt, x)
        pass_through(twin, alone, x)
        fresh = [undamped(alone, parameter, 0.3) for parameter in others]
        for i, parameter in enumerate(firsts):
            layer = next(each for each in opt._layers if any(p is parameter for p in each.parameters))
            gradient = layer.gradient()
            assert gradient is not None
            if number == 0:
                continue
            weights = [0.6**age for age in range(len(past[i]))]
            old = sum(w * f for w, f in zip(weights, past[i], strict=True)) / sum(weights)
            identity = torch.eye(old.shape[-1], dtype=F64)
            g = gradient.reshape(len(old), -1)
            v = torch.linalg.solve(old + dampings[i] * identity, g.unsqueeze(2)).squeeze(2)
            ratios.append(float(torch.einsum("jd,jde,je->", v, fresh[i], v) / (v * g).sum()))
            blocks = [array(block) for block in fresh[i]]
            floor = floor_by_hand(gradient, rows_of(kind, x), float((v * g).sum()), blocks, dampings[i])
            dampings[i] = by_rule(dampings[i], ratios[-1], floor)
        opt.step()
        alone.step()
        if number == 0:
            dampings = shown(opt, "damping")
        assert shown(opt, "damping") == pytest.approx(dampings, rel=1e-8)
        assert number == 0 or shown(opt, "ratio") == pytest.approx(ratios[-len(firsts) :], rel=1e-8)
        for i, found in enumerate(fresh):
            past[i] = [found, *past[i]][:window]
    fisher = opt._layers[0].fisher
    assert fisher is not None and fisher.coupled == (kind == "coupled")


def test_a_gradient_of_zero_tells_nothing() -> None:
    net = Net()
    opt = built(net.named_parameters())
    for seed in range(3):
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()
    before = shown(opt, "damping")
    for _ in range(3):
        opt.zero_grad()
        (0 * net(data(6, 4, seed=4))).sum().backward()
        opt.step()
    assert shown(opt, "damping") == before
    assert shown(opt, "ratio") == [None, None]
    assert shown(opt, "refreshed") == [5, 5]


def test_deterministic_layers_find_theirs_too() -> None:
    torch.manual_seed(0)
    hidden = dagfisher.declare(nn.Linear(4, 3).double(), "deterministic")
    head = dagfisher.nn.BernoulliLinear(3, 2, dtype=F64)
    opt = built([*hidden.named_parameters("hidden"), *head.named_parameters("head")])
    for seed in range(4):
        opt.zero_grad()
        out = head(torch.tanh(hidden(data(6, 4, seed=seed))))
        opt.sample_fisher(torch.Generator().manual_seed(seed))
        out.square().mean().backward()
        opt.step()
    assert all(
        damping != START and ratio is not None
        for damping, ratio in zip(shown(opt, "damping"), shown(opt, "ratio"), strict=True)
    )


# What it leads to


def regression(start: float, seed: int, batch: int = 25) -> float:
    """The damping, over the last third of a training of a small Bernoulli regression that began at `start`."""
    draws = torch.Generator().manual_seed(seed)
    truth = torch.randn(10, 3, generator=draws, dtype=F64)
    torch.manual_seed(0)
    layer = dagfisher.nn.BernoulliLinear(10, 3, dtype=F64)
    opt = built(layer.named_parameters(prefix="layer"), lr=0.05, trust_region=1.0)
    logs = []
    for number in range(120):
        x = torch.randn(batch, 10, generator=draws, dtype=F64)
        y = (torch.rand(batch, 3, generator=draws, dtype=F64) < torch.sigmoid(x @ truth)).double()
        opt.zero_grad()
        binary_cross_entropy_with_logits(layer(x), y, reduction="sum").div(batch).backward()
        opt.step()
        fisher = opt._layers[0].fisher
        assert fisher is not None
        if number == 0:
            fisher.damping = start
        if number >= 80:
            logs.append(math.log(fisher.damping))
    return math.exp(sum(logs) / len(logs))


@pytest.mark.parametrize("seed", range(3))
def test_wherever_it_starts_it_comes_to_about_the_same(seed: int) -> None:
    found = [regression(start, seed) for start in (1e-3, 0.03, 1.0)]
    assert max(found) < 3 * min(found)


def test_larger_batches_need_less_damping() -> None:
    """What it makes up for is what a minibatch does not know."""
    few, many = regression(0.1, 0, batch=12), regression(0.1, 0, batch=200)
    assert many < few / 2
