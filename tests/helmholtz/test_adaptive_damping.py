"""Adaptive damping of Helmholtz machines: which minibatch judges, what is descended, and exact continuation."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.helmholtz import HelmholtzMachine, Schedule, Trainer
from dagfisher.helmholtz import train as train_module
from dagfisher.helmholtz.objectives import FixedSamples, losses
from dagfisher.optim.layer import TrainedLayer

from .enumeration import tiny_machine

F64 = torch.float64


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(4, 3, generator=generator, dtype=F64).round() for _ in range(count)]


def watched(monkeypatch: pytest.MonkeyPatch) -> list[FixedSamples]:
    """What `losses` is taken of, from now on."""
    seen: list[FixedSamples] = []

    def watch(machine: HelmholtzMachine, of: FixedSamples) -> tuple[Tensor, Tensor]:
        seen.append(of)
        return losses(machine, of)

    monkeypatch.setattr(train_module, "losses", watch)
    return seen


@pytest.mark.parametrize("algorithm", ["nrws", "nws", "nbihm"])
def test_what_is_judged_is_what_the_gradients_descend(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finite differences of the losses against the gradients of the step that they belong to."""
    machine = tiny_machine((-1.0, 1.0))
    trainer = Trainer(machine, algorithm, lr=0.0, samples=5, baseline=False, update_every=2)
    seen = watched(monkeypatch)
    first, second = batches(2)
    trainer.step(first)
    gradients = {p: p.grad.clone() for p in machine.parameters() if p.grad is not None}
    trainer.step(second)
    judged = seen[0]
    sides = {id(p): i for i, group in enumerate(trainer.optimizer.param_groups) for p in group["params"]}
    for p, gradient in gradients.items():
        flat = p.data.view(-1)
        for k in range(len(flat)):
            values = []
            for move in (1e-5, -1e-5):
                flat[k] += move
                values.append(float(losses(machine, judged)[sides[id(p)]]))
                flat[k] -= move
            assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(gradient.view(-1)[k]), abs=1e-8, rel=1e-5)


def test_the_minibatch_before_judges_at_the_last_of_every_k_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tiny_machine((-1.0, 1.0))
    trainer = Trainer(machine, "nrws", samples=5, update_every=4)
    seen = watched(monkeypatch)
    data = batches(9)
    counts, dampings = [], []
    for x in data:
        trainer.step(x)
        counts.append(len(seen))
        dampings.append([group["damping"] for group in trainer.optimizer.param_groups])
    assert counts == [0, 0, 0, 3, 3, 3, 3, 6, 6]
    torch.testing.assert_close(seen[0].x, machine.encode(data[2]))
    torch.testing.assert_close(seen[3].x, machine.encode(data[6]))
    assert dampings[2] == dampings[0] == [0.2, 0.2]
    assert dampings[3] == dampings[6] != dampings[2]
    assert dampings[7] != dampings[6]


@pytest.mark.parametrize(
    "settings",
    [
        {"update_every": 5, "sleep_steps": 3},
        {"update_every": 4, "sleep_steps": 4},
        {"update_every": 8, "schedules": {"update_every": Schedule("linear:0.25")}},
        {"update_every": 6, "schedules": {"update_every": Schedule("warm-up:2")}},
    ],
    ids=["sleep-well 3", "sleep-well 4", "falling K", "growing K"],
)
def test_every_refresh_has_a_damping_adapted_since_the_last_one(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sleep updates are steps of the optimizer too, and K may change at any of them."""
    data = datasets.load("three-by-three")
    trainer = Trainer(HelmholtzMachine([9, 4, 2]), "nrws", samples=3, **settings)
    events: list[Any] = []
    adapt, keep = DAGNaturalGradient.adapt_damping, TrainedLayer.keep
    monkeypatch.setattr(
        DAGNaturalGradient, "adapt_damping", lambda self, *a, **k: (events.append("adapted"), adapt(self, *a, **k))[1]
    )
    monkeypatch.setattr(TrainedLayer, "keep", lambda self, *a: (events.append(self), keep(self, *a))[1])
    trainer.fit(data, 3, batch_size=120)
    for layer in set(events) - {"adapted"}:
        seen = ["refreshed" if event is layer else event for event in events if event in (layer, "adapted")]
        assert seen.count("refreshed") > 5
        assert not any(pair == ("refreshed", "refreshed") for pair in itertools.pairwise(seen))
    assert events.count("adapted") <= len(events) / 2


def test_the_judging_minibatch_moves_to_the_device_of_the_machine() -> None:
    trainer = Trainer(tiny_machine((-1.0, 1.0)), "nrws", samples=5, update_every=4)
    trainer.step(batches(1)[0])
    saved = trainer.state_dict()["previous"]
    moved = FixedSamples(*saved).to(torch.device("meta"))
    assert [t.device.type for t in (moved.x, *moved.hidden, moved.weights, *moved.dreams)] == ["meta"] * 7
    assert moved.coefficients is not None and moved.coefficients.device.type == "meta"
    assert moved.dream_coefficient == 0.5


def test_p_and_q_have_targets_of_their_own_and_a_least_damping(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, Any]] = []
    real = DAGNaturalGradient.adapt_damping

    def watch(self: DAGNaturalGradient, of: Any, *, target: Any, least: float) -> None:
        given.append((target, least))
        real(self, of, target=target, least=least)

    monkeypatch.setattr(DAGNaturalGradient, "adapt_damping", watch)
    trainer = Trainer(tiny_machine((-1.0, 1.0)), "nrws", samples=5, update_every=2)
    for x in batches(30):
        trainer.step(x)
    assert given == [((0.6, 2.5), 0.05)] * 15
    assert trainer.optimizer.param_groups[1]["damping"] == 0.05


@pytest.mark.parametrize("stop", [12, 13, 14])
def test_a_trainer_that_adapts_continues_bit_for_bit(stop: int) -> None:
    """K = 7: after 13 steps the minibatch that will judge is part of the checkpoint."""
    data = datasets.load("three-by-three")

    def fresh() -> Trainer:
        torch.manual_seed(0)
        machine = HelmholtzMachine([9, 6, 1], states=(0, 1))
        return Trainer(machine, "nrws", samples=3, seed=4, update_every=7)

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
    assert whole.optimizer.param_groups[0]["damping"] == resumed.optimizer.param_groups[0]["damping"] != 0.2
    for a, b in zip(whole.machine.parameters(), resumed.machine.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "settings",
    [
        {"damping": 0.2},
        {"schedules": {"damping": Schedule("linear")}},
        {"optimizer": lambda groups: DAGNaturalGradient(groups, damping=0.2)},
    ],
    ids=["given", "scheduled", "own optimizer"],
)
def test_a_damping_that_was_chosen_stays(settings: dict[str, Any]) -> None:
    trainer = Trainer(tiny_machine((-1.0, 1.0)), "nrws", **settings)
    trainer.optimizer.param_groups[0]["update_every"] = 1
    for x in batches(4):
        trainer.step(x)
        assert trainer.optimizer.param_groups[0]["damping"] == 0.2


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
