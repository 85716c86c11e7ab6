"""Each unit may have parents of its own: the Fisher matrix of any DAG is block diagonal, and its blocks are these."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError
from dagfisher.nn import MaskedLinear

F64 = torch.float64
SOLVERS = ("dense", "woodbury", "conjugate", "auto", "diagonal")


class Masked(nn.Linear):
    """Any linear module whose forward is F.linear(x, M ∘ W, b)."""

    def __init__(self, mask: Tensor, bias: bool = True) -> None:
        super().__init__(mask.shape[1], mask.shape[0], bias, dtype=F64)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


def masked(mask: Tensor, seed: int = 0, **settings: Any) -> Masked:
    torch.manual_seed(seed)
    module = Masked(mask)
    nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    dagfisher.declare(module, "bernoulli", mask=mask, **settings)
    return module


def blocks_by_hand(module: Masked, x: Tensor, alpha: float) -> list[tuple[Tensor, Tensor]]:
    """For each unit the indices of its parents, the 1 last, and αI + F on them, from a loop over samples."""
    found = []
    logits = module(x).detach()
    for j in range(module.out_features):
        kept = torch.cat([module.mask[j].nonzero().squeeze(1), torch.tensor([module.in_features])])
        block = alpha * torch.eye(len(kept), dtype=F64)
        for k, row in enumerate(x):
            u = torch.cat([row, torch.ones(1, dtype=F64)])[kept]
            q = torch.sigmoid(logits[k, j]) * torch.sigmoid(-logits[k, j])
            block += q * torch.outer(u, u) / len(x)
        found.append((kept, block))
    return found


def matrix(module: nn.Linear, of: dict[Tensor, Tensor]) -> Tensor:
    return torch.cat([of[module.weight], of[module.bias].unsqueeze(1)], dim=1)


@settings(deadline=None, max_examples=40)
@given(
    units=st.integers(1, 6),
    parents=st.integers(1, 6),
    n=st.integers(1, 9),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    seed=st.integers(0, 999),
    solver=st.sampled_from(["dense", "woodbury", "conjugate", "auto"]),
)
def test_a_masked_step_is_the_dense_solution_on_the_allowed_entries(
    units: int, parents: int, n: int, share: float, seed: int, solver: str
) -> None:
    """For every mask, rows without any parent included."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(units, parents, generator=generator) < share
    module, x = masked(mask, seed), torch.randn(n, parents, generator=generator, dtype=F64)
    opt = exact(module.parameters(), damping=0.2, solver=solver, tolerance=1e-13)
    (module(x) * torch.randn(n, units, generator=generator, dtype=F64)).sum().backward()
    gradient = torch.cat([module.weight.grad, module.bias.grad.unsqueeze(1)], dim=1)
    found = matrix(module, opt.natural_gradient())
    expected = torch.zeros_like(found)
    for j, (kept, block) in enumerate(blocks_by_hand(module, x, 0.2)):
        expected[j, kept] = 1.2 * torch.linalg.solve(block, gradient[j, kept])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_fisher_matrix_of_a_random_dag_is_block_diagonal() -> None:
    """Theorem 1 by enumeration: four units, each with its own parents among those before it."""
    mask = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)
    module = masked(mask, 3)
    entries = [(j, i) for j in range(4) for i in [*mask[j].nonzero().squeeze(1).tolist(), 4]]
    full = torch.zeros(len(entries), len(entries), dtype=F64)
    weights, states = [], []
    for bits in itertools.product((0.0, 1.0), repeat=4):
        x = torch.tensor([bits], dtype=F64)
        log_p = -F.binary_cross_entropy_with_logits(module(x), x, reduction="sum")
        gw, gb = torch.autograd.grad(log_p, [module.weight, module.bias])
        score = torch.stack([gb[j] if i == 4 else gw[j, i] for j, i in entries])
        full += torch.exp(log_p.detach()) * torch.outer(score, score)
        weights.append(torch.exp(log_p.detach())), states.append(x)
    of = torch.tensor([j for j, _ in entries])
    assert full[of[:, None] != of[None, :]].abs().max() < 1e-14
    opt = exact(module.parameters(), damping=0.1, solver="dense")
    with dagfisher.sample_weights(torch.stack(weights)):
        module(torch.cat(states))
    blocks = opt.fisher_blocks(module.weight) * 1.1
    for j in range(4):
        kept = [i for unit, i in entries if unit == j]
        own = full[of == j][:, of == j] + 0.1 * torch.eye(len(kept), dtype=F64)
        torch.testing.assert_close(blocks[j][kept][:, kept], own, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"momentum": 0.9},
        {"betas": (0.9, 0.99)},
        {"betas": (0.9, 0.99), "second_moment": "unit"},
        {"weight_decay": 0.3, "l1": 0.2},
        {"trust_region": 1e-3},
    ],
    ids=["plain", "momentum", "adam", "adam of units", "decay", "trust"],
)
def test_entries_under_the_mask_never_move(solver: str, more: dict[str, Any]) -> None:
    mask = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    module = masked(mask)
    before = module.weight.detach().clone()
    opt = exact(module.parameters(), lr=0.1, update_every=3, solver=solver, **more)
    for step in range(7):
        opt.zero_grad()
        x = torch.bernoulli(torch.full((8, 5), 0.5, dtype=F64), generator=torch.Generator().manual_seed(step))
        F.binary_cross_entropy_with_logits(module(x), x, reduction="sum").div(8).backward()
        opt.step()
    assert torch.equal(module.weight[~mask], before[~mask])
    assert not torch.equal(module.weight[mask], before[mask])


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate"])
def test_reuse_and_a_checkpoint_continue_exactly(solver: str) -> None:
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(5)) < 0.6
    one, two = masked(mask), masked(mask)
    optimizers = [
        exact(m.parameters(), lr=0.1, update_every=4, solver=solver, momentum=0.5, window=2) for m in (one, two)
    ]

    def train(module: Masked, opt: DAGNaturalGradient, steps: range) -> None:
        for step in steps:
            opt.zero_grad()
            x = torch.randn(7, 4, generator=torch.Generator().manual_seed(step), dtype=F64)
            module(x).square().sum().backward()
            opt.step()

    train(one, optimizers[0], range(6))
    two.load_state_dict(one.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    train(one, optimizers[0], range(6, 11)), train(two, optimizers[1], range(6, 11))
    assert torch.equal(one.weight, two.weight)


def test_masked_convolutions() -> None:
    """A PixelCNN's first layer: the same as a dense layer on patches with the mask of its kernel."""

    class Causal(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return self._conv_forward(x, self.weight * mask, self.bias)

    mask = torch.ones(3, 3)
    mask[1, 1:], mask[2] = 0, 0
    torch.manual_seed(0)
    conv = Causal(2, 3, 3, padding=1, dtype=F64)
    kept = mask.bool().expand(conv.weight.shape)
    dagfisher.declare(conv, "bernoulli", mask=kept)
    opt = exact(conv.parameters(), damping=0.2, solver="conjugate", tolerance=1e-12)
    x = torch.randn(4, 2, 5, 5, dtype=F64)
    conv(x).square().sum().backward()
    found = opt.natural_gradient()[conv.weight]
    assert not found[~kept].any()
    rows = F.unfold(x, 3, padding=1).transpose(1, 2).reshape(-1, 18)
    logits = conv(x).permute(0, 2, 3, 1).reshape(-1, 3).detach()
    columns = torch.cat([mask.bool().expand(2, 3, 3).reshape(-1), torch.ones(1, dtype=torch.bool)])
    u = torch.cat([rows, torch.ones(len(rows), 1, dtype=F64)], 1)[:, columns]
    for j in range(3):
        q = torch.sigmoid(logits[:, j]) * torch.sigmoid(-logits[:, j])
        block = u.T @ (q[:, None] * u) / 4 + 0.2 * torch.eye(u.shape[1], dtype=F64)
        g = torch.cat([conv.weight.grad[j].reshape(-1), conv.bias.grad[j : j + 1]])[columns]
        wanted = 1.2 * torch.linalg.solve(block, g)
        torch.testing.assert_close(found[j].reshape(-1)[columns[:-1]], wanted[:-1], rtol=1e-8, atol=1e-10)


def test_gaussian_halves_have_masks_too() -> None:
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    torch.manual_seed(0)
    module = Masked(mask)
    dagfisher.declare(module, "gaussian", mask=mask)
    one = exact(module.parameters(), solver="dense")
    x = torch.randn(9, 4, dtype=F64)
    module(x).square().sum().backward()
    dense = one.natural_gradient()[module.weight]
    two = exact(module.parameters(), solver="conjugate", tolerance=1e-12)
    module.zero_grad()
    module(x).square().sum().backward()
    torch.testing.assert_close(two.natural_gradient()[module.weight], dense, rtol=1e-8, atol=1e-10)
    assert not dense[~mask].any()


REFUSED = {
    "another shape": (lambda m: dagfisher.declare(m, "bernoulli", mask=torch.ones(2, 2)), "shaped like its weight"),
    "no tensor": (lambda m: dagfisher.declare(m, "bernoulli", mask="all"), "shaped like its weight"),
    "a coupled variable": (
        lambda m: dagfisher.declare(m, "categorical", mask=torch.ones(4, 3)),
        r"coupled.*coupled=False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_masks_that_cannot_be(name: str) -> None:
    refuse, words = REFUSED[name]
    module = nn.Linear(3, 4)
    with pytest.raises(DeclarationError, match=words):
        refuse(module)
    assert not module._forward_hooks


def test_a_module_that_forgets_its_mask_is_refused() -> None:
    module = nn.Linear(4, 4, dtype=F64)
    dagfisher.declare(module, "bernoulli", mask=torch.ones(4, 4).tril())
    exact(module.parameters()), (opt := exact(module.parameters()))
    with pytest.raises(DeclarationError, match="is not weight"):
        module(torch.randn(5, 4, dtype=F64))
    assert opt is not None


def test_ready_made_layers() -> None:
    mask = torch.ones(4, 4).tril(-1)
    for make in (
        MaskedLinear,
        dagfisher.nn.MaskedBernoulliLinear,
        dagfisher.nn.MaskedPoissonLinear,
        dagfisher.nn.MaskedGaussianLinear,
        dagfisher.nn.MaskedCategoricalLinear,
    ):
        torch.manual_seed(0)
        layer = make(mask) if make is not dagfisher.nn.MaskedGaussianLinear else make(mask, std=1.0)
        x = torch.randn(5, 4)
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight * mask, layer.bias))
        assert "mask" in layer.state_dict() or make is not MaskedLinear
    twice = dagfisher.nn.MaskedGaussianLinear(mask)
    assert twice(torch.randn(5, 4)).shape == (5, 8)
    summary = dagfisher.summary(nn.ModuleDict({"net": dagfisher.nn.MaskedBernoulliLinear(mask)}))
    assert "0 / 1.5 / 3" in summary
