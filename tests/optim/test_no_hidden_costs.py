"""A step that reuses waits for nothing, loops over no units, and a long run keeps nothing."""

import copy
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
import torch
from by_hand import SOLVERS, Net, backward, data, declared, live_tensors, optimizer, same
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import HostWaits, NoWaiting, waits

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import NonFiniteError
from dagfisher.optim.settings import DEFAULTS

MASK = torch.tensor([True, False, True])
WAITING: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t.sum().item(),
    "float": lambda t: float(t.sum()),
    "bool": lambda t: bool((t > 0).all()),
    "nonzero": lambda t: t.nonzero(),
    "masked_select": lambda t: t.masked_select(MASK),
    "a mask": lambda t: t[MASK],
    "writing through a mask": lambda t: t.__setitem__(MASK, torch.tensor(0.0)),
    "unique": lambda t: t.unique(),
    "equal": lambda t: torch.equal(t, t.clone()),
    "cholesky": lambda t: torch.linalg.cholesky(torch.diag(t)),
    "another device": lambda t: t.to("meta"),
}


@pytest.mark.parametrize("operation", WAITING.values(), ids=WAITING.keys())
def test_the_mode_notices_every_way_to_wait(operation: Callable[[Tensor], Any]) -> None:
    with pytest.raises(HostWaits), NoWaiting():
        operation(torch.ones(3))


class Wide(nn.Module):
    """Bernoulli layers, a Gaussian in halves and one in heads, a layer without parents, and one nobody declared."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Net().float()
        self.halves, self.plain = nn.Linear(2, 6), nn.Linear(6, 3)
        self.mean, self.scale = nn.Linear(3, 2), nn.Linear(3, 2)
        self.prior = dagfisher.nn.Prior(2)
        dagfisher.declare(self.halves, "gaussian", scale="log_var")
        dagfisher.declare_gaussian(mean=self.mean, log_std=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.plain(self.halves(torch.sigmoid(self.net(x))))
        return torch.cat([self.mean(hidden), self.scale(hidden), self.prior(len(x))], dim=-1)


ACCELERATIONS: dict[str, dict[str, Any]] = {
    "plain": {"weight_decay": 0.1, "l1": 0.01},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adam": {"betas": (0.9, 0.99), "undeclared": "adam"},
    "adam of units": {"betas": (0.9, 0.99), "second_moment": "unit", "trust_region": 1e-4},
    "adam of layers": {"betas": (0.9, 0.99), "second_moment": "layer"},
    "trust region": {"trust_region": 1e-4},
    "found damping": {"damping": "auto"},
    "defaults": {name: getattr(DEFAULTS, name) for name in ("damping", "trust_region", "tolerance")},
    "window": {"window": 2},
}


@pytest.mark.parametrize("settings", ACCELERATIONS.values(), ids=ACCELERATIONS.keys())
@pytest.mark.parametrize("solver", ("auto", *SOLVERS))
def test_a_step_that_reuses_makes_no_host_wait(solver: str, settings: dict[str, Any]) -> None:
    net, x = Wide(), data(6, 4).float()
    opt = optimizer(net.parameters(), lr=0.01, solver=solver, update_every=4, **settings)
    backward(net, opt, x)
    opt.step()
    twin = copy.deepcopy(net)
    other = optimizer(twin.parameters(), lr=0.01, solver=solver, update_every=4, **settings)
    other.load_state_dict(opt.state_dict())
    for _ in range(3):
        backward(net, opt, x)
        backward(twin, other, x)
        with NoWaiting():
            opt.step()
        other.step()
        assert same(net, twin)
    if solver == "diagonal":  # its refresh has nothing to find out
        return
    backward(net, opt, x)
    with waits() as found, suppress(NonFiniteError):  # some of these have run away by now
        opt.step()
    assert found


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_step_that_reuses_reads_nothing_from_a_device_that_cannot_be_read(solver: str) -> None:
    net = Wide()
    opt = optimizer(net.parameters(), solver=solver, update_every=9, momentum=0.9)
    backward(net, opt, data(6, 4).float())
    opt.step()
    elsewhere = copy.deepcopy(net).to("meta")
    other = optimizer(elsewhere.parameters(), solver=solver, update_every=9, momentum=0.9)
    other.load_state_dict(opt.state_dict())
    for p in elsewhere.parameters():
        p.grad = torch.empty_like(p)
    with NoWaiting():
        other.step()
    assert repr(other).startswith("DAGNaturalGradient (step 2)")
    fresh = optimizer(elsewhere.parameters(), solver=solver)
    backward(elsewhere, fresh, torch.empty(6, 4, device="meta"))
    with pytest.raises(RuntimeError, match="meta"):
        fresh.step()


@pytest.fixture
def untraced() -> Iterator[None]:
    """Without the tracer that measures coverage, which has calls and memory of its own."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


costs = pytest.mark.usefixtures("untraced")


def calls(action: Callable[[], Any]) -> int:
    """How many functions, in Python or C, an action calls."""
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # what other tests left behind is not part of the action
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


class Operations(TorchDispatchMode):
    """Counts tensor operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def reusing(solver: str, units: int, samples: int, **settings: Any) -> DAGNaturalGradient:
    """An optimizer about to reuse, whose units are all alike, so that an iterative solver counts alike."""
    layer = declared(5, units)
    with torch.no_grad():
        layer.weight.copy_(layer.weight[:1].clone())
        layer.bias.zero_()
    opt = optimizer(layer.parameters(), solver=solver, update_every=100, **settings)
    for _ in range(3):
        opt.zero_grad()
        layer(data(samples, 5)).square().sum().backward()
        opt.step()
    layer(data(samples, 5)).square().sum().backward()
    return opt


@costs
@pytest.mark.parametrize("settings", ACCELERATIONS.values(), ids=ACCELERATIONS.keys())
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_work_of_the_host_does_not_grow_with_the_units(solver: str, settings: dict[str, Any]) -> None:
    small, large = (reusing(solver, units, samples=8, **settings) for units in (2, 300))
    small.step(), large.step()  # each notices once that layers were declared since it was built
    assert calls(small.step) == calls(large.step) > 50
    counts = []
    for opt in (small, large):
        with Operations() as mode:
            opt.step()
        counts.append(mode.count)
    assert counts[0] == counts[1] > 3


@costs
@pytest.mark.parametrize("solver", ["dense", "diagonal"])
def test_the_work_of_the_host_does_not_grow_with_the_samples(solver: str) -> None:
    assert calls(reusing(solver, 3, samples=4).step) == calls(reusing(solver, 3, samples=200).step)


def traced_bytes() -> int:
    """Bytes of Python objects, without the names that the interpreter's cache of attributes holds."""
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    return tracemalloc.get_traced_memory()[0]


@costs
def test_a_thousand_steps_keep_nothing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(dagfisher.nn.BernoulliLinear(4, 3), nn.Sigmoid(), dagfisher.nn.GaussianLinear(3, 2))
    batches = [data(4 + step % 3, 4, seed=step).float() for step in range(6)]
    opt = optimizer(net.named_parameters(), lr=1e-4, solver="auto", update_every=5, momentum=0.9)

    def train(steps: int) -> None:
        for step in range(steps):
            backward(net, opt, batches[step % 6])
            if step % 50 == 0:
                opt.natural_gradient(), opt.fisher_blocks(net[0].weight), opt.memory_usage(), opt.state_dict()
            opt.step()
        opt.zero_grad()

    tracemalloc.start()
    try:
        train(60)
        before = live_tensors(), traced_bytes()
        train(1020)
        after = live_tensors(), traced_bytes()
    finally:
        tracemalloc.stop()
    assert after[0] == before[0]
    assert after[1] - before[1] < 8_000  # one object of 24 bytes for each step would be more


@costs
def test_an_endless_run_of_bad_steps_keeps_nothing() -> None:
    net, x = Net(), data(6, 4)
    opt = optimizer(net.named_parameters())

    def fail(steps: int) -> None:
        for _ in range(steps):
            net(x)
            for p in net.parameters():
                p.grad = torch.full_like(p, torch.nan)
            with pytest.raises(ArithmeticError):
                opt.step()
        opt.zero_grad()

    fail(2)
    before = live_tensors()
    fail(20)
    assert live_tensors() == before
    assert set(opt.memory_usage().values()) == {0}
