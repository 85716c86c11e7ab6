"""Processes that share samples and units step as one process does with all samples, and hold the same bits."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from by_hand import SOLVERS, Net, data, loss, optimizer
from processes import Pool
from torch import Tensor, nn

import dagfisher
from dagfisher import sample_weights
from dagfisher.families import Bernoulli
from dagfisher.fisher import statistics
from dagfisher.solvers import rates

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
Pools = Callable[[int], Pool]
SAMPLES, STEPS = 12, 5


class Heads(nn.Module):
    """A Gaussian layer with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale = nn.Linear(4, 2), nn.Linear(4, 2)
        dagfisher.declare_gaussian(mean=self.mean, log_std=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.mean(x), self.scale(x)], dim=-1)


class Wide(nn.Module):
    """Layers in which conjugate gradients choose among bases, directions and iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dagfisher.nn.BernoulliLinear(4, 90)
        self.second = dagfisher.nn.BernoulliLinear(90, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(3 * self.first(x)))


class Convolution(nn.Module):
    """A grouped convolution, a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 2, groups=2), nn.Conv2d(4, 2, 2)
        for layer in (self.first, self.second):
            dagfisher.declare(layer, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        images = torch.cat([x, 2 * x, x.flip(1), -x, x * x], dim=1)[:, :18].reshape(-1, 2, 3, 3)
        return self.second(torch.sigmoid(self.first(images))).flatten(1)


class Deterministic(nn.Module):
    """A hidden layer without a distribution of its own."""

    def __init__(self, fisher: str) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(4, 5), nn.Linear(5, 3)
        dagfisher.declare(self.hidden, "deterministic", fisher=fisher, reduction="sum")
        dagfisher.declare(self.output, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(x)))


class Branches(nn.Module):
    """A layer that only some samples go through: those of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.some = nn.Linear(4, 3), nn.Linear(3, 3)
        for layer in (self.all, self.some):
            dagfisher.declare(layer, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.all(x))
        there = x[:, 0] > 10  # the first samples of a batch are marked so
        if not there.any():
            return hidden
        return torch.cat([self.some(hidden[there]), hidden[~there]])


class Constant(nn.Module):
    """A layer whose scale no parent moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = dagfisher.nn.GaussianLinear(4, 2, scale="constant")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.distribution(x).predictor


class Several(nn.Module):
    """A declared parameter, a layer that runs several times in a pass, and one with lateral connections."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = dagfisher.declare_parameter(nn.Parameter(torch.zeros(3)), "bernoulli", draws=2)
        self.cell = nn.Linear(4, 4)
        dagfisher.declare(self.cell, "bernoulli", calls="positions")
        self.lateral = dagfisher.nn.LateralBernoulliLinear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for _ in range(3):
            hidden = torch.tanh(self.cell(hidden))
        return torch.cat([self.lateral.predictor(hidden, (x[:, :3] > 0).to(x)), self.prior.expand(len(x), -1)], dim=-1)


class Case(NamedTuple):
    """A model, settings of its optimizer, and what else is done."""

    build: Callable[[], nn.Module]
    settings: dict[str, Any]
    weighted: bool = False
    uneven: tuple[int, ...] | None = None
    """Shares of the samples, instead of equal ones."""
    passes: int = 1
    cut: bool = True
    """Whether even the smallest layers are cut into shares, and solutions are gathered at every step."""
    tolerance: float = 1e-9
    chunk: int | None = None
    """Numbers in the rows of a pass of all processes above which its Gram matrices are summed in chunks."""


TIGHT = {"tolerance": 1e-13}
KEPT: dict[str, Any] = {"update_every": 3, "momentum": 0.8, "window": 2}
"""Settings with which an optimizer has something of each kind to save."""
AUTO: dict[str, Any] = {"damping": "auto", "update_every": "auto", "trust_region": 1.0, "momentum": 0.8, "lr": 0.1}


def masked() -> nn.Module:
    return dagfisher.nn.MaskedBernoulliLinear(torch.ones(4, 4).tril(-1))


def coupled() -> nn.Module:
    return dagfisher.nn.CategoricalLinear(4, 6, classes=3)


CASES: dict[str, Case] = {
    **{f"{s}, weights": Case(Net, {"solver": s, **TIGHT}, weighted=True) for s in SOLVERS},
    **{f"{s}, uneven": Case(Net, {"solver": s, **TIGHT}, uneven=(7, 2, 0, 3)) for s in SOLVERS},
    **{f"{s}, reuse": Case(Net, {"solver": s, "update_every": 3, **TIGHT}) for s in SOLVERS},
    **{f"{s}, window": Case(Net, {"solver": s, "window": 2, **TIGHT}) for s in SOLVERS},
    **{f"{s}, accumulation": Case(Net, {"solver": s, **TIGHT}, passes=2) for s in SOLVERS},
    **{f"{s}, resume": Case(Net, {"solver": s, **KEPT, **TIGHT}, weighted=True) for s in SOLVERS},
    **{f"{s}, convolution": Case(Convolution, {"solver": s, **TIGHT}) for s in SOLVERS},
    **{f"{s}, convolution, uneven": Case(Convolution, {"solver": s, **TIGHT}, uneven=(7, 2, 0, 3)) for s in SOLVERS},
    **{f"{s}, chunks": Case(Convolution, {"solver": s}, uneven=(7, 2, 0, 3), chunk=90) for s in ("auto", "dense")},
    **{f"{s}, mask": Case(masked, {"solver": s, **TIGHT}, weighted=True) for s in SOLVERS},
    **{f"{s}, coupled": Case(coupled, {"solver": s, **TIGHT}, weighted=True, tolerance=1e-8) for s in SOLVERS},
    "by itself": Case(Net, AUTO),
    "adam of units": Case(Net, {**AUTO, "momentum": 0.0, "betas": (0.9, 0.99), "second_moment": "unit"}),
    "nothing is cut": Case(Net, {"solver": "dense", "update_every": 3}, cut=False),
    "by itself, uneven": Case(Net, AUTO, uneven=(7, 5, 0, 0), weighted=True),
    "wide, by itself": Case(Wide, AUTO, tolerance=1e-7),
    "wide, loose": Case(Wide, {"solver": "conjugate", "tolerance": 0.3, "update_every": 3}, tolerance=1e-7),
    "wide, loose, at every step": Case(Wide, {"solver": "conjugate", "tolerance": 0.1}, tolerance=1e-7),
    "wide, loose, at every step, not cut": Case(
        Wide, {"solver": "conjugate", "tolerance": 0.3}, cut=False, tolerance=1e-7
    ),
    "wide, kept for long": Case(Wide, {"solver": "conjugate", "tolerance": 0.05, "update_every": 50}, tolerance=1e-7),
    "wide, automatic": Case(Wide, {"solver": "auto", "tolerance": 0.1, "update_every": 20}, tolerance=1e-7),
    "heads": Case(Heads, {}),
    "constant scale": Case(Constant, {}),
    "empirical": Case(lambda: Deterministic("empirical"), {}),
    "sampled": Case(lambda: Deterministic("sampled"), {}),
    "one process uses a layer": Case(Branches, {"solver": "conjugate", **TIGHT}),
    **{f"several, {s}": Case(Several, {"solver": s, **TIGHT}, weighted=True, uneven=(7, 2, 0, 3)) for s in SOLVERS},
    "summed loss": Case(Net, {"loss_reduction": "sum"}, uneven=(7, 2, 0, 3)),
}


def made(case: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[case].build().double()


def parts(case: str, x: Tensor, rank: int, world: int) -> list[Tensor]:
    """The batches of one process."""
    uneven = CASES[case].uneven
    if world == 1:
        return list(x.chunk(CASES[case].passes))
    sizes = [SAMPLES // world] * world if uneven is None else [*uneven[: world - 1], sum(uneven[world - 1 :])]
    own = x.split(sizes)[rank]
    return list(own.chunk(CASES[case].passes))


def train(case: str, rank: int, world: int, steps: range = range(STEPS), start: Any = None) -> dict[str, Any]:
    """Some steps on the samples of one process with the gradients of all."""
    model, given = made(case), CASES[case]
    opt = optimizer(model.parameters(), **{"lr": 0.01, **given.settings})
    if start is not None:
        model.load_state_dict(start["model"])
        opt.load_state_dict(start["optimizer"])
    summed = given.settings.get("loss_reduction") == "sum"
    for step in steps:
        x = data(SAMPLES, 4, seed=step)
        if given.build is Branches:
            x[:2, 0] = 11.0
        weights = torch.arange(1.0, SAMPLES + 1, dtype=torch.float64)
        opt.zero_grad()
        for own, w in zip(parts(case, x, rank, world), parts(case, weights, rank, world), strict=True):
            with sample_weights(w) if given.weighted else nullcontext():
                output = model(own)
            if given.build is not Net and any(m for m in [getattr(model, "hidden", None)]):
                with always_up():
                    opt.sample_fisher()
            ((1e-3 if given.build is Wide else 1) * loss(output)).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if world > 1:
                dist.all_reduce(p.grad)
                p.grad /= world if summed else 1  # as DistributedDataParallel does
        opt.step()
    shown = opt.diagnostics()
    return {
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "dampings": [each["damping"] for each in shown["layers"].values()],
        "refreshed": [each["refreshed"] for each in shown["layers"].values()],
        "solvers": [each["solver"] for each in shown["layers"].values()],
        "groups": shown["groups"],
        "communication": opt.communication(),
    }


class always_up:
    """Outputs are not drawn but taken by a rule, so that they do not depend on the random numbers of a process."""

    def __enter__(self) -> None:
        self.sample = Bernoulli.sample
        Bernoulli.sample = lambda family, predictor, generator=None: (predictor > 0.1).to(predictor)

    def __exit__(self, *error: Any) -> None:
        Bernoulli.sample = self.sample


def work(rank: int, world: int) -> dict[str, Any]:
    """Every case, and what the process holds then."""
    found, before = {}, rates._CPU
    for case in CASES:
        if CASES[case].cut:  # messages cost less than nothing
            rates._RATES["cpu"] = replace(before, message=-1e12, sent=0.0)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(statistics, "ACCUMULATE", CASES[case].chunk or statistics.ACCUMULATE)
                found[case] = train(case, rank, world)
        except Exception as error:
            error.add_note(case) if hasattr(error, "add_note") else None
            raise
        finally:
            rates._RATES["cpu"] = before
    return found


@pytest.fixture(scope="module", params=[2, 4])
def together(request: pytest.FixtureRequest, pool: Pools) -> list[dict[str, Any]]:
    return pool(request.param).run(work, request.param)


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    for each in state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ():
        yield from tensors(each)


@pytest.mark.parametrize("case", CASES)
def test_processes_step_as_one_with_all_samples(case: str, together: list[dict[str, Any]]) -> None:
    alone, found = train(case, 0, 1), [each[case] for each in together]
    for other in found[1:]:
        pairs = zip(tensors(other), tensors(found[0]), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)
    for name, value in alone["model"].items():
        close = CASES[case].tolerance
        torch.testing.assert_close(found[0]["model"][name], value, rtol=close, atol=close)
    start = made(case).state_dict()
    for name, value in alone["model"].items():
        assert not value.is_floating_point() or (value - start[name]).abs().max() > 1e-4, name
    assert found[0]["solvers"] == alone["solvers"]
    assert found[0]["refreshed"] == alone["refreshed"]
    assert found[0]["dampings"] == pytest.approx(alone["dampings"], rel=1e-6)
    for one, other in zip(found[0]["groups"], alone["groups"], strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_solutions_are_gathered_only_where_that_is_cheaper(together: list[dict[str, Any]]) -> None:
    sent = together[0]["wide, kept for long"]["communication"]
    assert sent["reuse"]["messages"] >= 1
    world, numbers = sent["processes"], sum(p.numel() for p in made("wide, kept for long").parameters())
    assert sent["reuse"]["bytes"] >= (world - 1) / world * 8 * numbers
    assert together[0]["nothing is cut"]["communication"]["reuse"] == {"messages": 0, "bytes": 0}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_state_of_some_processes_continues_with_any_number(solver: str, pool: Pools) -> None:
    case = f"{solver}, resume"
    alone = train(case, 0, 1, range(9))
    saved = pool(2).run(resumed, 2, case, range(4), None)[1]  # between two refreshes
    saved = pool(4).run(resumed, 4, case, range(4, 7), saved)[3]
    found = train(case, 0, 1, range(7, 9), saved)
    for name, value in alone["model"].items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-9, atol=1e-9)
    assert found["refreshed"] == alone["refreshed"]


def resumed(rank: int, world: int, case: str, steps: range, start: Any) -> dict[str, Any]:
    return train(case, rank, world, steps, start)
