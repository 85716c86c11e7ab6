"""REINFORCE with every baseline has the exact gradient as its expectation; the optimal one has less variance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dagfisher import datasets
from dagfisher.helmholtz import ALGORITHMS, HelmholtzMachine, Trainer
from dagfisher.helmholtz.baselines import leave_one_out, natural_baseline, optimal_baseline, score_lengths
from dagfisher.helmholtz.objectives import Terms, recognition_terms
from dagfisher.helmholtz.sampling import Wake, wake

from .enumeration import gradients, hidden_states, log_joint, log_recognition, tiny_machine

STATES = (-1, 1)
X = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)


@dataclass
class Given:
    wake: Wake


def estimates(machine: HelmholtzMachine, baseline: Callable[..., Tensor], repeats: int) -> Tensor:
    """Gradients of q, (repeats × parameters)."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(repeats):
        state = wake(machine, machine.encode(X), 8, generator)
        terms = Terms()
        recognition_terms(machine, state, baseline(Given(state)), terms)
        machine.zero_grad()
        terms.backward()
        found.append(torch.cat([p.grad.flatten() for p in machine.recognition.parameters() if p.grad is not None]))
    return torch.stack(found)


@pytest.mark.parametrize("baseline", [leave_one_out, optimal_baseline, natural_baseline])
def test_the_expectation_is_the_gradient_of_the_evidence_bound(baseline: Callable[..., Tensor]) -> None:
    machine = tiny_machine(STATES, (4, 3, 2))
    hidden, x = hidden_states(machine, STATES), machine.encode(X)[0]
    log_q = log_recognition(machine, x, hidden)
    bound = (log_q.exp() * (log_joint(machine, x, hidden) - log_q)).sum()
    exact = -torch.cat([g.flatten() for g in gradients(bound, list(machine.recognition.parameters()))])
    found = estimates(machine, baseline, 800)
    error = found.std(0) / 800**0.5
    assert float(((found.mean(0) - exact).abs() / (error + 1e-9)).max()) < 4.5


def test_the_optimal_baseline_has_less_variance_than_the_mean() -> None:
    machine = tiny_machine(STATES, (4, 3, 2))
    plain, best = (estimates(machine, b, 800).var(0).sum() for b in (leave_one_out, optimal_baseline))
    assert float(best) < 0.99 * float(plain)


def test_lengths_are_those_of_the_scores_by_automatic_differentiation() -> None:
    machine = tiny_machine(STATES, (4, 3, 2))
    state = wake(machine, machine.encode(torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 1]], dtype=torch.float64)), 3)
    found = score_lengths(state)
    parameters = list(machine.recognition.parameters())
    for s in range(3):
        for b in range(2):
            h = [each.reshape(3, 2, -1)[s, b][None] for each in state.hidden]
            log_q = log_recognition(machine, state.x[b], h).sum()
            expected = sum(g.square().sum() for g in gradients(log_q, parameters))
            assert float(found[s, b]) == pytest.approx(float(expected))
    natural = score_lengths(state, natural=True)
    assert natural.shape == found.shape and bool((natural > 0).all()) and not torch.allclose(natural, found)


@pytest.mark.parametrize("name", ["reinforce-optimal", "nreinforce", "nreinforce-optimal"])
def test_the_algorithms_learn(name: str) -> None:
    assert ALGORITHMS[name].least_samples == 2
    data = datasets.load("three-by-three")
    machine = HelmholtzMachine([9, 8, 4])
    machine.reset_parameters(generator=torch.Generator().manual_seed(0))
    x = data.evaluation("test")
    before = machine.exact_log_likelihood(x).mean()
    trainer = Trainer(machine, name, seed=0)
    for _ in range(100):
        trainer.step(x)
    assert float(machine.exact_log_likelihood(x).mean()) > float(before) + 1
