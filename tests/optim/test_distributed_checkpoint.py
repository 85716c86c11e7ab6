"""torch.distributed.checkpoint saves and restores the Fisher, and a run goes on bit for bit."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from as_torch import Mixed, flat, train
from by_hand import Net, backward, data, optimizer, same
from torch import nn

from dagfisher import DAGNaturalGradient
from dagfisher.errors import CheckpointError
from dagfisher.optim.checkpoint import Carried

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "plain": {},
    "adam": {"betas": (0.9, 0.99)},
    "adam of layers": {"betas": (0.9, 0.99), "second_moment": "layer"},
    "adam for the undeclared": {"undeclared": "adam"},
    "woodbury": {"solver": "woodbury", "momentum": 0.9},
    "conjugate": {"solver": "conjugate", "tolerance": 0.1},
    "diagonal": {"solver": "diagonal"},
    "chosen": {"solver": "auto"},
    "a tensor rate": {"lr": torch.tensor(0.01)},
    "a schedule": {"damping": lambda step: 0.1 + 0.01 * step},
}


def built(net: nn.Module, **settings: Any) -> DAGNaturalGradient:
    return optimizer(net.parameters(), **{"lr": 0.01, "update_every": 4, "window": 2, **copy.deepcopy(settings)})


def through_a_folder(net: nn.Module, opt: Any, twin: nn.Module, other: Any, folder: Path) -> None:
    model, state = get_state_dict(net, opt)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder)
    model, state = get_state_dict(twin, other)
    loaded = {"model": model, "optimizer": state}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(twin, other, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])


def through_memory(net: nn.Module, opt: Any, twin: nn.Module, other: Any, folder: Path) -> None:
    twin.load_state_dict(net.state_dict())
    set_optimizer_state_dict(twin, other, get_optimizer_state_dict(net, opt))


def on_the_host(net: nn.Module, opt: Any, twin: nn.Module, other: Any, folder: Path) -> None:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(net, opt, options=options)
    torch.save(state, folder / "optimizer.pt")
    twin.load_state_dict(net.state_dict())
    set_optimizer_state_dict(twin, other, torch.load(folder / "optimizer.pt", weights_only=True))


def as_it_is(net: nn.Module, opt: Any, twin: nn.Module, other: Any, folder: Path) -> None:
    dcp.save({"model": net, "optimizer": opt}, checkpoint_id=folder)
    dcp.load({"model": twin, "optimizer": other}, checkpoint_id=folder)


WAYS: dict[str, Callable[..., None]] = {
    "folder": through_a_folder,
    "memory": through_memory,
    "host": on_the_host,
    "as it is": as_it_is,
}


@pytest.mark.parametrize("steps", [0, 4, 7])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_five_more_steps_are_the_same_bit_for_bit(settings: dict[str, Any], steps: int, tmp_path: Path) -> None:
    net, alone = Mixed(), Mixed()
    opt, never_saved = built(net, **settings), built(alone, **settings)
    train(net, opt, range(steps))
    train(alone, never_saved, range(steps))
    opt.zero_grad()
    for name, way in WAYS.items():
        twin = Mixed()
        other = built(twin, **settings)
        (tmp_path / name).mkdir()
        way(net, opt, twin, other, tmp_path / name)
        assert flat(other.state_dict()) == flat(opt.state_dict())
        reference, going_on = copy.deepcopy((alone, never_saved))
        train(twin, other, range(steps, steps + 5))
        train(reference, going_on, range(steps, steps + 5))
        assert same(twin, reference)
    train(net, opt, range(steps, steps + 5))  # saving has left no trace
    train(alone, never_saved, range(steps, steps + 5))
    assert same(net, alone)
    assert all(len(state) > 0 for state in opt.state.values())


def test_saving_between_a_pass_and_its_backward_pass_leaves_no_trace() -> None:
    net, twin = Net(), Net()
    opt, other = built(net), built(twin)
    for model, each, saves in ((net, opt, True), (twin, other, False)):
        for seed in range(6):
            output = model(data(6, 4, seed=seed))
            if saves:
                get_optimizer_state_dict(model, each)
            output.square().sum().backward()
            each.step()
            each.zero_grad()
    assert same(net, twin)


def test_a_layer_that_rests_has_moments_of_zero(tmp_path: Path) -> None:
    net, twin = Mixed(), Mixed()
    net.head.requires_grad_(False)
    opt, other = built(net, momentum=0.9), built(twin, momentum=0.9)
    train(net, opt, range(3))
    net.head.requires_grad_(True)
    opt.zero_grad()
    through_a_folder(net, opt, twin, other, tmp_path)
    assert not other.state[twin.head.weight]["momentum_buffer"].any()
    train(net, opt, range(3, 6))
    train(twin, other, range(3, 6))
    assert same(net, twin)


def test_factors_of_bfloat16_parameters_stay_float32(tmp_path: Path) -> None:
    net, twin = Net().bfloat16(), Net().bfloat16()
    opt, other = built(net, momentum=0.9), built(twin, momentum=0.9)

    def go(model: nn.Module, each: DAGNaturalGradient, steps: range) -> None:
        for seed in steps:
            backward(model, each, data(6, 4, seed=seed).bfloat16())
            each.step()

    go(net, opt, range(3))
    opt.zero_grad()
    through_a_folder(net, opt, twin, other, tmp_path)
    solver = other.state_dict()["dagfisher"]["layers"][0]["solvers"][0]
    assert {value.dtype for value in solver.values() if isinstance(value, torch.Tensor)} == {torch.float32}
    go(net, opt, range(3, 6))
    go(twin, other, range(3, 6))
    assert same(net, twin)


def test_a_frozen_weight_leaves_the_fisher_with_its_bias_and_a_frozen_layer_comes_without(tmp_path: Path) -> None:
    net, twin = Net(), Net()
    for model in (net, twin):
        model.encoder[0].weight.requires_grad_(False)
    opt, other = built(net), built(twin)
    train(net, opt, range(3))
    for model in (net, twin):
        model.head.requires_grad_(False)
    opt.zero_grad()
    through_memory(net, opt, twin, other, tmp_path)
    first, second = other.state_dict()["dagfisher"]["layers"]
    assert flat(first) == flat(opt.state_dict()["dagfisher"]["layers"][0])
    assert second["solvers"] is None
    train(net, opt, range(3, 6))
    train(twin, other, range(3, 6))
    assert same(net, twin)


def test_a_flattened_state_is_refused_when_it_is_saved() -> None:
    net, twin = Net(), Net()
    opt, other = built(net), built(twin)
    train(net, opt, range(2))
    train(twin, other, range(2))
    opt.zero_grad()
    with pytest.raises(NotImplementedError, match=r"dagfisher\.optim\.checkpoint\.Carried"):
        get_optimizer_state_dict(net, opt, options=StateDictOptions(flatten_optimizer_state_dict=True))
    train(net, opt, range(2, 6))
    train(twin, other, range(2, 6))
    assert same(net, twin)


def other_model() -> nn.Module:
    """A model of the same parameters with one declared layer less."""
    net, bare = Net(), Net()
    bare.head = nn.Linear(3, 2).double()
    bare.load_state_dict(net.state_dict())
    return bare


def of_sgd(net: nn.Module) -> Any:
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    train(net, sgd, range(1))
    return get_optimizer_state_dict(net, sgd)


def of(net: nn.Module) -> Any:
    opt = built(net, momentum=0.9)
    train(net, opt, range(2))
    return get_optimizer_state_dict(net, opt)


def of_two_times() -> Any:
    state = of(Net())
    steps, layer = Carried.opened(state["state"]["head.bias"]["dagfisher"])
    state["state"]["head.bias"]["dagfisher"] = Carried(steps + 1, layer)
    return state


WRONG: dict[str, tuple[Callable[[], Any], Callable[[], nn.Module], str]] = {
    "of SGD": (lambda: of_sgd(Net()), Net, "not a state_dict of DAGNaturalGradient"),
    "fewer layers": (lambda: of(other_model()), Net, "has 1 declared layers and this optimizer 2; declare the same"),
    "more layers": (lambda: of(Net()), other_model, "has 2 declared layers and this optimizer 1; declare the same"),
    "of two times": (of_two_times, Net, "damaged: it was saved after 2 and 3 steps"),
}


@pytest.mark.parametrize("wrong, model, words", WRONG.values(), ids=WRONG.keys())
def test_a_state_of_another_optimizer_is_refused_and_changes_nothing(
    wrong: Callable[[], Any], model: Callable[[], nn.Module], words: str
) -> None:
    net, twin = model(), model()
    opt, other = built(net, momentum=0.9), built(twin, momentum=0.9)
    train(net, opt, range(2))
    train(twin, other, range(2))
    with pytest.raises(CheckpointError, match=words):
        set_optimizer_state_dict(net, opt, wrong())
    train(net, opt, range(2, 4))
    train(twin, other, range(2, 4))
    assert same(net, twin)
