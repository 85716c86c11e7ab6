"""Regularisers and schedules: their gradients against autograd and enumeration, and exact continuation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from dagfisher import datasets
from dagfisher.errors import DagFisherError, SettingError
from dagfisher.helmholtz import L1, L2, Entropy, HelmholtzMachine, Schedule, Trainer
from dagfisher.helmholtz import train as train_module
from dagfisher.helmholtz.regularisers import shrinkage

from .enumeration import all_states, gradients, hidden_states, log_joint, tiny_machine

F64 = torch.float64
X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=F64)
STATES = (-1.0, 1.0)


def grads(machine: HelmholtzMachine, trainer: Trainer) -> list[Tensor]:
    trainer.step(X)
    return [p.grad.clone() for p in machine.parameters()]  # type: ignore[union-attr]


@pytest.mark.parametrize("algorithm", ["ws", "rws", "bihm"])
def test_entropy_adds_the_gradient_of_the_entropy_of_every_layer_given_its_parents(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against autograd through `Conditional.entropy` on the very samples that the step drew."""
    machine = tiny_machine(STATES)
    seen = []
    real = train_module.wake
    monkeypatch.setattr(train_module, "wake", lambda *a: (seen.append(real(*a)), seen[-1])[1])
    plain = grads(machine, Trainer(machine, algorithm, lr=0.0, samples=4, seed=1))
    trainer = Trainer(machine, algorithm, lr=0.0, samples=4, seed=1, regularisers=[Entropy(0.7)])
    rewarded = grads(machine, trainer)
    state = seen[-1]
    weights = trainer.algorithm.weights(state).reshape(-1)
    total = torch.zeros((), dtype=F64)
    for layer, parents in zip(machine.generative_layers(), state.hidden, strict=True):
        total = total + (layer.entropy(parents) * weights).sum()
    total = total + machine.prior.entropy(1).sum()
    for layer, parents in zip(machine.recognition_layers(), [state.x, *state.hidden[:-1]], strict=True):
        total = total + layer.entropy(parents).mean()
    wanted = torch.autograd.grad(-0.7 * total, list(machine.parameters()))
    for found, before, difference in zip(rewarded, plain, wanted, strict=True):
        torch.testing.assert_close(found, before + difference, rtol=1e-9, atol=1e-10)
    assert trainer.regulariser_values()["entropy"] == pytest.approx(float(total.detach()))


def test_the_conditional_entropies_of_a_tiny_machine_make_up_its_exact_entropy() -> None:
    """H(p) = Σ over layers of E[H(layer | parents)] by the chain rule: what the regulariser maximises, by enumeration.

    With dreams as parents its gradient holds the layer's own parameters' part of ∇H; that part is checked against
    autograd of the enumerated sum with the distribution of the parents held fixed.
    """
    machine = tiny_machine(STATES)
    hidden = hidden_states(machine, STATES)
    visible = all_states(3, STATES)
    log_p = torch.stack([log_joint(machine, x, hidden) for x in visible])
    exact = -(log_p.exp() * log_p).sum()
    p_hidden = log_p.exp().sum(0).detach()
    layers = machine.generative_layers()
    total = machine.prior.entropy(1).sum()
    for layer, parents in zip(layers, hidden, strict=True):
        total = total + (layer.entropy(parents) * p_hidden).sum()
    assert float(total.detach()) == pytest.approx(float(exact.detach()))
    bottom = layers[0]
    own = gradients((bottom.entropy(hidden[0]) * p_hidden).sum(), list(bottom.parameters()))
    score = bottom.family.entropy_score(bottom(hidden[0]).detach()) * p_hidden[:, None]
    torch.testing.assert_close(score.T @ hidden[0], own[0])
    torch.testing.assert_close(score.sum(0), own[1])


def test_the_printed_estimator_of_the_entropy_gradient_is_zero_in_expectation() -> None:
    """The thesis (after 6.17) estimates ∇H by the mean of ∇ log p over the model's own samples.

    E_p[∇ log p] = ∇ Σ p = 0 for every model, so that is noise; the exact gradient is not zero.
    """
    machine = tiny_machine(STATES)
    hidden = hidden_states(machine, STATES)
    log_p = torch.stack([log_joint(machine, x, hidden) for x in all_states(3, STATES)])
    parameters = machine.generative_parameters()
    printed = gradients((log_p.exp().detach() * log_p).sum(), parameters)
    assert max(float(g.abs().max()) for g in printed) < 1e-12
    exact = gradients(-(log_p.exp() * log_p).sum(), parameters)
    assert max(float(g.abs().max()) for g in exact) > 1e-2


@pytest.mark.parametrize("algorithm", ["rws", "nrws"])
def test_l1_and_l2_act_outside_the_inverse_fisher(algorithm: str) -> None:
    """The same step, plus −lr · strength · slope on the weights as they were, and nothing on the biases."""
    start = tiny_machine(STATES)
    moved = []
    for regularisers in ([], [L2(0.3)], [L1(0.2)]):
        machine = copy.deepcopy(start)
        settings = {} if algorithm == "rws" else {"damping": 0.3, "solver": "dense", "update_every": 1}
        trainer = Trainer(machine, algorithm, lr=0.05, samples=4, seed=1, regularisers=regularisers, **settings)  # type: ignore[arg-type]
        trainer.step(X)
        moved.append(dict(machine.named_parameters()))
    for name, before in start.named_parameters():
        shrunk = before - moved[1][name] - (before - moved[0][name])
        pulled = before - moved[2][name] - (before - moved[0][name])
        weight = name.endswith("weight")
        torch.testing.assert_close(shrunk, 0.05 * 0.3 * before if weight else torch.zeros_like(before))
        torch.testing.assert_close(pulled, 0.05 * 0.2 * before.sign() if weight else torch.zeros_like(before))


@pytest.mark.parametrize("regulariser", [L1(1.0), L2(30.0), L1(1e29), L2(1e29)])
def test_a_penalty_takes_no_weight_beyond_zero(regulariser: L1 | L2) -> None:
    machine = tiny_machine(STATES)
    bottom = machine.generative[0].weight
    with torch.no_grad():
        bottom.fill_(1e-4)
    before = {name: p.detach().clone() for name, p in machine.named_parameters()}
    changes = shrinkage(machine, [(regulariser, regulariser.strength)], dict.fromkeys(machine.parameters(), 0.1))
    assert torch.equal(bottom + changes[bottom], torch.zeros_like(bottom))
    for name, p in machine.named_parameters():
        assert torch.equal(p, before[name])
        assert (p in changes) == name.endswith("weight")
        assert p not in changes or bool(((p + changes[p]) * p >= 0).all())


def test_two_penalties_together_end_at_zero_too() -> None:
    machine = tiny_machine(STATES)
    rates = dict.fromkeys(machine.parameters(), 0.5)
    changes = shrinkage(machine, [(L2(1.5), 1.5), (L1(1.0), 0.1)], rates)
    for weight, change in changes.items():
        left = 0.25 * weight.detach()
        wanted = left.sign() * (left.abs() - 0.05).clamp_min(0)
        torch.testing.assert_close(weight.detach() + change, wanted)


def test_a_step_that_fails_has_not_shrunk_anything() -> None:
    machine = tiny_machine(STATES)
    trainer = Trainer(machine, "nrws", lr=0.1, regularisers=[L2(1.0), L1(1.0)])
    before = copy.deepcopy(machine.state_dict())
    with pytest.raises(DagFisherError):
        trainer.step(torch.full_like(X, math.nan))
    torch.testing.assert_close(machine.state_dict(), before, rtol=0, atol=0)


def test_warm_ups() -> None:
    linear, thesis = Entropy(2.0, warm_up=4), Entropy(2.0, warm_up=4, shape="hyperbolic")
    assert [linear.at(t) for t in range(6)] == [0, 0.5, 1, 1.5, 2, 2]
    assert [thesis.at(t) for t in range(6)] == pytest.approx([0.5, 2 / 3, 1, 2, 2, 2])
    for bad in ({"strength": -1.0}, {"strength": math.nan}, {"strength": 1e300}, {"strength": 1.0, "warm_up": -1}):
        with pytest.raises(SettingError):
            L1(**bad)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="linear, hyperbolic"):
        L2(1.0, 3, "sudden")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("linear:0.2:0.5", [1, 1, 1, 0.6, 0.2]),
        ("cosine", [1, 0.853553, 0.5, 0.146447, 0]),
        ("step:2:0.5", [1, 0.5, 0.25, 0.125, 0.0625]),
        ("warm-up:4", [0.001, 0.5, 1, 1, 1]),
        ("warm-up:4+linear", [0.001, 0.375, 0.5, 0.25, 0]),
    ],
)
def test_schedules(text: str, wanted: list[float]) -> None:
    assert [Schedule(text).factor(e, 8) for e in (0, 2, 4, 6, 8)] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        *("", "cosin", "cosine:0:0:0", "linear:a", "linear:-1", "linear:0:1"),
        *("step:2", "step:0:2", "step:1e-320:2", "warm-up"),
    ],
)
def test_what_is_not_a_schedule_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="is not a schedule; there are"):
        Schedule(text)


def test_schedules_reach_the_optimizer_and_resume_exactly() -> None:
    data = datasets.load("three-by-three")
    schedules = {
        "lr": Schedule("warm-up:1+cosine:0.1"),
        "damping": Schedule("linear:0.5"),
        "update_every": Schedule("step:1:2"),
        "samples": Schedule("step:1:2"),
    }

    def make() -> Trainer:
        torch.manual_seed(0)
        machine = HelmholtzMachine([9, 4, 2])
        regularisers = [Entropy(0.1, warm_up=7), L2(0.01)]
        settings = {"lr": 0.1, "damping": 0.4, "update_every": 2, "samples": 3}
        return Trainer(machine, "nrws", schedules=schedules, regularisers=regularisers, **settings)  # type: ignore[arg-type]

    whole = make()
    seen = []

    def note(value: Tensor) -> None:
        group = whole.optimizer.param_groups[1]
        seen.append((group["lr"], group["damping"], group["update_every"], whole.samples))

    whole.fit(data, 3, batch_size=600, on_step=note)  # 3 batches an epoch
    assert [s[2:] for s in seen] == [(2, 3), (2, 3), (4, 6), (4, 6), (4, 6), (8, 12), (8, 12), (8, 12), (16, 24)]
    assert [s[1] for s in seen] == pytest.approx([0.4 * (1 - 0.5 * (i + 1) / 9) for i in range(9)])

    class Enough(Exception):
        pass

    first = make()
    count = 0

    def leave(value: Tensor) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise Enough

    with pytest.raises(Enough):
        first.fit(data, 3, batch_size=600, on_step=leave)
    second = make()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.fit(data, 3, batch_size=600)
    for a, b in zip(whole.machine.parameters(), second.machine.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "text"),
    [("lr", "step:0.01:1e300"), ("update_every", "step:1:1e40"), ("samples", "step:1:4"), ("damping", "step:1:1e20")],
)
def test_a_schedule_that_grows_beyond_all_bounds_is_refused_before_anything_moves(name: str, text: str) -> None:
    machine = tiny_machine(STATES)
    trainer = Trainer(machine, "nrws", damping=0.2, update_every=100, schedules={name: Schedule(text)})
    before = copy.deepcopy(machine.state_dict())
    with pytest.raises(SettingError, match=rf"makes {name} .* of 20 epochs; it must stay below"):
        trainer.fit(datasets.load("three-by-three"), 20)
    torch.testing.assert_close(machine.state_dict(), before, rtol=0, atol=0)


def test_fewer_samples_by_a_schedule_are_no_fewer_than_the_algorithm_needs() -> None:
    """REINFORCE takes its baseline from the other samples."""
    for algorithm, least in (("reinforce", 2), ("rws", 1)):
        machine = HelmholtzMachine([9, 3])
        trainer = Trainer(machine, algorithm, samples=4, schedules={"samples": Schedule("step:0.3:0.25")})
        trainer.fit(datasets.load("three-by-three"), 1, batch_size=200)
        assert trainer.samples == least
        assert all(bool(p.isfinite().all()) for p in machine.parameters())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"lr": 0.1}, "lr is a setting of the optimizer"),
        ({"damping": 0.1}, "damping is a setting"),
        ({"momentumm": 0.9}, "momentumm is a setting"),
    ],
)
def test_settings_that_an_optimizer_of_ones_own_would_not_see_are_refused(
    settings: dict[str, float], match: str
) -> None:
    with pytest.raises(SettingError, match=match):
        Trainer(HelmholtzMachine([3, 2]), "rws", optimizer=torch.optim.Adam, **settings)  # type: ignore[arg-type]


def test_other_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingError, match="lr must be a number of at least 0 and below"):
        Trainer(HelmholtzMachine([3, 2]), "rws", lr=1e300)
    with pytest.raises(SettingError, match="regularisers must be objects"):
        Trainer(HelmholtzMachine([3, 2]), "rws", regularisers=[L1])  # type: ignore[list-item]


def test_a_schedule_for_what_an_algorithm_does_not_have_is_refused() -> None:
    with pytest.raises(SettingError, match="rws has no damping"):
        Trainer(HelmholtzMachine([3, 2]), "rws", schedules={"damping": Schedule("linear")})
    with pytest.raises(SettingError, match="has no momentums"):
        Trainer(HelmholtzMachine([3, 2]), "nrws", schedules={"momentums": Schedule("linear")})
