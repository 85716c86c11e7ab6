"""Helmholtz machines whose layers find their damping: each its own, and exact continuation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.errors import SettingError
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer
from dagfisher.helmholtz import train as train_module
from dagfisher.optim.damping import FALL, LEAST, RISE

from .enumeration import tiny_machine

F64 = torch.float64


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(4, 3, generator=generator, dtype=F64).round() for _ in range(count)]


def shown(trainer: Trainer, name: str) -> dict[str, Any]:
    assert isinstance(trainer.optimizer, DAGNaturalGradient)
    return {layer: values[name] for layer, values in trainer.optimizer.diagnostics()["layers"].items()}


@pytest.mark.parametrize("algorithm", ["nws", "nrws", "dnrws", "nbihm"])
def test_each_layer_of_both_networks_finds_its_own(algorithm: str) -> None:
    trainer = Trainer(tiny_machine((-1.0, 1.0)), algorithm, samples=5, update_every=2)
    before: dict[str, float] = {}
    for number, x in enumerate(batches(20)):
        trainer.step(x.repeat(100, 1))  # so many samples that no layer rests on its floor
        dampings = shown(trainer, "damping")
        for layer, damping in dampings.items():
            if number % 2 == 0 and before:
                assert before[layer] / FALL <= damping <= max(before[layer] * RISE, LEAST)
            elif before:
                assert damping == before[layer]
        before = dampings
    assert len(set(before.values())) == len(before) > 3
    assert [group["damping"] for group in trainer.optimizer.param_groups] == ["auto", "auto"]


@pytest.mark.parametrize("settings", [{"sleep_steps": 3, "update_every": 5}, {"sleep_steps": 4, "update_every": 4}])
def test_sleep_updates_are_steps_of_the_optimizer_too(settings: dict[str, Any]) -> None:
    """The generative network has no gradient in them; its layers are judged at the wake updates."""
    trainer = Trainer(HelmholtzMachine([9, 4, 2]), "nrws", samples=3, **settings)
    trainer.fit(datasets.load("three-by-three"), 3, batch_size=120)
    assert all(ratio is not None and ratio >= 0 for ratio in shown(trainer, "ratio").values())
    assert all(failures == 0 for failures in shown(trainer, "failures").values())


@pytest.mark.parametrize("stop", [12, 13, 14, 16])
@pytest.mark.parametrize("settings", [{"update_every": 7}, {}, {"update_every": 3, "window": 2}], ids=str)
def test_a_trainer_continues_bit_for_bit(stop: int, settings: dict[str, Any]) -> None:
    data = datasets.load("three-by-three")

    def fresh() -> Trainer:
        torch.manual_seed(0)
        machine = HelmholtzMachine([9, 6, 1], states=(0, 1))
        return Trainer(machine, "nrws", samples=3, seed=4, **settings)

    class Stop(Exception):
        pass

    def stop_later(value: Tensor) -> None:
        if broken.batch == stop:
            raise Stop

    whole, broken, resumed = fresh(), fresh(), fresh()
    whole.fit(data, 1, batch_size=64)
    with pytest.raises(Stop):
        broken.fit(data, 1, batch_size=64, on_step=stop_later)
    resumed.load_state_dict(broken.state_dict())
    resumed.fit(data, 1, batch_size=64)
    assert shown(whole, "damping") == shown(resumed, "damping")
    assert shown(whole, "refreshed") == shown(resumed, "refreshed")
    assert len(set(shown(whole, "damping").values())) > 2
    for a, b in zip(whole.machine.parameters(), resumed.machine.parameters(), strict=True):
        assert torch.equal(a, b)


CHOSEN: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "given": ({"damping": 0.2}, lambda step: 0.2),
    "scheduled": ({"damping": 0.2, "schedules": {"damping": Schedule("linear")}}, lambda step: 0.2),
    "own optimizer": ({"optimizer": lambda groups: DAGNaturalGradient(groups, damping=0.2)}, lambda step: 0.2),
}


@pytest.mark.parametrize(("settings", "wanted"), CHOSEN.values(), ids=CHOSEN.keys())
def test_a_damping_that_was_chosen_stays(settings: dict[str, Any], wanted: Callable[[int], float]) -> None:
    """A schedule changes it in `fit` alone."""
    trainer = Trainer(tiny_machine((-1.0, 1.0)), "nrws", **settings)
    for group in trainer.optimizer.param_groups:
        group["update_every"] = 1
    for number, x in enumerate(batches(4)):
        trainer.step(x)
        assert set(shown(trainer, "damping").values()) == {wanted(number)}
        assert set(shown(trainer, "ratio").values()) == {None}


@pytest.mark.parametrize("name", ["damping", "update_every"])
def test_a_schedule_of_what_is_left_to_the_optimizer_is_refused(name: str) -> None:
    """It multiplies a number, and there is none."""
    with pytest.raises(SettingError, match=f"give {name} one in place of 'auto'"):
        Trainer(tiny_machine((-1.0, 1.0)), "nrws", schedules={name: Schedule("linear")})


def test_weights_too_small_to_count_are_zero_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No denormal number is left, and the sum over the samples stays 1 to rounding."""
    machine = HelmholtzMachine([9, 6, 1])
    seen: list[Tensor] = []
    real = train_module.generative_terms
    monkeypatch.setattr(train_module, "generative_terms", lambda m, s, w, t: (seen.append(w), real(m, s, w, t)))
    with torch.no_grad():
        for p in machine.generative_parameters():
            p.mul_(60)
    Trainer(machine, "rws", samples=50, lr=0.0).step(torch.rand(8, 9).round())
    weights = seen[0]
    assert float(weights.sum()) == pytest.approx(1, abs=1e-6)
    assert int((weights == 0).sum()) > 10
    assert float(weights[weights > 0].min()) > torch.finfo(torch.float32).eps ** 2
