"""Settings as torch.optim takes them: numbers of any library, schedules, and the flags of its optimizers."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from as_torch import SCHEDULERS, Mixed, built, p, train
from by_hand import Net, backward, data, loss, optimizer, same
from torch.optim import lr_scheduler

from dagfisher import DAGNaturalGradient
from dagfisher.errors import CheckpointError, SettingError

X = data(6, 4)


# Numbers of NumPy and of tensors

KINDS: dict[str, Callable[[float], Any]] = {
    "float64": np.float64,
    "0-d array": np.array,
    "0-d tensor": lambda x: torch.tensor(x, dtype=torch.float64),
    "tensor of one": lambda x: torch.tensor([x], dtype=torch.float64),
    "tensor of one by one": lambda x: torch.tensor([[x]], dtype=torch.float64),
}
NUMBERS: dict[str, Any] = {
    "lr": 0.03, "damping": 0.3, "momentum": 0.5, "weight_decay": 0.1, "l1": 0.2, "tolerance": 0.25,
    "trust_region": 0.01, "window_decay": 0.25,
}  # fmt: skip


@pytest.mark.parametrize("solver", ["conjugate", "auto"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*NUMBERS, "betas", "update_every", "window"])
def test_a_number_of_another_library_counts_as_the_number_it_is(name: str, kind: str, solver: str) -> None:
    of = KINDS[kind]
    whole = {"update_every": 2, "window": 2}
    value = {**NUMBERS, **whole, "betas": (0.8, 0.9)}[name]
    if name in whole:
        number = torch.tensor(2) if "tensor" in kind else np.int64(2)
    else:
        number = tuple(map(of, value)) if name == "betas" else of(value)
    with_window = {} if name in whole else {"window": 2}
    net, twin, file = Net(), Net(), io.BytesIO()
    opt = built(net, solver=solver, **{**with_window, name: number})
    other = built(twin, solver=solver, **{**with_window, name: value})
    train(net, opt, range(3))
    torch.save(opt.state_dict(), file)
    file.seek(0)
    opt.load_state_dict(torch.load(file, weights_only=True))
    train(net, opt, range(3, 5))
    train(twin, other, range(5))
    assert same(net, twin)


@pytest.mark.parametrize("name", ["lr", "momentum", "damping", "window"])
def test_a_tensor_of_two_numbers_is_refused_and_named(name: str) -> None:
    with pytest.raises(SettingError, match=f"Tensor {name} must be 1-element, not of shape"):
        built(Net(), **{name: torch.tensor([0.1, 0.2])})
    net, twin = Net(), Net()
    opt = built(net)
    train(net, opt, range(1))
    train(twin, built(twin), range(1))
    opt.param_groups[0][name] = torch.tensor([0.1, 0.2])
    with pytest.raises(SettingError, match="must be 1-element"):
        train(net, opt, range(1, 2))
    assert same(net, twin)


@pytest.mark.parametrize("of", [np.float32, np.float64, torch.tensor], ids=["float32", "float64", "tensor"])
@pytest.mark.parametrize("name", ["lr", "damping", "update_every"])
def test_schedules_may_give_numbers_of_another_library(name: str, of: Callable[[float], Any]) -> None:
    net, twin = Net(), Net()
    if name == "lr":
        opt, other = built(net), built(twin)
        schedules = [
            lr_scheduler.LambdaLR(opt, lambda t: of(0.5**t)),
            lr_scheduler.LambdaLR(other, lambda t: 0.5**t),
        ]
    else:
        opt = built(net, **{name: lambda t: of(2.0 + t)})
        other, schedules = built(twin, **{name: lambda t: 2.0 + t}), []
    for step in range(4):
        train(net, opt, [step])
        train(twin, other, [step])
        for schedule in schedules:
            schedule.step()
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    assert not same(net, Net())


def test_a_schedule_that_gives_two_numbers_is_refused_and_named() -> None:
    net = Net()
    opt = built(net, damping=lambda t: torch.ones(2))
    with pytest.raises(SettingError, match=r"layer 'encoder\.0': damping gave tensor"):
        train(net, opt, range(1))
    assert same(net, Net())


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_schedule_of_a_tensor_rate_steps_like_one_of_a_float(schedule: Callable[..., Any], tensor: bool) -> None:
    net, twin = Net(), Net()
    rate: Any = torch.tensor(0.02, dtype=torch.float64) if tensor else np.float64(0.02)
    opt, other = built(net, lr=rate), built(twin, lr=0.02)
    rates, others = schedule(opt), schedule(other)
    for step in range(5):
        train(net, opt, [step])
        train(twin, other, [step])
        rates.step()
        others.step()
    assert (opt.param_groups[0]["lr"] is rate) == tensor
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)


# Flags of torch.optim


@pytest.mark.parametrize("way", ["keyword", "group", "added group", "in the middle", "checkpoint"])
@pytest.mark.parametrize("flag", ["fused", "capturable", "differentiable"])
def test_flags_without_a_meaning_are_refused_by_name_unless_they_are_off(flag: str, way: str) -> None:
    def give(value: Any) -> None:
        net = Net()
        if way == "keyword":
            opt = DAGNaturalGradient(net.parameters(), **{flag: value})
        elif way == "group":
            opt = DAGNaturalGradient([{"params": net.parameters(), flag: value}])
        else:
            opt = built(net)
        if way == "added group":
            opt.add_param_group({"params": [p()], flag: value})
        if way == "in the middle":
            opt.param_groups[0][flag] = value
        if way == "checkpoint":
            state = opt.state_dict()
            state["param_groups"][0][flag] = value
            opt.load_state_dict(state)
        train(net, opt, range(1))

    give(False)
    give(None)
    with pytest.raises(
        (SettingError, CheckpointError), match=f"{flag}=True is not supported by DAGNaturalGradient: .*; leave it out"
    ):
        give(True)


def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'dampin'"):
        DAGNaturalGradient(Net().parameters(), dampin=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("way", ["keyword", "group"])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "nesterov": True}, {"betas": (0.9, 0.99)}], ids=str)
def test_maximize_climbs_as_descending_on_the_negated_loss_with_the_same_decay(
    settings: dict[str, Any], way: str
) -> None:
    net, twin = Mixed(), Mixed()
    settings = {"lr": 0.01, "weight_decay": 0.1, "l1": 0.05, "update_every": 2, **settings}
    opt = optimizer(twin.parameters(), **settings)
    if way == "keyword":
        climbing = optimizer(net.parameters(), maximize=True, **settings)
    else:
        climbing = optimizer([{"params": list(net.parameters()), "maximize": True}], **settings)
    for seed in range(4):
        backward(net, climbing, data(6, 4, seed=seed))
        climbing.step()
        opt.zero_grad()
        (-loss(twin(data(6, 4, seed=seed)))).backward()
        opt.step()
    assert same(net, twin)


def test_a_loss_that_is_maximised_finds_the_damping_of_its_negative() -> None:
    """The curvature that is judged is that of the distribution, whichever way the gradient points."""
    net, twin = Net(), Net()
    opt, climbing = (
        optimizer(net.parameters(), damping="auto"),
        optimizer(twin.parameters(), damping="auto", maximize=True),
    )
    for seed in range(4):
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()
        climbing.zero_grad()
        (-loss(twin(data(6, 4, seed=seed)))).backward()
        climbing.step()
    assert same(net, twin)
    assert opt.diagnostics()["layers"] == climbing.diagnostics()["layers"]


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_foreach_changes_no_number(foreach: bool | None, set_to_none: bool) -> None:
    net, twin = Mixed(), Mixed()
    opt, other = built(net, momentum=0.5, foreach=foreach), built(twin, momentum=0.5)
    for seed in range(3):
        opt.zero_grad(set_to_none)
        loss(net(data(6, 4, seed=seed))).backward()
        opt.step()
    train(twin, other, range(3))
    assert same(net, twin)


def test_a_value_that_equals_one_that_was_checked_is_checked_itself() -> None:
    """1 equals True, which `foreach` may be."""
    for value, bad in ((True, False), (1, True), (1.0, True)):
        with pytest.raises(SettingError, match="foreach must be True or False") if bad else contextlib.nullcontext():
            DAGNaturalGradient([torch.nn.Parameter(torch.zeros(1))], foreach=value, undeclared="sgd")  # type: ignore[arg-type]
