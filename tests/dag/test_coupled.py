"""Categorical layers are exact: the blocks of a variable's units are coupled."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.fisher.choose import solver_for
from dagfisher.solvers import CoupledProblem

F64 = torch.float64


def layer(parents: int, units: int, seed: int = 0, **categorical: object) -> nn.Linear:
    torch.manual_seed(seed)
    module = nn.Linear(parents, units, dtype=F64)
    nn.init.normal_(module.weight)
    dagfisher.declare(module, "categorical", **categorical)
    return module


def full_fisher(module: nn.Linear, x: Tensor, classes: int) -> Tensor:
    """The Fisher matrix of all parameters, (units · d), by autograd of every outcome's log-probability."""
    units, d = module.out_features, module.in_features + 1
    total = torch.zeros(units * d, units * d, dtype=F64)
    for row in x:
        logits = F.linear(row, module.weight, module.bias)
        log_p = torch.log_softmax(logits.reshape(-1, classes), -1)
        for variable in log_p:
            for outcome in variable:
                gw, gb = torch.autograd.grad(outcome, [module.weight, module.bias], retain_graph=True)
                score = torch.cat([gw, gb.unsqueeze(1)], dim=1).reshape(-1)
                total += torch.exp(outcome.detach()) * torch.outer(score, score) / len(x)
    return total


@settings(deadline=None, max_examples=25)
@given(
    variables=st.integers(1, 3),
    classes=st.integers(2, 4),
    parents=st.integers(1, 5),
    n=st.integers(1, 8),
    seed=st.integers(0, 999),
    solver=st.sampled_from(["dense", "conjugate", "woodbury", "auto"]),
)
def test_a_step_is_the_dense_solution_with_the_whole_fisher_matrix(
    variables: int, classes: int, parents: int, n: int, seed: int, solver: str
) -> None:
    """No approximation is left: the whole matrix of the layer, inverted, gives the same step."""
    module = layer(parents, variables * classes, seed, classes=classes)
    x = torch.randn(n, parents, generator=torch.Generator().manual_seed(seed), dtype=F64)
    opt = exact(module.parameters(), damping=0.2, solver=solver, tolerance=1e-13)
    target = torch.randn(n, variables * classes, generator=torch.Generator().manual_seed(seed + 1), dtype=F64)
    (module(x) * target).sum().backward()
    gradient = torch.cat([module.weight.grad, module.bias.grad.unsqueeze(1)], dim=1)
    fisher = full_fisher(module, x, classes)
    expected = 1.2 * torch.linalg.solve(fisher + 0.2 * torch.eye(len(fisher), dtype=F64), gradient.reshape(-1))
    found = opt.natural_gradient()
    joined = torch.cat([found[module.weight], found[module.bias].unsqueeze(1)], dim=1)
    torch.testing.assert_close(joined.reshape(-1), expected, rtol=1e-9, atol=1e-10)


def test_blocks_are_those_of_variables() -> None:
    module, x = layer(3, 6, classes=3), torch.randn(7, 3, dtype=F64)
    opt = exact(module.parameters(), damping=0.5, solver="dense")
    module(x).sum().backward()
    blocks = opt.fisher_blocks(module.weight) * 1.5 - 0.5 * torch.eye(12, dtype=F64)
    assert blocks.shape == (2, 12, 12)
    full = full_fisher(module, x, 3)
    torch.testing.assert_close(blocks[0], full[:12, :12])
    torch.testing.assert_close(blocks[1], full[12:, 12:])
    assert full[:12, 12:].abs().max() < 1e-14
    opt.step()
    torch.testing.assert_close(opt.fisher_blocks(module.weight) * 1.5 - 0.5 * torch.eye(12, dtype=F64), blocks)


def test_without_coupling_each_logit_has_the_diagonal() -> None:
    module, x = layer(3, 4, coupled=False), torch.randn(7, 3, dtype=F64)
    opt = exact(module.parameters(), damping=0.5, solver="dense")
    pi = torch.softmax(module(x), -1).detach()
    u = torch.cat([x, torch.ones(7, 1, dtype=F64)], 1)
    blocks = opt.fisher_blocks(module.weight) * 1.5 - 0.5 * torch.eye(4, dtype=F64)
    for c in range(4):
        torch.testing.assert_close(blocks[c], u.T @ ((pi * (1 - pi))[:, c : c + 1] * u) / 7)


def newton_steps(coupled: bool) -> int:
    """Steps of rate 1 until softmax regression is within 1e-6 of its optimum."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator, dtype=F64)
    truth = torch.randn(6, 5, generator=generator, dtype=F64)
    y = torch.multinomial(torch.softmax(x @ truth, -1), 1, generator=generator).squeeze(1)
    module = nn.Linear(6, 5, dtype=F64)
    nn.init.zeros_(module.weight), nn.init.zeros_(module.bias)
    dagfisher.declare(module, "categorical", coupled=coupled)
    opt = exact(module.parameters(), lr=1.0, damping=1e-9, solver="dense")
    losses = []
    for _ in range(100):
        opt.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        losses.append(float(loss))
        opt.step()
    return next(i for i, value in enumerate(losses) if value - min(losses) < 1e-6)


def test_softmax_regression_takes_a_few_newton_steps() -> None:
    coupled, diagonal = newton_steps(True), newton_steps(False)
    assert coupled <= 8
    assert diagonal >= 3 * coupled


@pytest.mark.parametrize("solver", ["dense", "conjugate", "woodbury", "diagonal"])
def test_reuse_and_a_checkpoint_continue_exactly(solver: str) -> None:
    one, two = layer(4, 6, classes=3), layer(4, 6, classes=3)
    settings_ = {"lr": 0.1, "update_every": 4, "solver": solver, "momentum": 0.5, "window": 2}
    optimizers = [exact(m.parameters(), **settings_) for m in (one, two)]

    def train(module: nn.Linear, opt: DAGNaturalGradient, steps: range) -> None:
        for step in steps:
            opt.zero_grad()
            module(
                torch.randn(7, 4, generator=torch.Generator().manual_seed(step), dtype=F64)
            ).square().sum().backward()
            opt.step()

    train(one, optimizers[0], range(6))
    two.load_state_dict(one.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    train(one, optimizers[0], range(6, 11)), train(two, optimizers[1], range(6, 11))
    assert torch.equal(one.weight, two.weight)


def test_positions_and_weights() -> None:
    """A softmax on every position of a sequence: summed over positions, averaged over weighted samples."""
    torch.manual_seed(0)
    module = nn.Linear(3, 4, dtype=F64)
    dagfisher.declare(module, "categorical", positions=1)
    opt = exact(module.parameters(), damping=0.5, solver="dense")
    x, w = torch.randn(5, 2, 3, dtype=F64), torch.rand(5, dtype=F64)
    with dagfisher.sample_weights(w):
        module(x)
    blocks = opt.fisher_blocks(module.weight) * 1.5 - 0.5 * torch.eye(16, dtype=F64)
    share = w / w.sum()
    expected = sum(share[k] * 2 * full_fisher(module, x[k], 4) for k in range(5))
    torch.testing.assert_close(blocks[0], expected)


@pytest.mark.parametrize("solver", ["dense", "conjugate", "woodbury"])
def test_what_all_logits_share_does_not_disturb_small_blocks_of_float32(solver: str) -> None:
    """Along it a block is α alone, however large its other directions are."""
    generator = torch.Generator().manual_seed(0)
    parents = 10 * torch.randn(60, 20, generator=generator) @ torch.diag(torch.logspace(-2, 0, 20))
    pi = torch.softmax(torch.randn(60, 2, 4, generator=generator), 2).flatten(1)
    gradient = torch.randn(8, 20, generator=generator)
    found = []
    for dtype, name in ((torch.float32, solver), (F64, "dense")):
        shares, settings_ = torch.full((60,), 1 / 60, dtype=dtype), {"tolerance": 1e-4, "update_every": 1000}
        problem = CoupledProblem(parents.to(dtype), pi.to(dtype), shares, 4, 1e-3, gradient.to(dtype), **settings_)
        found.append(solver_for(problem, name).begin(problem)[1].double())
    assert (found[0] - found[1]).norm() < 2e-3 * found[1].norm()


def test_a_large_number_of_classes_is_solved_without_its_blocks() -> None:
    choice = dagfisher.choose_solver(500, 300, 1000, classes=1000)
    assert choice.costs[choice.name].numbers < 1e-2 * choice.costs["dense"].numbers
    assert dagfisher.choose_solver(500, 5, 4, classes=4, update_every=100).name == "dense"


def test_a_fisher_that_is_kept_for_long_is_worth_inverses() -> None:
    assert dagfisher.choose_solver(500, 300, 10, classes=10).name == "conjugate, coupled"
    assert dagfisher.choose_solver(500, 300, 10, classes=10, update_every=1000).name == "woodbury, coupled"
