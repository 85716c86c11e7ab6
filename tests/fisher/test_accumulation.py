"""Gram matrices that a convolution sums in chunks are those of all its rows at once, and take less memory."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher.fisher import statistics

F64 = torch.float64

CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "conv": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), "bernoulli", {}),
    "no bias": (lambda: nn.Conv2d(2, 4, 3, bias=False), "bernoulli", {}),
    "groups": (lambda: nn.Conv2d(2, 4, 3, groups=2), "bernoulli", {}),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), "bernoulli", {}),
    "gaussian": (lambda: nn.ConvTranspose2d(2, 4, 3), "gaussian", {}),
    "bounded gaussian": (lambda: nn.Conv2d(2, 4, 3), "gaussian", {"min_std": 0.1}),
    "grouped gaussian": (lambda: nn.Conv2d(2, 6, 3, groups=2), "gaussian", {}),
    "one dimension": (lambda: nn.Conv1d(2, 3, 3), "poisson", {}),
}


def pair(case: str) -> tuple[nn.Module, Tensor]:
    make, family, settings = CASES[case]
    torch.manual_seed(0)
    module = dagfisher.declare(make().to(F64), family, **settings)
    shape = (7, 2, 9) if case == "one dimension" else (7, 2, 5, 6)
    return module, torch.randn(*shape, dtype=F64)


def one_step(module: nn.Module, passes: list[Tensor], weights: list[Tensor], **settings: Any) -> dict[str, Tensor]:
    """Blocks and natural gradients of a step from these passes."""
    model = copy.deepcopy(module)
    optimizer = exact(model.named_parameters(), lr=0.1, damping=0.3, **settings)
    for x, w in zip(passes, weights, strict=True):
        with dagfisher.sample_weights(w):
            output = model(x)
        (output.square().flatten(1).sum(1) * w).sum().backward()
    parameter = next(iter(model.parameters()))
    blocks = optimizer.fisher_blocks(parameter)
    natural = optimizer.natural_gradient()
    optimizer.step()
    return {"blocks": blocks, **{f"{i}": v for i, v in enumerate(natural.values())}, "moved": parameter.detach()}


@pytest.mark.parametrize("solver", ["auto", "dense", "diagonal"])
@pytest.mark.parametrize("case", CASES)
def test_chunks_give_what_all_rows_give(case: str, solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = pair(case)
    weights = torch.rand(7, dtype=F64)
    passes, shares = [x[:4], x[4:]], [weights[:4], weights[4:]]
    wanted = one_step(module, passes, shares, solver=solver)
    monkeypatch.setattr(statistics, "ACCUMULATE", 100)
    used: list[int] = []
    real = statistics._accumulated
    monkeypatch.setattr(statistics, "_accumulated", lambda *a: (used.append(1), real(*a))[1])
    found = one_step(module, passes, shares, solver=solver)
    assert used
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10)


def test_a_pass_with_rows_and_one_with_gram_matrices_join(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = pair("groups")
    weights = torch.rand(7, dtype=F64)
    passes, shares = [x[:6], x[6:]], [weights[:6], weights[6:]]
    wanted = one_step(module, passes, shares)
    monkeypatch.setattr(statistics, "ACCUMULATE", 400)  # the second pass has one sample only and keeps its rows
    found = one_step(module, passes, shares)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_has_no_part_in_the_blocks(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = pair("conv")
    getattr(module, frozen).requires_grad_(False)
    results = []
    for limit in (2**22, 300):
        monkeypatch.setattr(statistics, "ACCUMULATE", limit)
        model = copy.deepcopy(module)
        optimizer = exact(model.parameters(), lr=0.1, damping=0.3)
        model(x).square().sum().backward()
        optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("solver", ["woodbury", "conjugate"])
def test_solvers_that_need_rows_keep_them(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ACCUMULATE", 300)
    module, x = pair("conv")
    wanted = one_step(module, [x], [torch.ones(7, dtype=F64)], solver="dense")
    found = one_step(module, [x], [torch.ones(7, dtype=F64)], solver=solver, tolerance=1e-9)
    torch.testing.assert_close(found["0"], wanted["0"], rtol=1e-6, atol=1e-8)


def test_bad_numbers_are_found_in_gram_matrices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ACCUMULATE", 300)
    module, x = pair("conv")
    optimizer = exact(module.named_parameters(), lr=0.1)
    module(x).square().sum().backward()
    optimizer.zero_grad(set_to_none=False)
    bad = x.clone()
    bad[0, 0, 0, 0] = torch.nan
    module(bad)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(dagfisher.errors.NonFiniteError, match="captured parents"):
        optimizer.step()


def staged(**settings: float) -> int:
    """Bytes kept for 40 × 64 × 64 positions × 8 × 25 parents, whose rows would be 131 MB."""
    module = dagfisher.declare(nn.Conv2d(8, 8, 5, padding=2), "bernoulli", **settings)
    optimizer = exact(module.named_parameters(), lr=0.1)
    module(torch.randn(40, 8, 64, 64)).sum().backward()
    return sum(optimizer.memory_usage().values())


def test_memory_does_not_grow_with_the_rows() -> None:
    """All rows count, and what is staged is 8 blocks of 201 × 201."""
    assert staged(max_rows=math.inf) < 2 * 8 * 201**2 * 4


def test_rows_that_are_drawn_take_no_more_than_their_bound() -> None:
    """By default the rows of some positions are staged, each with its 8 Fisher weights and the weight of its sample."""
    most = statistics.ENOUGH // (8 * 25)
    assert staged() == (most * (8 * 25 + 8 + 1) + 40) * 4
