"""When a Fisher is made anew: by the rule of the optimizer, or as it is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from by_hand import Net, backward, data, optimizer, same

from dagfisher import DAGNaturalGradient
from dagfisher.optim.pace import CALM, WILD, Pace
from dagfisher.optim.settings import USUAL


def refreshes(net: Net, opt: DAGNaturalGradient, steps: int) -> list[int]:
    """The steps that made all Fishers anew."""
    found = []
    for step in range(steps):
        backward(net, opt, data(6, 4, seed=step % 7))
        opt.step()
        refreshed = {layer["refreshed"] for layer in opt.diagnostics()["layers"].values()}
        assert len(refreshed) == 1
        if refreshed == {step}:
            found.append(step)
    return found


def calm(steps: int) -> list[int]:
    """The steps that refresh if nothing ever changes fast: kept for 1, 1, 2, 4, 8, … steps, and then for the usual."""
    found, interval = [0, 1], 1
    while found[-1] < steps:
        interval = min(2 * interval, USUAL)
        found.append(found[-1] + interval)
    return [step for step in found if step < steps]


def test_calm_refreshes_are_written_out_right() -> None:
    assert calm(220) == [0, 1, 3, 7, 15, 31, 63, 113, 163, 213]


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, CALM])
def test_calm_a_fisher_is_kept_twice_as_long(ratio: float) -> None:
    assert Pace(4).after(ratio) == Pace(8)
    assert Pace(USUAL - 1).after(ratio) == Pace(USUAL)


@pytest.mark.parametrize("ratio", [math.nextafter(WILD, math.inf), 1e6, math.inf, math.nan])
def test_wild_it_is_kept_a_quarter_as_long(ratio: float) -> None:
    assert Pace(16).after(ratio) == Pace(4)
    assert Pace(2).after(ratio) == Pace(1)
    assert Pace(1).after(ratio) == Pace(1)


@pytest.mark.parametrize("ratio", [None, math.nextafter(CALM, math.inf), WILD])
def test_in_between_or_without_a_comparison_nothing_changes(ratio: float | None) -> None:
    assert Pace(8).after(ratio) == Pace(8)


def test_left_to_itself_an_optimizer_refreshes_more_and_more_seldom() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=1e-5)
    found = []
    for step in range(220):  # one minibatch again and again: the old Fisher predicts it
        backward(net, opt, data(6, 4, seed=0))
        opt.step()
        if {layer["refreshed"] for layer in opt.diagnostics()["layers"].values()} == {step}:
            found.append(step)
    assert found == calm(220)


def test_a_fisher_that_changes_fast_is_made_anew_sooner() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=1e-5)
    for _ in range(64):
        backward(net, opt, data(6, 4, seed=0))
        opt.step()
    assert opt._layers[0].pace.interval == USUAL
    for layer in opt._layers:  # as if the Fisher had been a thousand times too small
        assert layer.fisher is not None
        for solver in layer.fisher.solvers:
            for name, value in solver.state().items():
                if name == "inverses":
                    value.mul_(1000)
        layer.refreshed = 64 - USUAL
    backward(net, opt, data(6, 4, seed=0))
    opt.step()
    assert opt._layers[0].refreshed == 64 and opt._layers[0].pace.interval == USUAL // 4


def test_a_given_damping_means_a_fresh_fisher_at_every_step() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=1e-4, damping=0.1)
    assert refreshes(net, opt, 12) == list(range(12))


SCHEDULES: dict[str, tuple[Any, Callable[[int], bool]]] = {
    "every step": (1, lambda step: True),
    "every third": (3, lambda step: step % 3 == 0),
    "more and more seldom": (lambda step: 1 if step < 5 else 4, lambda step: step <= 4 or step in (8, 12, 16)),
}


@pytest.mark.parametrize(("every", "wanted"), SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_number_or_a_schedule_is_followed(every: Any, wanted: Callable[[int], bool]) -> None:
    net = Net()
    found = refreshes(net, optimizer(net.parameters(), lr=1e-4, update_every=every), 18)
    assert found == [step for step in range(18) if wanted(step)]


def test_only_steps_that_refresh_capture() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.named_parameters(), lr=1e-4)
    for step in range(40):
        backward(net, opt, data(6, 4, seed=step))
        captured = {layer.recorder.any() for layer in opt._layers}
        opt.step()
        assert captured == {layer.refreshed == step for layer in opt._layers}


def test_a_resumed_run_keeps_its_pace() -> None:
    net, twin = Net(), Net()
    opt = DAGNaturalGradient(net.parameters(), lr=1e-3)
    refreshes(net, opt, 11)
    other = DAGNaturalGradient(twin.parameters(), lr=1e-3)
    twin.load_state_dict(net.state_dict())
    other.load_state_dict(opt.state_dict())
    assert [layer.pace for layer in other._layers] == [layer.pace for layer in opt._layers]
    for step in range(11, 70):
        for model, each in ((net, opt), (twin, other)):
            backward(model, each, data(6, 4, seed=step))
            each.step()
        assert same(net, twin)
        assert [layer.refreshed for layer in other._layers] == [layer.refreshed for layer in opt._layers]
