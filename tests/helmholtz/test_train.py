"""The trainer: whose samples feed which Fisher, what the settings do, and exact continuation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher._draws import PartGenerator
from dagfisher.errors import CheckpointError, SettingError, ShapeError
from dagfisher.helmholtz import HelmholtzMachine, Trainer, Wake
from dagfisher.helmholtz import train as train_module
from dagfisher.helmholtz.sampling import dream, wake

from .enumeration import log_bernoulli, tiny_machine

X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)


def keep_wake(monkeypatch: pytest.MonkeyPatch) -> list[Wake]:
    """Every wake phase from now on."""
    seen: list[Wake] = []
    real = train_module.wake

    def watch(*args: object) -> Wake:
        seen.append(real(*args))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(train_module, "wake", watch)
    return seen


def undamped(optimizer: DAGNaturalGradient, p: Tensor, alpha: float) -> Tensor:
    blocks = optimizer.fisher_blocks(p) * (1 + alpha)
    return blocks - alpha * torch.eye(blocks.shape[1], dtype=blocks.dtype)


def test_the_fisher_of_q_is_of_wake_samples_with_equal_weights_and_serves_both_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = tiny_machine((-1.0, 1.0))
    seen = keep_wake(monkeypatch)
    trainer = Trainer(machine, "nrws", lr=0.0, samples=5, damping=0.3, solver="dense", update_every=10)
    trainer.step(X)
    state = seen[0]
    for i, layer in enumerate(machine.recognition):
        parents = machine.encode(X) if i == 0 else state.hidden[i - 1]
        u = torch.cat([parents, torch.ones(len(parents), 1, dtype=torch.float64)], 1)
        rho = torch.sigmoid(u @ torch.cat([layer.weight, layer.bias[:, None]], 1).T).detach()
        wanted = torch.einsum("nj,nd,ne->jde", rho * (1 - rho), u, u) / len(u)
        torch.testing.assert_close(undamped(trainer.optimizer, layer.weight, 0.3), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("algorithm", ["nrws", "nbihm", "nws"])
def test_the_fisher_of_p_is_of_wake_samples_with_their_weights(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tiny_machine((0.0, 1.0))
    seen = keep_wake(monkeypatch)
    trainer = Trainer(machine, algorithm, lr=0.0, samples=5, damping=0.3, solver="dense", update_every=10)
    trainer.step(X)
    state = seen[0]
    power = {"nrws": 1.0, "nbihm": 0.5, "nws": 0.0}[algorithm]
    weights = torch.softmax(power * (state.log_p - state.log_q), 0).reshape(-1, 1) / len(X)
    for layer, parents in zip(machine.generative, state.hidden, strict=True):
        u = torch.cat([parents, torch.ones(len(parents), 1, dtype=torch.float64)], 1)
        rho = torch.sigmoid(u @ torch.cat([layer.weight, layer.bias[:, None]], 1).T).detach()
        wanted = torch.einsum("nj,nd,ne->jde", weights * rho * (1 - rho), u, u)
        torch.testing.assert_close(undamped(trainer.optimizer, layer.weight, 0.3), wanted, rtol=1e-9, atol=1e-9)
    rho = torch.sigmoid(machine.prior.bias.detach())
    found = undamped(trainer.optimizer, machine.prior.bias, 0.3).flatten()
    torch.testing.assert_close(found, rho * (1 - rho), rtol=1e-9, atol=1e-9)


def test_the_fisher_of_p_can_be_of_dreams() -> None:
    machine = tiny_machine((0.0, 1.0), (3, 2))
    trainer = Trainer(machine, "nrws", lr=0.0, samples=20_000, damping=0.3, solver="dense", fisher="dream")
    trainer.step(X)
    layer = machine.generative[0]
    prior = torch.distributions.Bernoulli(logits=machine.prior.bias.detach())
    hidden = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 2)
    weights = prior.log_prob(hidden).sum(1).exp()
    u = torch.cat([hidden, torch.ones(4, 1, dtype=torch.float64)], 1)
    rho = torch.sigmoid(u @ torch.cat([layer.weight, layer.bias[:, None]], 1).T).detach()
    wanted = torch.einsum("n,nj,nd,ne->jde", weights, rho * (1 - rho), u, u)
    found = undamped(trainer.optimizer, layer.weight, 0.3)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=2e-3)


def test_rescaled_sleep_multiplies_the_sleep_gradient() -> None:
    grads = []
    for scale in (1.0, 3.0):
        machine = tiny_machine((-1.0, 1.0))
        Trainer(machine, "ws", lr=0.0, samples=4, seed=1, sleep_scale=scale).step(X)
        grads.append([p.grad.clone() for p in machine.recognition_parameters()])
    for one, three in zip(*grads, strict=True):
        torch.testing.assert_close(three, 3 * one)


@pytest.mark.parametrize("algorithm", ["ws", "nrws"])
def test_sleep_well_takes_more_steps_of_q_and_one_of_p(algorithm: str) -> None:
    once, thrice = tiny_machine((-1.0, 1.0)), tiny_machine((-1.0, 1.0))
    start = copy.deepcopy(once)
    Trainer(once, algorithm, lr=0.1, samples=4, seed=1).step(X)
    Trainer(thrice, algorithm, lr=0.1, samples=4, seed=1, sleep_steps=3).step(X)
    for a, b in zip(once.generative_parameters(), thrice.generative_parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b, c in zip(
        once.recognition_parameters(), thrice.recognition_parameters(), start.recognition_parameters(), strict=True
    ):
        assert not torch.equal(a, b)
        assert not torch.equal(a, c)


def test_alternating_moves_p_and_q_layer_by_layer_and_then_q_by_dreams_of_the_p_that_has_moved() -> None:
    machine, by_hand = tiny_machine((-1.0, 1.0)), tiny_machine((-1.0, 1.0))
    Trainer(machine, "rws", lr=0.3, samples=4, seed=1, order="alternating", baseline=False).step(X)
    generator = PartGenerator("cpu")
    generator.manual_seed(1)

    def descend(loss: Tensor, parameters: list[Tensor]) -> None:
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, slope in zip(parameters, slopes, strict=True):
                p.sub_(0.3 * slope)

    def log_probability(layers: Any, parents: list[Tensor], units: list[Tensor]) -> Tensor:
        pairs = zip(layers, parents, units, strict=True)
        return sum((log_bernoulli(u, torch.nn.functional.linear(v, m.weight, m.bias)) for m, v, u in pairs), zero)

    zero = torch.zeros((), dtype=torch.float64)
    state = wake(by_hand, by_hand.encode(X), 4, generator)
    x, h = by_hand.encode(X).repeat(4, 1), list(state.hidden)
    log_q = log_probability(by_hand.recognition, [x, *h[:-1]], h)
    log_p = log_probability(by_hand.generative, h, [x, *h[:-1]]) + log_bernoulli(h[-1], by_hand.prior.bias)
    weights = torch.softmax((log_p - log_q).detach().view(4, -1), 0).reshape(-1) / len(X)
    units = [x, *h]
    for i, (p, q) in enumerate(zip(by_hand.generative, by_hand.recognition, strict=True)):  # layer by layer, line 15
        terms = log_probability([p], [units[i + 1]], [units[i]]) + 0.5 * log_probability(
            [q], [units[i]], [units[i + 1]]
        )
        descend(-(weights * terms).sum(), [*p.parameters(), *q.parameters()])
    descend(-(weights * log_bernoulli(h[-1], by_hand.prior.bias)).sum(), list(by_hand.prior.parameters()))
    path, _ = dream(by_hand, len(x), generator)
    loss = -0.5 * log_probability(by_hand.recognition, path[:-1], path[1:]).mean()
    descend(loss, by_hand.recognition_parameters())
    for a, b in zip(machine.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_alternating_sleeps_with_the_fisher_of_the_wake_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, seen = tiny_machine((-1.0, 1.0)), keep_wake(monkeypatch)
    start = copy.deepcopy(machine)
    settings: dict[str, Any] = {"lr": 0.3, "samples": 5, "damping": 0.3, "solver": "dense"}
    trainer = Trainer(machine, "nrws", **settings, update_every=5, order="alternating")
    trainer.step(X)
    layer, before, parents = machine.recognition[1], start.recognition[1], seen[0].hidden[0]
    u = torch.cat([parents, torch.ones(len(parents), 1, dtype=torch.float64)], 1)
    rho = torch.sigmoid(u @ torch.cat([before.weight, before.bias[:, None]], 1).T).detach()
    wanted = torch.einsum("nj,nd,ne->jde", rho * (1 - rho), u, u) / len(u)
    torch.testing.assert_close(undamped(trainer.optimizer, layer.weight, 0.3), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("order", "sleep_steps", "steps"), [("together", 1, 1), ("alternating", 1, 2), ("together", 3, 3)]
)
def test_a_fisher_is_kept_for_minibatches_however_many_steps_each_has(order: str, sleep_steps: int, steps: int) -> None:
    machine = tiny_machine((-1.0, 1.0))
    trainer = Trainer(machine, "nrws", damping=0.3, update_every=7, order=order, sleep_steps=sleep_steps)
    assert {group["update_every"] for group in trainer.optimizer.param_groups} == {7 * steps}


def test_bidirectional_machines_start_with_small_weights_and_biases_of_minus_one() -> None:
    machine = HelmholtzMachine([12, 8, 4])
    machine.reset_parameters(bihm=True, generator=torch.Generator().manual_seed(0))
    weights = torch.cat([m.weight.detach().reshape(-1) for m in [*machine.generative, *machine.recognition]])
    assert bool((weights.abs() <= 0.002).all()) and 0.0007 < float(weights.std()) < 0.0011
    for m in [*machine.generative, *machine.recognition, machine.prior]:
        assert bool((m.bias == -1).all())


def test_any_optimizer_can_stand_in() -> None:
    machine = tiny_machine((-1.0, 1.0))
    reference = tiny_machine((-1.0, 1.0))
    trainer = Trainer(machine, "rws", samples=4, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))
    trainer.step(X)
    Trainer(reference, "rws", samples=4, lr=0.1).step(X)
    for a, b in zip(machine.parameters(), reference.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_natural_optimizer_is_given_the_names_of_the_parameters_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = tiny_machine((-1.0, 1.0))
    given: list[list[Any]] = []

    def watch(groups: list[Any], **settings: Any) -> DAGNaturalGradient:
        given.append(groups)
        return DAGNaturalGradient(groups, **settings)

    monkeypatch.setattr(train_module, "DAGNaturalGradient", watch)
    Trainer(machine, "nrws")
    named = {name: p for group in given[0] for name, p in group["params"]}
    assert named == dict(machine.named_parameters())
    plain: list[Any] = []
    Trainer(machine, "nrws", optimizer=lambda groups: plain.extend(groups) or torch.optim.SGD(groups, lr=0.1))
    assert [p for group in plain for p in group["params"]] == [
        *machine.generative_parameters(),
        *machine.recognition_parameters(),
    ]


@pytest.mark.parametrize("algorithm", ["rws", "nrws", "nbihm"])
def test_a_trainer_continues_bit_for_bit_in_the_middle_of_an_epoch(algorithm: str) -> None:
    data = datasets.load("three-by-three")

    def fresh() -> Trainer:
        torch.manual_seed(0)
        machine = HelmholtzMachine([9, 6, 1], states=(0, 1))
        extra = {"update_every": 7} if algorithm.startswith("n") else {}
        return Trainer(machine, algorithm, samples=3, seed=4, **extra)

    whole = fresh()
    whole.fit(data, 2, batch_size=64)

    class Stop(Exception):
        pass

    def stop_later(value: Tensor) -> None:
        if broken.epoch == 1 and broken.batch == 10:
            raise Stop

    broken = fresh()
    with pytest.raises(Stop):
        broken.fit(data, 2, batch_size=64, on_step=stop_later)
    resumed = fresh()
    resumed.load_state_dict(broken.state_dict())
    resumed.fit(data, 2, batch_size=64)
    for a, b in zip(whole.machine.parameters(), resumed.machine.parameters(), strict=True):
        assert torch.equal(a, b)


def test_impossible_settings_are_refused() -> None:
    machine = tiny_machine((-1.0, 1.0))
    for settings, words in [
        ({"algorithm": "sgd"}, "unknown algorithm"),
        ({"algorithm": "rws", "damping": 0.1}, "plain algorithm"),
        ({"algorithm": "bihm", "sleep_steps": 2}, "does not sleep"),
        ({"algorithm": "reinforce", "samples": 1}, "at least 2"),
        ({"algorithm": "nrws", "fisher": "noon"}, "'wake' or 'dream'"),
        ({"algorithm": "nrws", "order": "random"}, "one of together, alternating"),
        ({"algorithm": "nbihm", "order": "alternating"}, "does not sleep"),
        ({"algorithm": "nrws", "order": "alternating", "fisher": "dream"}, "must be of wake samples"),
    ]:
        with pytest.raises(SettingError, match=words):
            Trainer(machine, **settings)
    with pytest.raises(ShapeError, match="3 visible"):
        Trainer(machine, "rws").step(torch.zeros(2, 4))
    with pytest.raises(CheckpointError, match="algorithm"):
        Trainer(machine, "rws").load_state_dict(Trainer(machine, "ws").state_dict())
