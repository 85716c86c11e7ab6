"""The optimizer around the natural gradient: schedules, acceleration, undeclared parameters, inspection."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    SOLVERS,
    Array,
    Net,
    array,
    assert_close,
    assert_step,
    backward,
    bernoulli_information,
    blocks,
    data,
    declared,
    loss,
    natural,
    optimizer,
    parents_of,
    same,
    scaled,
)
from torch import Tensor, nn
from torch.optim import lr_scheduler

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError

LR = 0.05


def batch(step: int) -> Tensor:
    return data(6, 3, seed=100 + step)


def fisher_at(layer: nn.Linear, x: Tensor) -> Array:
    return blocks(parents_of(layer, x, ["weight", "bias"]), bernoulli_information(layer, x))


# K-step reuse


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("every", [1, 3, 100])
def test_steps_0_k_2k_refresh_and_the_others_reuse(solver: str, every: int) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters(), lr=LR, update_every=every, solver=solver, tolerance=1e-13)
    for step in range(8):
        x = batch(step)
        if step % every == 0:
            fisher = fisher_at(layer, x)
        backward(layer, opt, x)
        expected = natural(layer, x, 0.1, fisher=fisher, diagonal=solver == "diagonal")
        assert_step(opt, scaled(LR, expected), 1e-9)


def test_schedules_may_be_callables_of_the_step() -> None:
    layer = declared(3, 2)
    opt = optimizer(
        layer.parameters(),
        lr=LR,
        update_every=lambda step: 2 if step < 5 else 3,
        damping=lambda step: 0.1 * (step + 1),
    )
    for step in range(12):
        x = batch(step)
        if step in (0, 2, 4, 7, 10):
            fisher, damping = fisher_at(layer, x), 0.1 * (step + 1)
        backward(layer, opt, x)
        assert_step(opt, scaled(LR, natural(layer, x, damping, fisher=fisher)))


def test_each_group_keeps_its_own_schedule() -> None:
    often, seldom = declared(3, 2), declared(3, 3)
    opt = optimizer(
        [{"params": often.parameters(), "update_every": 2}, {"params": seldom.parameters(), "update_every": 3}], lr=LR
    )
    for step in range(7):
        x = batch(step)
        opt.zero_grad()
        (loss(often(x)) + loss(seldom(x))).backward()
        if step % 2 == 0:
            first = fisher_at(often, x)
        if step % 3 == 0:
            second = fisher_at(seldom, x)
        expected = natural(often, x, 0.1, fisher=first) | natural(seldom, x, 0.1, fisher=second)
        assert_step(opt, scaled(LR, expected))


def test_a_layer_without_a_gradient_stays_and_waits() -> None:
    net, x = Net(), data(6, 4)
    opt = optimizer(net.parameters(), lr=LR)
    backward(net, opt, x)
    opt.step()
    kept = net.head.weight.clone()
    opt.zero_grad()
    loss(net.encoder[0](x)).backward()
    assert_step(opt, scaled(LR, natural(net.encoder[0], x, 0.1)))
    assert torch.equal(net.head.weight, kept)
    backward(net, opt, x)
    hidden = net.encoder(x)
    assert_step(opt, scaled(LR, natural(net.head, hidden, 0.1)))


# Acceleration, decay, and what nobody declared


class Momentum:
    def __init__(self, beta: float, nesterov: bool) -> None:
        self.beta, self.nesterov, self.v = beta, nesterov, 0.0

    def __call__(self, x: Array) -> Array:
        self.v = self.beta * self.v + x
        return x + self.beta * self.v if self.nesterov else self.v


class Adam:
    def __init__(self, first: float, second: float) -> None:
        self.first, self.second, self.m, self.v, self.t = first, second, 0.0, 0.0, 0

    def __call__(self, x: Array) -> Array:
        self.t += 1
        self.m = self.first * self.m + (1 - self.first) * x
        self.v = self.second * self.v + (1 - self.second) * x**2
        return (self.m / (1 - self.first**self.t)) / (np.sqrt(self.v / (1 - self.second**self.t)) + 1e-8)


ACCELERATIONS: list[tuple[dict[str, Any], Callable[[], Callable[[Array], Array]]]] = [
    ({"momentum": 0.9}, lambda: Momentum(0.9, False)),
    ({"momentum": 0.9, "nesterov": True}, lambda: Momentum(0.9, True)),
    ({"betas": (0.9, 0.99)}, lambda: Adam(0.9, 0.99)),
]


@pytest.mark.parametrize("settings, rule", ACCELERATIONS, ids=["momentum", "nesterov", "adam"])
@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.1, "l1": 0.01}], ids=["", "decay"])
def test_the_natural_gradient_is_accelerated_and_decay_is_decoupled(
    settings: dict[str, Any], rule: Callable[[], Callable[[Array], Array]], decay: dict[str, float]
) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters(), lr=LR, **settings, **decay)
    rules = {layer.weight: rule(), layer.bias: rule()}
    for step in range(5):
        backward(layer, opt, batch(step))
        expected = {}
        for p, x in natural(layer, batch(step), 0.1).items():
            pull = decay.get("weight_decay", 0) * array(p) + decay.get("l1", 0) * np.sign(array(p))
            expected[p] = LR * (rules[p](x) + pull)
        assert_step(opt, expected)


class Mixed(nn.Module):
    """A declared layer between two that nobody declared."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.before, self.middle, self.after = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.double()
        dagfisher.declare(self.middle, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.middle(torch.tanh(self.before(x))))


@pytest.mark.parametrize(
    "rule, plain",
    [
        ({"undeclared": "sgd"}, lambda ps: torch.optim.SGD(ps, lr=LR)),
        ({"undeclared": "sgd", "momentum": 0.8}, lambda ps: torch.optim.SGD(ps, lr=LR, momentum=0.8)),
        ({"undeclared": "adam"}, lambda ps: torch.optim.Adam(ps, lr=LR)),
    ],
    ids=["sgd", "sgd with momentum", "adam"],
)
def test_undeclared_parameters_move_as_torch_would_move_them(
    rule: dict[str, Any], plain: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> None:
    net, x = Mixed(), data(6, 4)
    opt = optimizer(net.parameters(), lr=LR, **rule)
    others = [*net.before.parameters(), *net.after.parameters()]
    copies = [p.detach().clone().requires_grad_() for p in others]
    reference = plain(copies)
    for step in range(4):
        backward(net, opt, x)
        for copy, p in zip(copies, others, strict=True):
            copy.grad = p.grad.clone()
        if step == 0:
            hidden = torch.tanh(net.before(x))
            assert_step(opt, scaled(LR, natural(net.middle, hidden, 0.1)))
        else:
            opt.step()
        reference.step()
        for copy, p in zip(copies, others, strict=True):
            torch.testing.assert_close(p, copy, rtol=0, atol=1e-14)


@pytest.mark.parametrize("named", [True, False])
def test_undeclared_parameters_may_be_an_error(named: bool) -> None:
    net = Mixed()
    place = "before.weight" if named else r"number 0 of its group, shape \(3, 4\)"
    with pytest.raises(DeclarationError, match=rf"{place} belongs to no declared layer.*declare its module"):
        optimizer(net.named_parameters() if named else list(net.parameters()), undeclared="error")
    assert optimizer(net.middle.parameters(), undeclared="error").param_groups[0]["undeclared"] == "error"


# The rest of torch


def test_a_closure_is_called_once_with_gradients_and_its_loss_is_returned() -> None:
    layer, x = declared(3, 2), batch(0)
    opt, twin = optimizer(layer.parameters()), declared(3, 2)
    other = optimizer(twin.parameters())
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        value = loss(layer(x))
        value.backward()
        return value

    with torch.no_grad():
        result = opt.step(closure)
    backward(twin, other, x)
    other.step()
    assert calls == [True]
    assert result.item() == loss(torch.nn.functional.linear(x, *declared(3, 2).parameters())).item()
    assert same(layer, twin)


@pytest.mark.parametrize(
    "schedule, rates",
    [
        (lambda opt: lr_scheduler.StepLR(opt, step_size=2, gamma=0.1), [1, 1, 0.1, 0.1, 0.01]),
        (lambda opt: lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t)), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
    ],
    ids=["StepLR", "LambdaLR"],
)
def test_learning_rate_schedulers_work(
    schedule: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], rates: list[float]
) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters(), lr=LR)
    scheduler = schedule(opt)
    for step, rate in enumerate(rates):
        backward(layer, opt, batch(step))
        assert_step(opt, scaled(LR * rate, natural(layer, batch(step), 0.1)))
        scheduler.step()


@pytest.mark.parametrize("settings, cycled", [({"momentum": 0.9}, "momentum"), ({"betas": (0.9, 0.99)}, "betas")])
def test_schedulers_that_cycle_the_momentum_find_it(settings: dict[str, Any], cycled: str) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters(), **settings)
    lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10, max_momentum=0.93)
    group = opt.param_groups[0]
    assert (group["momentum"] if cycled == "momentum" else group["betas"][0]) == 0.93
    assert group["lr"] == pytest.approx(0.1 / 25)


def test_a_scaled_loss_gives_the_same_step() -> None:
    layer, twin, x = declared(3, 2), declared(3, 2), batch(0)
    opt, other = optimizer(layer.parameters()), optimizer(twin.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(loss(layer(x))).backward()
    scaler.step(opt)
    backward(twin, other, x)
    other.step()
    assert same(layer, twin)


def test_no_parameters_are_refused_as_torch_refuses_them() -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        DAGNaturalGradient([])


# Inspection


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("reuses", [False, True])
def test_the_natural_gradient_is_what_the_step_applies_and_looking_moves_nothing(solver: str, reuses: bool) -> None:
    net, twin = Mixed(), Mixed()
    opt, other = (optimizer(n.parameters(), lr=0.25, update_every=3, solver=solver) for n in (net, twin))
    for step in range(2 if reuses else 1):
        for n, o in ((net, opt), (twin, other)):
            backward(n, o, data(6, 4, seed=step))
        before = [p.clone() for p in net.parameters()]
        vectors, again = opt.natural_gradient(), opt.natural_gradient()
        assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
        assert all(torch.equal(vectors[p], again[p]) for p in net.parameters())
        opt.step()
        other.step()
    assert same(net, twin)
    for p, old in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(p, old - 0.25 * vectors[p], rtol=0, atol=1e-13)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("solver", ("auto", *SOLVERS))
def test_a_step_leaves_gradients_and_random_numbers_as_they_were(solver: str, bias: bool) -> None:
    layer = declared(3, 2, bias=bias)
    opt = optimizer(layer.parameters(), solver=solver, update_every=2, momentum=0.9, weight_decay=0.1)
    for step in range(2):
        backward(layer, opt, batch(step))
        gradients, generator = [p.grad.clone() for p in layer.parameters()], torch.get_rng_state()
        opt.step()
        assert torch.equal(torch.get_rng_state(), generator)
        assert all(torch.equal(p.grad, g) for p, g in zip(layer.parameters(), gradients, strict=True))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_fisher_blocks_are_the_damped_ones_of_the_coming_step(solver: str) -> None:
    layer, x, later = declared(3, 2), batch(0), batch(1)
    opt = optimizer(layer.parameters(), lr=LR, update_every=5, damping=0.25, solver=solver, tolerance=1e-12)
    backward(layer, opt, x)
    fisher = fisher_at(layer, x)
    damped = (0.25 * np.eye(4) + fisher) / 1.25
    np.testing.assert_allclose(array(opt.fisher_blocks(layer.bias)), damped, atol=1e-12)
    opt.step()
    backward(layer, opt, later)
    reused = damped * np.eye(4) if solver == "diagonal" else damped
    np.testing.assert_allclose(array(opt.fisher_blocks(layer.weight)), reused, atol=1e-12)


def test_blocks_belong_to_declared_layers_only() -> None:
    net = Mixed()
    opt = optimizer(net.parameters())
    with pytest.raises(DeclarationError, match="belongs to no declared layer"):
        opt.fisher_blocks(net.before.weight)


def test_memory_usage_counts_the_bytes_of_every_layer() -> None:
    net, twin, x = Net(), Net(), data(6, 4)
    opt = optimizer([{"params": net.parameters()}, {"params": twin.parameters()}], update_every=2)
    assert opt.memory_usage() == {"encoder.0": 0, "head": 0, "encoder.0 (2)": 0, "head (2)": 0}
    backward(net, opt, x)
    assert opt.memory_usage()["encoder.0"] == 8 * 6 * (4 + 3 + 1)
    loss(twin(x)).backward()
    opt.step()
    kept = {"encoder.0": 8 * 3 * 25, "head": 8 * 2 * 16}
    assert opt.memory_usage() == {**kept, "encoder.0 (2)": 8 * 3 * 25, "head (2)": 8 * 2 * 16}


def test_the_repr_says_what_is_trained_and_how() -> None:
    net = Mixed()
    opt = optimizer(net.named_parameters(), lr=0.25, update_every=7)
    before = repr(opt)
    backward(net, opt, data(6, 4))
    opt.step()
    assert before.splitlines()[:3] == [
        "DAGNaturalGradient (step 0)",
        "  middle: bernoulli on Linear, 3 units, not prepared",
        "  4 undeclared parameters: sgd",
    ]
    assert repr(opt).splitlines()[:2] == [
        "DAGNaturalGradient (step 1)",
        "  middle: bernoulli on Linear, 3 units, dense",
    ]
    assert all(setting in before for setting in ("lr=0.25", "damping=0.1", "update_every=7", "solver=dense"))


def test_the_default_solver_is_chosen_and_exact_enough() -> None:
    net, x = Net(), data(6, 4)
    opt = DAGNaturalGradient(net.parameters(), lr=1.0, damping=0.1, trust_region=None)
    backward(net, opt, x)
    assert_close({p: array(v) for p, v in opt.natural_gradient().items()}, net.natural(x, 0.1), 1e-2)
    opt.step()
    assert all(layer["solver"] in SOLVERS for layer in opt.diagnostics()["layers"].values())
