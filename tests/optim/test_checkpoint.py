"""A saved optimizer continues bit for bit, and a checkpoint that does not fit changes nothing."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import SOLVERS, Net, array, assert_step, backward, data, optimizer, same, scaled
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import CheckpointError

ACCELERATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adam": {"betas": (0.9, 0.99)},
    "adam of units": {"betas": (0.9, 0.99), "second_moment": "unit"},
}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def train(net: nn.Module, opt: DAGNaturalGradient, steps: range) -> None:
    dtype = next(net.parameters()).dtype
    for step in steps:
        backward(net, opt, data(6, 4, seed=step).to(dtype))
        opt.step()


def tensors(state: Any) -> list[Tensor]:
    """Every tensor in a nested state."""
    if isinstance(state, Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else []
    return [t for value in values for t in tensors(value)]


class Mixed(Net):
    """Two Bernoulli layers, a Gaussian one with two heads, and a layer that nobody declared."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale, self.plain = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(4, 1)
        self.double()
        dagfisher.declare_gaussian(mean=self.mean, log_var=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(super().forward(x))
        return self.plain(torch.cat([self.mean(hidden), self.scale(hidden)], dim=-1))


@pytest.mark.parametrize("settings", ACCELERATIONS.values(), ids=ACCELERATIONS.keys())
@pytest.mark.parametrize("solver", ("auto", *SOLVERS))
def test_resuming_in_the_middle_of_a_window_continues_bit_for_bit(solver: str, settings: dict[str, Any]) -> None:
    def built(net: nn.Module) -> DAGNaturalGradient:
        return optimizer(net.named_parameters(), lr=0.01, solver=solver, update_every=5, undeclared="adam", **settings)

    net = Mixed()
    opt = built(net)
    train(net, opt, range(3))
    saved = through_a_file({"model": net.state_dict(), "opt": opt.state_dict()})
    train(net, opt, range(3, 9))

    resumed = Mixed()
    other = built(resumed)
    resumed.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    for step in range(3, 9):
        backward(resumed, other, data(6, 4, seed=step))
        refreshes = sum(other.memory_usage().values()) > sum(t.nbytes for t in factors(other.state_dict()))
        assert refreshes == (step == 5)
        other.step()
    assert same(net, resumed)
    left, right = tensors(opt.state_dict()), tensors(other.state_dict())
    assert len(left) == len(right) > 6
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def factors(state: dict[str, Any]) -> list[Tensor]:
    found: dict[tuple[int, int], Tensor] = {}
    for number, layer in enumerate(state["dagfisher"]["layers"]):
        found |= {(number, t.data_ptr()): t for t in tensors(layer["solvers"])}
    return list(found.values())


def test_resuming_before_the_first_step_starts_afresh() -> None:
    net, twin = Net(), Net()
    opt, other = optimizer(net.parameters(), update_every=5), optimizer(twin.parameters(), update_every=5)
    train(twin, other, range(2))
    other.load_state_dict(through_a_file(opt.state_dict()))
    twin.load_state_dict(net.state_dict())
    train(net, opt, range(3))
    train(twin, other, range(3))
    assert same(net, twin)


@pytest.mark.parametrize("settings", ACCELERATIONS.values(), ids=ACCELERATIONS.keys())
def test_a_state_that_never_left_memory_is_not_shared(settings: dict[str, Any]) -> None:
    net, reference = Net(), Net()
    opt = optimizer(net.parameters(), lr=0.01, update_every=4, **settings)
    alone = optimizer(reference.parameters(), lr=0.01, update_every=4, **settings)
    train(net, opt, range(2))
    train(reference, alone, range(9))
    twin = copy.deepcopy(net)
    other = optimizer(twin.parameters(), lr=0.01, update_every=4, **settings)
    other.load_state_dict(opt.state_dict())
    train(net, opt, range(2, 9))
    train(twin, other, range(2, 9))
    assert same(net, reference)
    assert same(twin, reference)


@pytest.mark.parametrize("solver", SOLVERS)
def test_factors_of_bfloat16_parameters_stay_float32(solver: str) -> None:
    net = Net().bfloat16()
    opt = optimizer(net.parameters(), lr=0.01, solver=solver, update_every=5, momentum=0.9)
    train(net, opt, range(2))
    twin = copy.deepcopy(net)
    other = optimizer(twin.parameters(), lr=0.01, solver=solver, update_every=5, momentum=0.9)
    other.load_state_dict(through_a_file(opt.state_dict()))
    loaded = factors(other.state_dict())
    assert {t.dtype for t in loaded} == {torch.float32}
    assert all(torch.equal(a, b) for a, b in zip(loaded, factors(opt.state_dict()), strict=True))
    train(net, opt, range(2, 4))
    train(twin, other, range(2, 4))
    assert same(net, twin)


def test_factors_of_another_precision_are_refreshed_at_once() -> None:
    net, x = Net().float(), data(6, 4)
    opt = optimizer(net.parameters(), lr=0.01, update_every=100)
    train(net, opt, range(2))
    precise = copy.deepcopy(net).double()
    other = optimizer(precise.parameters(), lr=0.01, update_every=100)
    other.load_state_dict(through_a_file(opt.state_dict()))
    backward(precise, other, x)
    assert_step(other, scaled(0.01, precise.natural(x, 0.1)))


def test_settings_are_restored_and_callables_are_not_saved() -> None:
    net = Net()
    opt = optimizer(net.parameters(), lr=0.125, damping=lambda step: 0.3, update_every=lambda step: 2, momentum=0.5)
    train(net, opt, range(1))
    state = through_a_file(opt.state_dict())
    group = state["param_groups"][0]
    assert not {"damping", "update_every"} & set(group)
    assert (group["lr"], group["momentum"], group["solver"]) == (0.125, 0.5, "dense")

    def quarter(step: int) -> float:
        return 0.25

    other = optimizer(copy.deepcopy(net).parameters(), lr=0.5, damping=quarter, update_every=7)
    other.load_state_dict(state)
    restored = other.param_groups[0]
    assert (restored["lr"], restored["momentum"], restored["damping"], restored["update_every"]) == (
        0.125,
        0.5,
        quarter,
        7,
    )


def test_restored_settings_are_those_the_next_step_uses() -> None:
    net, x = Net(), data(6, 4)
    opt = optimizer(net.parameters(), lr=0.01, damping=0.3, weight_decay=0.2)
    train(net, opt, range(2))
    other = optimizer(net.parameters(), lr=0.5, damping=0.1, update_every=7)
    other.load_state_dict(through_a_file(opt.state_dict()))
    backward(net, other, x)
    expected = {p: v + 0.2 * array(p) for p, v in net.natural(x, 0.3).items()}
    assert_step(other, scaled(0.01, expected))


def test_a_schedule_continues_where_it_was() -> None:
    def damping(step: int) -> float:
        return 0.1 * (step + 1)

    net, x = Net(), data(6, 4)
    opt = optimizer(net.parameters(), lr=0.01, damping=damping)
    train(net, opt, range(3))
    other = optimizer(net.parameters(), lr=0.01, damping=damping)
    other.load_state_dict(through_a_file(opt.state_dict()))
    backward(net, other, x)
    assert_step(other, scaled(0.01, net.natural(x, 0.4)))


def test_passes_staged_before_loading_do_not_feed_the_step_after_it() -> None:
    net, x = Net(), data(6, 4)
    opt = optimizer(net.parameters(), lr=0.01)
    state = through_a_file(opt.state_dict())
    net(5 * x)
    opt.load_state_dict(state)
    backward(net, opt, x)
    assert_step(opt, scaled(0.01, net.natural(x, 0.1)))


# Checkpoints that do not fit


def trained_state(net: nn.Module, *groups: Any, **settings: Any) -> dict[str, Any]:
    opt = optimizer(groups or net.parameters(), update_every=5, momentum=0.9, **settings)
    train(net, opt, range(2))
    return through_a_file(opt.state_dict())


def plain_sgd() -> dict[str, Any]:
    return torch.optim.SGD(Net().parameters()).state_dict()


def one_layer_undeclared() -> dict[str, Any]:
    net = Net()
    net.head = nn.Linear(3, 2).double()
    return trained_state(net)


def other_units() -> dict[str, Any]:
    net = Net()
    net.head = nn.Linear(3, 5).double()
    dagfisher.declare(net.head, "bernoulli")
    return trained_state(net)


def other_family() -> dict[str, Any]:
    net = Net()
    net.head = nn.Linear(3, 2).double()
    dagfisher.declare(net.head, "gaussian")
    return trained_state(net)


def other_parents() -> dict[str, Any]:
    class Wide(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.cat([x, x], dim=-1))

    net = Wide()
    net.encoder[0] = nn.Linear(8, 3).double()
    dagfisher.declare(net.encoder[0], "bernoulli")
    return trained_state(net)


def frozen_bias() -> dict[str, Any]:
    net = Net()
    net.head.bias.requires_grad_(False)
    return trained_state(net)


def two_groups() -> dict[str, Any]:
    net = Net()
    return trained_state(net, {"params": net.encoder.parameters()}, {"params": net.head.parameters()})


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[], dict[str, Any]]:
    def state() -> dict[str, Any]:
        result = trained_state(Net())
        change(result)
        return result

    return state


def second_solver(state: dict[str, Any]) -> dict[str, Any]:
    return state["dagfisher"]["layers"][1]["solvers"][0]


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "of another optimizer": (plain_sgd, "not a state_dict of DAGNaturalGradient"),
    "of fewer declared layers": (one_layer_undeclared, "has 1 declared layers and this optimizer 2.*declare the same"),
    "of other units": (other_units, "'head'.*2.*5"),
    "of another family": (other_family, "'head' trains.*2 bernoulli units.*checkpoint.*2 gaussian units"),
    "of other parents": (other_parents, r"'encoder\.0'.*4 parents.*8 parents.*as they were saved"),
    "of a frozen bias": (frozen_bias, "'head' trains weight and bias.*checkpoint weight of.*freeze"),
    "of other groups": (two_groups, "different number of parameter groups"),
    "without layers": (changed(lambda s: s["dagfisher"].update(layers=None)), "not a state_dict"),
    "without state": (changed(lambda s: s.pop("state")), "does not fit.*state"),
    "with a missing factor": (changed(lambda s: second_solver(s).pop("inverses")), "'head'.*damaged.*inverses"),
    "with an unknown solver": (changed(lambda s: second_solver(s).update(solver="lu")), "'head'.*damaged.*lu"),
    "with a missing count": (changed(lambda s: s["dagfisher"]["layers"][1].pop("refreshed")), "'head'.*refreshed"),
    "with a bad setting": (changed(lambda s: s["param_groups"][0].update(momentum=2.0)), "momentum must be in"),
    "with a bad moment": (
        changed(lambda s: s["state"][1].update(momentum_buffer=torch.zeros(7))),
        r"momentum_buffer of parameter encoder\.0\.bias is \(7,\), not \(3,\)",
    ),
}


@pytest.mark.parametrize("wrong, words", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_checkpoint_is_refused_and_changes_nothing(wrong: Callable[[], dict[str, Any]], words: str) -> None:
    net, twin = Net(), Net()
    opt, other = (optimizer(n.named_parameters(), lr=0.01, update_every=4, momentum=0.9) for n in (net, twin))
    train(net, opt, range(2))
    train(twin, other, range(2))
    state = wrong()
    with pytest.raises(CheckpointError, match=words):
        opt.load_state_dict(state)
    assert same(net, twin)
    train(net, opt, range(2, 7))
    train(twin, other, range(2, 7))
    assert same(net, twin)
    assert opt.param_groups[0]["lr"] == 0.01
