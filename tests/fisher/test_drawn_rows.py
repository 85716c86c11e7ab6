"""Rows drawn in place of all: the blocks are right on average, and a resumed run draws the same."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.fisher import statistics

F64 = torch.float64
ALPHA = 0.3
SEEDS = 500


class Deterministic(nn.Module):
    """A hidden layer whose Fisher weights come from a backward pass."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.hidden = dagfisher.declare(nn.Linear(3, 4), "deterministic", **settings)
        self.head = dagfisher.nn.BernoulliLinear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x)))


KINDS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "linear": (lambda **s: dagfisher.declare(nn.Linear(3, 2), "bernoulli", **s), (60, 3)),
    "positions": (lambda **s: dagfisher.declare(nn.Linear(3, 2), "bernoulli", positions=1, **s), (20, 6, 3)),
    "shared block": (lambda **s: dagfisher.declare(nn.Linear(3, 4), "gaussian", **s), (60, 3)),
    "coupled": (lambda **s: dagfisher.declare(nn.Linear(3, 3), "categorical", classes=3, **s), (60, 3)),
    "convolution": (lambda **s: dagfisher.declare(nn.Conv2d(1, 2, 2), "bernoulli", **s), (20, 1, 4, 4)),
    "few samples": (lambda **s: dagfisher.declare(nn.Conv2d(1, 2, 2), "bernoulli", **s), (2, 1, 10, 10)),
    "grouped": (lambda **s: dagfisher.declare(nn.Conv2d(2, 4, 2, groups=2), "bernoulli", **s), (20, 2, 4, 4)),
    "transposed": (lambda **s: dagfisher.declare(nn.ConvTranspose2d(1, 2, 2), "bernoulli", **s), (20, 1, 3, 3)),
    "deterministic": (Deterministic, (60, 3)),
}
MOST = 12


def one(kind: str, **settings: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """A module, its first weight, and data."""
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    module = make(**settings).to(F64)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    return module, next(module.parameters()), x


def weights_of(x: Tensor, weighted: bool) -> Tensor:
    return torch.linspace(0.2, 3, len(x), dtype=F64) if weighted else torch.ones(len(x), dtype=F64)


def passed(module: nn.Module, opt: DAGNaturalGradient, x: Tensor, weights: Tensor) -> None:
    """A pass; what is sampled for deterministic layers is the same each time."""
    opt.zero_grad()
    with dagfisher.sample_weights(weights):
        out = module(x)
    if isinstance(module, Deterministic):
        opt.sample_fisher(torch.Generator().manual_seed(3))
    (weights.reshape(-1, *[1] * (out.dim() - 1)) * out.square()).sum().div(len(x)).backward()


def drawn_blocks(kind: str, seeds: Iterable[int], *, weighted: bool, **settings: Any) -> list[Tensor]:
    """F_j with the rows that each seed draws."""
    module, parameter, x = one(kind, **settings)
    opt = exact(module.parameters(), lr=0.0, damping=ALPHA, solver="dense")
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        passed(module, opt, x, weights_of(x, weighted))
        damped = opt.fisher_blocks(parameter) * (1 + ALPHA)
        found.append(damped - ALPHA * torch.eye(damped.shape[-1], dtype=F64))
    return found


def blocks(kind: str, seed: int = 0, *, weighted: bool, **settings: Any) -> Tensor:
    return drawn_blocks(kind, [seed], weighted=weighted, **settings)[0]


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_right_on_average(kind: str, weighted: bool) -> None:
    """No entry of the mean is five standard errors away, and those are small enough to see a bias."""
    wanted = blocks(kind, weighted=weighted, max_rows=math.inf)
    found = torch.stack(drawn_blocks(kind, range(SEEDS), weighted=weighted, max_rows=MOST))
    spread = found.std(0)
    assert float(spread.norm()) > 0.02 * float(wanted.norm())  # rows are drawn
    error = spread / SEEDS**0.5
    assert float(error.norm()) < 0.06 * float(wanted.norm())
    assert bool(((found.mean(0) - wanted).abs() <= 5 * error + 1e-12).all())


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_an_infinite_bound_all_rows_count(kind: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is enough by default; and a bound above their number changes nothing either."""
    wanted = blocks(kind, weighted=weighted)
    monkeypatch.setattr(statistics, "ENOUGH", 3 * MOST)
    for seed in range(3):
        for bound in (math.inf, 10**6):
            found = blocks(kind, seed, weighted=weighted, max_rows=bound)
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(blocks(kind, 0, weighted=weighted), wanted, rtol=1e-3)


def test_all_rows_of_a_linear_layer_are_those_of_the_formula() -> None:
    module, _, x = one("linear", max_rows=math.inf)
    share = weights_of(x, True) / weights_of(x, True).sum()
    rows = torch.cat([x, torch.ones(len(x), 1, dtype=F64)], 1)
    rate = torch.sigmoid(module(x)).detach()
    wanted = torch.einsum("k,kj,kd,ke->jde", share, rate * (1 - rate), rows, rows)
    torch.testing.assert_close(blocks("linear", 0, weighted=True, max_rows=math.inf), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_by_default_rows_are_drawn_only_where_they_are_many(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as hold the numbers that are enough."""
    module, _, x = one(kind)
    opt = exact(module.parameters(), lr=0.0, damping=ALPHA)
    layer = opt._layers[0]
    size = layer.declaration.map.row_size(layer.declaration.module)

    def count() -> int:
        passed(module, opt, x, weights_of(x, False))
        (found,) = statistics.statistics_of(layer.declaration, layer.recorder.take(), 0)
        assert isinstance(found, statistics.Rows)
        return len(found.parents)

    whole = count()
    monkeypatch.setattr(statistics, "ENOUGH", whole * size)
    assert count() == whole
    monkeypatch.setattr(statistics, "ENOUGH", whole * size - 1)
    assert count() == whole - 1
    monkeypatch.setattr(statistics, "ENOUGH", size * MOST)
    assert count() == MOST
    monkeypatch.setattr(statistics, "ENOUGH", 0)
    assert count() == 1


# Which rows


def drawn(seed: int, kind: str = "linear", steps: int = 2, passes: int = 2) -> list[list[Tensor]]:
    """The rows of each pass of each step."""
    module, _, x = one(kind, max_rows=MOST)
    opt = exact(module.parameters(), lr=0.0, damping=ALPHA)
    layer = opt._layers[0]
    torch.manual_seed(seed)
    found = []
    for _ in range(steps):
        opt.zero_grad()
        for _ in range(passes):
            module(x).square().mean().backward()
        parts = statistics.statistics_of(layer.declaration, layer.recorder.take(), opt._step)
        found.append([part.parents for part in parts if isinstance(part, statistics.Rows)])
        opt.step()
    return found


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_each_step_and_each_pass_draws_other_rows_and_a_seed_draws_the_same(kind: str) -> None:
    first, again, other = drawn(0, kind), drawn(0, kind), drawn(1, kind)
    flat = [rows for step in first for rows in step]
    assert len(flat) == 4
    assert all(torch.equal(a, b) for a, b in zip(flat, [rows for step in again for rows in step], strict=True))
    for i, a in enumerate(flat):
        assert not any(torch.equal(a, b) for b in flat[:i])
    assert not torch.equal(flat[0], other[0][0])


def test_no_row_is_drawn_twice() -> None:
    for seed in range(5):
        (rows, *_), *_ = drawn(seed)
        assert len(torch.unique(rows, dim=0)) == MOST


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_leaves_the_random_numbers_of_the_model_alone(kind: str) -> None:
    module, _, x = one(kind, max_rows=MOST)
    opt = exact(module.parameters(), damping=ALPHA)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    passed(module, opt, x, weights_of(x, False))
    opt.step()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("damping", [ALPHA, "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_draws_the_same_rows(kind: str, damping: float | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ENOUGH", 3 * MOST)

    def fresh() -> tuple[nn.Module, DAGNaturalGradient, Tensor]:
        module, _, x = one(kind)
        torch.manual_seed(7)
        opt = exact(module.named_parameters(), lr=0.05, damping=damping, update_every=2, window=2, trust_region=1.0)
        return module, opt, x

    def train(module: nn.Module, opt: DAGNaturalGradient, x: Tensor, steps: range) -> None:
        for step in steps:
            passed(module, opt, x * (1 + 0.1 * step), weights_of(x, True))
            opt.step()

    whole, opt, x = fresh()
    train(whole, opt, x, range(7))
    broken, opt, x = fresh()
    train(broken, opt, x, range(3))
    file = io.BytesIO()
    torch.save({"model": broken.state_dict(), "optimizer": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, opt, x = fresh()
    resumed.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    train(resumed, opt, x, range(3, 7))
    for one_, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one_, other)


@pytest.mark.parametrize("bad", [0, -3, 2.5, math.nan, -math.inf, "all"])
def test_other_bounds_are_refused(bad: Any) -> None:
    with pytest.raises(dagfisher.errors.DeclarationError, match="max_rows must be a whole number of at least 1, or"):
        dagfisher.declare(nn.Linear(2, 2), "bernoulli", max_rows=bad)
