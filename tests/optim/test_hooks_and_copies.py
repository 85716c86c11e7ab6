"""Hooks run as torch runs them, and copies are what torch's copies are."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from as_torch import Mixed, built, each_configuration, flat, train
from by_hand import Net, backward, data, same
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError

X = data(6, 4)


# Hooks


def test_state_dict_hooks_see_the_whole_state_in_torchs_order_once() -> None:
    net = Net()
    opt, calls = built(net, momentum=0.9), []
    train(net, opt, range(1))

    def post(name: str) -> Callable[..., Any]:
        def hook(optimizer: Any, state: dict[str, Any]) -> None:
            assert optimizer is opt
            assert set(state) == {"state", "param_groups", "dagfisher"}
            calls.append(name)

        return hook

    def replaces(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("replaces")
        return {**state, "mine": 1}

    def late(optimizer: Any) -> None:
        calls.append("pre 1")
        if calls.count("pre 1") == 1:
            opt.register_state_dict_post_hook(lambda o, s: calls.append("registered by a hook"))

    opt.register_state_dict_pre_hook(lambda o: calls.append("pre 2"))
    opt.register_state_dict_pre_hook(late, prepend=True)
    opt.register_state_dict_post_hook(post("post 2"))
    opt.register_state_dict_post_hook(post("post 1"), prepend=True)
    removed = opt.register_state_dict_post_hook(post("removed"))
    removed.remove()
    opt.register_state_dict_post_hook(replaces)
    assert opt.state_dict()["mine"] == 1
    assert calls == ["pre 1", "pre 2", "post 1", "post 2", "replaces", "registered by a hook"]
    copy.deepcopy((net, opt))
    assert len(calls) == 6


def test_load_hooks_see_the_whole_state_in_torchs_order_once() -> None:
    net, twin = Net(), Net()
    opt, other, calls = built(net, momentum=0.9), built(twin, momentum=0.9), []
    train(net, opt, range(2))
    state = {**opt.state_dict(), "lr": 0.5}
    given = copy.copy(state)

    def pre(optimizer: Any, state: dict[str, Any]) -> dict[str, Any] | None:
        assert optimizer is other
        assert set(state) == {"state", "param_groups", "dagfisher", "lr"}
        calls.append("pre 1")
        state["seen"] = True
        return None

    def replaces(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        assert state["seen"]
        calls.append("pre 2")
        return {**state, "param_groups": [{**group, "lr": state["lr"]} for group in state["param_groups"]]}

    def post(optimizer: Any) -> None:
        calls.append("post")
        assert optimizer.state_dict()["dagfisher"]["step"] == 2
        assert sum(optimizer.memory_usage().values()) > 0

    other.register_load_state_dict_pre_hook(replaces)
    other.register_load_state_dict_pre_hook(pre, prepend=True)
    other.register_load_state_dict_post_hook(lambda o: calls.append("post 2"))
    other.register_load_state_dict_post_hook(post, prepend=True)
    other.load_state_dict(state)
    assert calls == ["pre 1", "pre 2", "post", "post 2"]
    assert other.param_groups[0]["lr"] == 0.5
    assert state.keys() == given.keys()
    other.load_state_dict(state)
    assert len(calls) == 8


def test_step_hooks_run_around_a_step_global_ones_outside() -> None:
    net, calls = Net(), []
    opt = built(net)
    handles = [
        register_optimizer_step_pre_hook(lambda o, a, k: calls.append("global pre")),
        register_optimizer_step_post_hook(lambda o, a, k: calls.append("global post")),
    ]
    opt.register_step_pre_hook(lambda o, a, k: calls.append("pre"))
    opt.register_step_post_hook(lambda o, a, k: calls.append("post"))
    try:
        train(net, opt, range(1))
    finally:
        for handle in handles:
            handle.remove()
    assert calls == ["global pre", "pre", "post", "global post"]


def test_steps_and_zeroed_gradients_have_their_names_in_a_profile() -> None:
    net = Net()
    opt = built(net)
    with torch.autograd.profiler.profile() as profile:
        train(net, opt, range(1))
    names = {event.name for event in profile.function_events}
    for each in ("step", "zero_grad"):
        assert f"Optimizer.{each}#DAGNaturalGradient.{each}" in names


# Copies


@each_configuration
def test_a_copy_of_an_optimizer_alone_has_copies_of_its_parameters_and_says_that_it_lacks_a_model(
    settings: dict[str, Any],
) -> None:
    net, twin = Mixed(), Mixed()
    opt, other = built(net, **settings), built(twin, **settings)
    train(net, opt, range(2))
    train(twin, other, range(2))
    backward(net, opt, X)
    backward(twin, other, X)
    for alone in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert {k for k in vars(alone) if k[0] != "_"} == {k for k in vars(opt) if k[0] != "_"}
        copied, own = alone.param_groups[0]["params"], opt.param_groups[0]["params"]
        assert all(torch.equal(a, b) and a is not b for a, b in zip(copied, own, strict=True))
        assert set(map(id, alone.state)) <= set(map(id, copied))
        assert flat(alone.state_dict()) == flat(opt.state_dict())
        before = [q.clone() for q in copied]
        for act in (alone.step, alone.natural_gradient, lambda a=alone: a.load_state_dict(opt.state_dict())):
            with pytest.raises(DeclarationError, match=r"without its model.*together, as one tuple"):
                act()
        assert all(map(torch.equal, copied, before))
        alone.zero_grad()
    opt.step()  # what was captured for it is still there
    other.step()
    train(net, opt, range(3, 5))
    train(twin, other, range(3, 5))
    assert same(net, twin)


@each_configuration
def test_an_optimizer_without_declared_layers_is_copied_alone_as_torchs_are(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    q = nn.Parameter(torch.randn(3))
    opt = DAGNaturalGradient([q], lr=0.1, **settings)
    q.grad = torch.ones(3)
    opt.step()
    twin = copy.deepcopy(opt)
    opt.step()
    (other,) = twin.param_groups[0]["params"]
    assert not torch.equal(q, other)
    other.grad = torch.ones(3)
    twin.step()
    assert torch.equal(q, other)
    assert flat(twin.state_dict()) == flat(opt.state_dict())


@each_configuration
@pytest.mark.parametrize("first", ["model", "optimizer"])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"])
def test_a_model_and_its_optimizer_are_copied_in_any_order(
    way: Callable[[Any], Any], first: str, settings: dict[str, Any]
) -> None:
    net = Mixed()
    opt = built(net, **{"update_every": 3, **settings})
    train(net, opt, range(2))
    copied = way((net, opt) if first == "model" else (opt, net))
    twin, other = copied if first == "model" else copied[::-1]
    train(net, opt, range(2, 6))
    train(twin, other, range(2, 6))
    assert same(net, twin)
    assert flat(opt.state_dict()) == flat(other.state_dict())


def test_a_copy_knows_the_names_of_its_parameters() -> None:
    net = Mixed()
    twin, other = copy.deepcopy((net, built(net)))
    backward(twin, other, X)
    twin.plain.weight.grad = twin.plain.weight.grad.to_sparse()
    with pytest.raises(dagfisher.errors.GradientError, match=r"parameter plain\.weight"):
        other.step()
