"""The Fisher of p(x): its scores are the gradients of the exact log p(x), its solve is the dense one."""

from __future__ import annotations

import pytest
import torch

from dagfisher.errors import SettingError
from dagfisher.helmholtz import HelmholtzMachine
from dagfisher.helmholtz.visible import ascend, visible_natural_gradient, visible_scores

from .enumeration import all_states, hidden_states, log_joint, tiny_machine

STATES = (0, 1)


def exact_scores(machine: HelmholtzMachine, x: torch.Tensor) -> list[torch.Tensor]:
    """∇log p(x) by enumeration and automatic differentiation, the prior last."""
    hidden = hidden_states(machine, STATES)
    parameters = [(layer.weight, layer.bias) for layer in machine.generative]
    found = []
    for row in x:
        log_p = torch.logsumexp(log_joint(machine, row, hidden), 0)
        flat = torch.autograd.grad(log_p, [p for pair in parameters for p in pair] + [machine.prior.bias])
        joined = [torch.cat([w, b[:, None]], 1) for w, b in zip(flat[0:-1:2], flat[1:-1:2], strict=True)]
        found.append([*joined, flat[-1][:, None]])
    return [torch.stack(column) for column in zip(*found, strict=True)]


def test_posterior_averaged_scores_are_the_gradients_of_log_p() -> None:
    machine = tiny_machine(STATES, (4, 3, 2))
    x = all_states(4, STATES)
    found = visible_scores(machine, x, 20_000, torch.Generator().manual_seed(0))
    for a, b in zip(found, exact_scores(machine, x), strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, atol=0.06, rtol=0)


def test_the_solve_is_the_dense_one_of_every_unit() -> None:
    torch.manual_seed(0)
    scores = [torch.randn(7, 5, 9, dtype=torch.float64), torch.randn(7, 4, 1, dtype=torch.float64)]
    gradients = [torch.randn(5, 9, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)]
    found = visible_natural_gradient(gradients, scores, 0.2)
    for g, s, x in zip(gradients, scores, found, strict=True):
        for j in range(len(g)):
            block = s[:, j].T @ s[:, j] / 7 + 0.2 * torch.eye(g.shape[1], dtype=torch.float64)
            torch.testing.assert_close(x[j], 1.2 * torch.linalg.solve(block, g[j]))


def test_a_small_step_along_it_raises_the_likelihood() -> None:
    machine = tiny_machine(STATES, (4, 3, 2))
    x = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.float64)
    before = machine.exact_log_likelihood(x).mean()
    generator = torch.Generator().manual_seed(0)
    gradients = [score.mean(0) for score in visible_scores(machine, x, 2000, generator)]
    scores = visible_scores(machine, machine.sample(50, generator=generator), 200, generator)
    ascend(machine, visible_natural_gradient(gradients, scores, 0.1), 0.05)
    assert float(machine.exact_log_likelihood(x).mean()) > float(before) + 0.01


def test_machines_with_lateral_connections_are_refused() -> None:
    with pytest.raises(SettingError, match="dense layers"):
        visible_scores(HelmholtzMachine([4, 3], lateral="generative"), torch.zeros(1, 4), 2)
