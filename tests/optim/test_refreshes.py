"""When a Fisher is made anew: by the rule of the optimizer, or as it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from by_hand import Net, backward, data, optimizer, same

from dagfisher import DAGNaturalGradient
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


def by_rule(steps: int, usual: int = USUAL) -> list[int]:
    """0, then the powers of two until one is more than the usual number of steps away, then that number apart."""
    found = [0, 1]
    while found[-1] < steps:
        found.append(min(2 * found[-1], found[-1] + usual))
    return [step for step in found if step < steps]


def test_the_rule_is_written_out_right() -> None:
    assert by_rule(220, usual=50) == [0, 1, 2, 4, 8, 16, 32, 64, 114, 164, 214]


@pytest.mark.parametrize("settings", [{}, {"damping": 0.1}, {"solver": "dense", "window": 2}], ids=str)
def test_left_to_itself_an_optimizer_refreshes_more_and_more_seldom(settings: dict[str, Any]) -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=1e-4, update_every=None, **settings)
    assert refreshes(net, opt, 220) == by_rule(220)


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
    opt = DAGNaturalGradient(net.named_parameters(), lr=1e-4, update_every=None)
    captured = []
    for step in range(40):
        backward(net, opt, data(6, 4, seed=step))
        if all(layer.recorder.any() for layer in opt._layers):
            captured.append(step)
        opt.step()
    assert captured == by_rule(40)


def test_a_resumed_run_keeps_to_the_rule() -> None:
    net, twin = Net(), Net()
    opt = DAGNaturalGradient(net.parameters(), lr=1e-3, update_every=None)
    refreshes(net, opt, 11)
    other = DAGNaturalGradient(twin.parameters(), lr=1e-3, update_every=None)
    twin.load_state_dict(net.state_dict())
    other.load_state_dict(opt.state_dict())
    for step in range(11, 70):
        for model, each in ((net, opt), (twin, other)):
            backward(model, each, data(6, 4, seed=step))
            each.step()
        assert same(net, twin)
        latest = max(s for s in by_rule(70) if s <= step)
        assert {layer["refreshed"] for layer in other.diagnostics()["layers"].values()} == {latest}


def test_a_layer_that_joins_later_follows_the_steps_of_the_optimizer() -> None:
    """Its first refresh is at step 10, from which the rule goes on: each time twice the step, or the usual more."""
    net = Net()
    opt = DAGNaturalGradient(net.encoder.named_parameters(), lr=1e-4, update_every=None)
    for step in range(10):
        backward(net, opt, data(6, 4, seed=step))
        opt.step()
    opt.add_param_group({"params": list(net.head.named_parameters())})
    found = []
    for step in range(10, 100):
        backward(net, opt, data(6, 4, seed=step))
        opt.step()
        if opt._layers[1].refreshed == step:
            found.append(step)
    expected = [10]
    while expected[-1] < 100:
        expected.append(min(2 * expected[-1], expected[-1] + USUAL))
    assert found == [step for step in expected if step < 100]
