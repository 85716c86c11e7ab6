"""Weights that a sample uses several times: the blocks are summed over uses and averaged over samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError, SampleWeightError, ShapeError

F64 = torch.float64
ALPHA = 0.3


def layer(parents: int = 3, units: int = 2, **reading: Any) -> nn.Linear:
    torch.manual_seed(1)
    made = nn.Linear(parents, units, dtype=F64)
    dagfisher.declare(made, "bernoulli", **reading)
    return made


def expanded_blocks(module: nn.Linear, samples: list[Tensor], weights: Tensor | None = None) -> Tensor:
    """The Fisher blocks of a network with weights shared over positions, from the Jacobian of each sample's logits."""
    units, width = module.out_features, module.in_features + 1
    share = torch.full((len(samples),), 1 / len(samples), dtype=F64) if weights is None else weights / weights.sum()
    total = torch.zeros(units, width, width, dtype=F64)
    for sample, w in zip(samples, share, strict=True):
        for unit in range(units):
            logits = module.weight @ sample.T + module.bias[:, None]  # (units × positions)
            for a in logits[unit]:
                gw, gb = torch.autograd.grad(a, [module.weight, module.bias], retain_graph=True)
                u = torch.cat([gw[unit], gb[unit : unit + 1]])
                total[unit] += w * torch.sigmoid(a.detach()) * torch.sigmoid(-a.detach()) * torch.outer(u, u)
    return total


def blocks_of(opt: DAGNaturalGradient, module: nn.Linear) -> Tensor:
    found = opt.fisher_blocks(module.weight) * (1 + ALPHA)
    return found - ALPHA * torch.eye(found.shape[1], dtype=F64)


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate", "auto"])
def test_positions_are_summed_and_samples_averaged(solver: str) -> None:
    module = layer(positions=1)
    opt = exact(module.parameters(), damping=ALPHA, solver=solver, tolerance=1e-13)
    x = torch.randn(5, 4, 3, dtype=F64)
    module(x).sum().backward()
    expected = expanded_blocks(module, list(x))
    torch.testing.assert_close(blocks_of(opt, module), expected, rtol=1e-10, atol=1e-12)
    gradient = torch.cat([module.weight.grad, module.bias.grad.unsqueeze(1)], 1)
    wanted = (1 + ALPHA) * torch.linalg.solve(expected + ALPHA * torch.eye(4, dtype=F64), gradient.unsqueeze(2))
    found = opt.natural_gradient()
    joined = torch.cat([found[module.weight], found[module.bias].unsqueeze(1)], 1)
    torch.testing.assert_close(joined, wanted.squeeze(2), rtol=1e-9, atol=1e-11)


def test_without_positions_every_leading_axis_is_a_sample() -> None:
    plain, shared = layer(), layer(positions=1)
    x = torch.randn(5, 4, 3, dtype=F64)
    optimizers = [exact(m.parameters(), damping=ALPHA, solver="dense") for m in (plain, shared)]
    plain(x), shared(x)
    averaged, summed = (blocks_of(o, m) for o, m in zip(optimizers, (plain, shared), strict=True))
    torch.testing.assert_close(summed, 4 * averaged)


def test_two_axes_of_positions() -> None:
    module = layer(positions=2)
    opt = exact(module.parameters(), damping=ALPHA, solver="dense")
    x = torch.randn(4, 2, 3, 3, dtype=F64)
    module(x)
    torch.testing.assert_close(blocks_of(opt, module), expanded_blocks(module, list(x.flatten(1, 2))))


def test_sample_weights_are_of_samples_not_of_positions() -> None:
    module = layer(positions=1)
    opt = exact(module.parameters(), damping=ALPHA, solver="dense")
    x, w = torch.randn(5, 4, 3, dtype=F64), torch.rand(5, dtype=F64)
    with dagfisher.sample_weights(w):
        module(x)
    torch.testing.assert_close(blocks_of(opt, module), expanded_blocks(module, list(x), w))
    with pytest.raises(SampleWeightError, match=r"samples of shape \(5,\)"), dagfisher.sample_weights(torch.ones(5, 4)):
        module(x)


def test_calls_of_the_same_samples_are_positions() -> None:
    """A cell that is called at each of four times is a layer on a sequence."""
    module = layer(calls="positions")
    opt = exact(module.parameters(), damping=ALPHA, solver="dense")
    x = torch.randn(5, 4, 3, dtype=F64)
    sum(module(x[:, t]).sum() for t in range(4)).backward()
    torch.testing.assert_close(blocks_of(opt, module), expanded_blocks(module, list(x)))


def test_by_default_calls_are_further_samples() -> None:
    module = layer()
    opt = exact(module.parameters(), damping=ALPHA, solver="dense")
    x = torch.randn(5, 4, 3, dtype=F64)
    sum(module(x[:, t]).sum() for t in range(4)).backward()
    torch.testing.assert_close(blocks_of(opt, module), expanded_blocks(module, list(x)) / 4)


def test_micro_batches_of_calls_count_by_their_samples() -> None:
    """Two backward passes are of two sets of samples, however often each called the module."""
    module = layer(calls="positions")
    opt = exact(module.parameters(), damping=ALPHA, solver="dense")
    first, second = torch.randn(5, 4, 3, dtype=F64), torch.randn(2, 6, 3, dtype=F64)
    for x in (first, second):
        sum(module(x[:, t]).sum() for t in range(x.shape[1])).backward()
    torch.testing.assert_close(blocks_of(opt, module), expanded_blocks(module, [*first, *second]))


def test_sequences_that_end_early_leave_the_others_going() -> None:
    module = layer(calls="positions")
    opt = exact(module.parameters(), damping=ALPHA, solver="dense")
    lengths = [3, 2, 1]
    x = [torch.randn(t, 3, dtype=F64) for t in lengths]
    total = torch.zeros((), dtype=F64)
    for t in range(3):
        total = total + module(torch.stack([sample[t] for sample in x if len(sample) > t])).sum()
    total.backward()
    torch.testing.assert_close(blocks_of(opt, module), expanded_blocks(module, x))


def test_positions_and_calls_go_together_with_a_window_and_reuse() -> None:
    module = layer(positions=1, calls="positions")
    opt = exact(module.parameters(), lr=0.0, damping=ALPHA, solver="dense", window=2, update_every=2)
    batches = [torch.randn(4, 2, 3, 3, dtype=F64) for _ in range(3)]
    for x in batches:
        opt.zero_grad()
        (module(x[:, 0]).sum() + module(x[:, 1]).sum()).backward()
        opt.step()
    first, third = (expanded_blocks(module, list(batches[i].flatten(1, 2))) for i in (0, 2))
    torch.testing.assert_close(blocks_of(opt, module), (third + 0.5 * first) / 1.5)


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ({"positions": -1}, "positions must be"),
        ({"positions": "all"}, "positions must be"),
        ({"calls": 3}, "calls must"),
    ],
)
def test_readings_that_are_none(reading: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        layer(**reading)


def test_an_input_with_too_few_axes_is_an_error() -> None:
    module = layer(positions=1)
    exact(module.parameters()), (opt := exact(module.parameters()))
    with pytest.raises(ShapeError, match="the first one is of samples"):
        module(torch.randn(5, 3, dtype=F64))
    assert not opt._layers[0].recorder.passes
