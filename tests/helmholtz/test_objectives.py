"""The gradient of every algorithm is what enumeration over all hidden states says it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.helmholtz import train as train_module
from dagfisher.helmholtz.evaluate import Estimate

from .enumeration import (
    all_states,
    gradients,
    hidden_states,
    log_joint,
    log_recognition,
    tiny_machine,
)

STATES = [(0.0, 1.0), (-1.0, 1.0)]
X_BITS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
SAMPLES = 60_000


def monte_carlo(machine: HelmholtzMachine, algorithm: str, **settings: object) -> None:
    """Leave in .grad what one step with very many samples gives, without moving."""
    trainer = Trainer(machine, algorithm, lr=0.0, samples=SAMPLES, seed=5, **settings)  # type: ignore[arg-type]
    trainer.step(X_BITS)


def expected(
    machine: HelmholtzMachine, states: tuple[float, float], algorithm: str
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of p and of q in the limit of many samples, by enumeration."""
    hidden = hidden_states(machine, states)
    p, q = machine.generative_parameters(), machine.recognition_parameters()
    loss_p = loss_q = torch.zeros((), dtype=torch.float64)
    for x in machine.encode(X_BITS):
        log_p, log_q = log_joint(machine, x, hidden), log_recognition(machine, x, hidden)
        exact = {
            "ws": log_q.exp(),
            "rws": (log_p - log_p.logsumexp(0)).exp(),
            "bihm": torch.softmax((log_p + log_q) / 2, 0),
            "reinforce": log_q.exp(),
        }[algorithm].detach()
        loss_p = loss_p - (exact * log_p).sum() / len(X_BITS)
        if algorithm in ("rws", "bihm"):
            share = 0.5 if algorithm == "rws" else 1.0
            loss_q = loss_q - share * (exact * log_q).sum() / len(X_BITS)
        if algorithm == "reinforce":
            loss_q = loss_q - (log_q.exp() * (log_p - log_q)).sum() / len(X_BITS)
    if algorithm in ("ws", "rws"):
        share = 0.5 if algorithm == "rws" else 1.0
        for x in all_states(3, states):
            log_p, log_q = log_joint(machine, x, hidden), log_recognition(machine, x, hidden)
            loss_q = loss_q - share * (log_p.exp().detach() * log_q).sum()
    return gradients(loss_p, p), gradients(loss_q, q)


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("algorithm", ["ws", "rws", "bihm", "reinforce"])
def test_gradients_approach_the_enumerated_ones(states: tuple[float, float], algorithm: str) -> None:
    machine = tiny_machine(states)
    monte_carlo(machine, algorithm)
    for network, exact in zip(
        (machine.generative_parameters(), machine.recognition_parameters()),
        expected(machine, states, algorithm),
        strict=True,
    ):
        found = torch.cat([p.grad.flatten() for p in network])
        wanted = torch.cat([g.flatten() for g in exact])
        assert (found - wanted).norm() < 0.03 * wanted.norm()
        assert wanted.norm() > 0.05


@pytest.mark.parametrize("states", STATES)
def test_the_rws_gradient_of_p_is_that_of_the_exact_log_likelihood(states: tuple[float, float]) -> None:
    machine = tiny_machine(states)
    hidden = hidden_states(machine, states)
    exact = sum(log_joint(machine, x, hidden).logsumexp(0) for x in machine.encode(X_BITS)) / len(X_BITS)
    wanted = torch.cat([g.flatten() for g in gradients(-exact, machine.generative_parameters())])
    monte_carlo(machine, "rws")
    found = torch.cat([p.grad.flatten() for p in machine.generative_parameters()])
    assert (found - wanted).norm() < 0.03 * wanted.norm()


def test_the_baseline_changes_no_expectation() -> None:
    machine = tiny_machine((-1.0, 1.0))
    found = []
    for baseline in (True, False):
        monte_carlo(machine, "bihm", baseline=baseline)
        found.append(torch.cat([p.grad.flatten() for p in machine.recognition_parameters()]))
    assert not torch.equal(found[0], found[1])
    assert (found[0] - found[1]).norm() < 0.05 * found[1].norm()


@pytest.mark.parametrize("states", STATES)
def test_exact_log_likelihood_is_the_sum_over_all_hidden_states(states: tuple[float, float]) -> None:
    machine = tiny_machine(states)
    hidden = hidden_states(machine, states)
    wanted = torch.stack([log_joint(machine, x, hidden).logsumexp(0) for x in machine.encode(X_BITS)])
    torch.testing.assert_close(machine.exact_log_likelihood(X_BITS), wanted.detach(), rtol=1e-12, atol=0)
    everything = machine.exact_log_likelihood(all_states(3, (0.0, 1.0)))
    torch.testing.assert_close(everything.logsumexp(0), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-12)


def test_importance_sampling_approaches_the_exact_log_likelihood_and_bounds_p_star() -> None:
    machine = tiny_machine((-1.0, 1.0))
    generator = torch.Generator().manual_seed(0)
    found: Estimate = estimate(machine, X_BITS, 40_000, generator=generator)
    exact = machine.exact_log_likelihood(X_BITS)
    torch.testing.assert_close(found.log_p, exact, rtol=0, atol=0.05)
    assert (found.log_p_star <= found.log_p + 1e-12).all()
    hidden = hidden_states(machine, (-1.0, 1.0))
    star = [
        2 * ((log_joint(machine, x, hidden) + log_recognition(machine, x, hidden)) / 2).logsumexp(0)
        for x in machine.encode(X_BITS)
    ]
    torch.testing.assert_close(found.log_p_star, torch.stack(star).detach(), rtol=0, atol=0.05)
    assert (torch.stack(star) < exact).all()
    assert ((found.effective_samples > 1) & (found.effective_samples <= 40_000)).all()


def test_a_streamed_estimate_needs_no_more_memory_for_more_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagfisher.helmholtz import evaluate

    machine = tiny_machine((0.0, 1.0))
    monkeypatch.setattr(evaluate, "ROWS", 256)
    largest = 0
    real = evaluate.wake

    def watch(machine: HelmholtzMachine, x: Tensor, samples: int, generator: torch.Generator | None) -> object:
        nonlocal largest
        largest = max(largest, samples * len(x))
        return real(machine, x, samples, generator)

    monkeypatch.setattr(evaluate, "wake", watch)
    found = estimate(machine, X_BITS.repeat(5, 1), 4000, generator=torch.Generator().manual_seed(1))
    assert largest <= 256
    assert (found.log_p[:2] - machine.exact_log_likelihood(X_BITS)).abs().max() < 0.2


@pytest.mark.parametrize("pair", [("rws", "nrws"), ("ws", "nws"), ("bihm", "nbihm"), ("rws", "dnrws")])
def test_a_natural_algorithm_with_infinite_damping_is_its_plain_one(pair: tuple[str, str]) -> None:
    plain, natural = tiny_machine((-1.0, 1.0)), tiny_machine((-1.0, 1.0))
    first = Trainer(plain, pair[0], lr=0.1, samples=4, seed=2)
    settings = {"damping": 1e12, "tolerance": 1e-13, "trust_region": None}
    second = Trainer(natural, pair[1], lr=0.1, samples=4, seed=2, **settings)
    for _ in range(5):
        first.step(X_BITS)
        second.step(X_BITS)
    for a, b in zip(plain.parameters(), natural.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("algorithm", ["bihm", "nbihm"])
def test_a_bidirectional_machine_never_sleeps(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wake_up(*args: object, **kwargs: object) -> None:
        raise AssertionError("it dreamt")

    monkeypatch.setattr(train_module, "sleep_terms", wake_up)
    Trainer(tiny_machine((-1.0, 1.0)), algorithm).step(X_BITS)
    with pytest.raises(AssertionError):
        Trainer(tiny_machine((-1.0, 1.0)), "rws").step(X_BITS)
