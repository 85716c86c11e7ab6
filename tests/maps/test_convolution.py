"""A convolution is a linear layer with tied weights: its rows, its blocks and its steps say so (Theorem 3)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from exact import exact
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import dagfisher
from dagfisher.errors import DeclarationError, ShapeError

F64 = torch.float64


@st.composite
def convolutions(draw: Any) -> tuple[nn.Module, Tensor]:
    """Any convolution that torch accepts, ordinary or transposed, and an input for it."""
    space = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(space))

    groups = draw(st.integers(1, 2))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation, bias = each(1, 3), each(1, 2), each(1, 2), draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 1000)))
    x = torch.randn(draw(st.integers(1, 3)), inputs, *each(5, 6), dtype=F64)
    if draw(st.booleans()):
        extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
        kind = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[space]
        return kind(inputs, outputs, kernel, stride, each(0, 1), extra, groups, bias, dilation, dtype=F64), x
    padding: Any = each(0, 2)
    named = draw(st.sampled_from(["numbers", "valid", "same"]))
    if named == "valid" or (named == "same" and set(stride) == {1}):
        padding = named
    mode = draw(st.sampled_from(["zeros", "reflect", "circular", "replicate"]))
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[space]
    return kind(inputs, outputs, kernel, stride, padding, dilation, groups, bias, mode, dtype=F64), x


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """∂predictor/∂(weight, bias), (samples, channels, positions, parameters): a linear map of its parameters."""
    parameters = dict(module.named_parameters())
    columns = []
    for name, parameter in parameters.items():
        for i in range(parameter.numel()):
            chosen = {k: torch.zeros_like(p) for k, p in parameters.items()}
            chosen[name].view(-1)[i] = 1
            columns.append(torch.func.functional_call(module, chosen, (x,)).flatten(2))
    return torch.stack(columns, -1)


@given(convolutions(), st.integers(0, 100))
def test_the_step_is_that_of_the_huge_linear_layer_with_tied_weights(case: tuple[nn.Module, Tensor], seed: int) -> None:
    module, x = case
    dagfisher.declare(module, "bernoulli")
    optimizer = exact(module.parameters(), lr=1.0, damping=0.3, solver="dense")
    weights = torch.rand(len(x), dtype=F64, generator=torch.Generator().manual_seed(seed)) + 0.1
    with dagfisher.sample_weights(weights):
        output = module(x)
    torch.manual_seed(seed)
    (output * torch.randn_like(output)).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
    with dagfisher.no_capture():
        slopes = jacobian(module, x)
    rho = torch.sigmoid(output.detach()).flatten(2)
    share = (weights / weights.sum())[:, None, None]
    fisher = torch.einsum("bcp,bcpi,bcpj->ij", share * rho * (1 - rho), slopes, slopes)
    identity = torch.eye(len(fisher), dtype=F64)
    wanted = 1.3 * torch.linalg.solve(0.3 * identity + fisher, gradient)
    found = optimizer.natural_gradient()
    torch.testing.assert_close(torch.cat([found[p].flatten() for p in module.parameters()]), wanted)


@pytest.mark.parametrize("solver", ["auto", "woodbury", "conjugate"])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_every_solver_gives_the_same_step(solver: str, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = kind(4, 6, 3, stride=2, padding=1, groups=2, dtype=F64)
    x = torch.randn(3, 4, 6, 6, dtype=F64)
    dagfisher.declare(module, "gaussian", scale="log_var")
    steps = []
    for name in ("dense", solver):
        optimizer = exact(module.parameters(), damping=0.2, solver=name, tolerance=1e-13)
        module(x).square().sum().backward()
        steps.append(optimizer.natural_gradient())
        optimizer.zero_grad()
    for p in module.parameters():
        torch.testing.assert_close(steps[0][p], steps[1][p], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_full_fisher_of_a_tiny_network_is_block_diagonal_per_output_channel(transposed: bool) -> None:
    """All joint states of a prior image and its child are enumerated; scores by autograd (Theorem 3)."""
    torch.manual_seed(1)
    shape = (1, 1, 2, 1) if transposed else (1, 1, 3, 1)
    layer: nn.Module = nn.ConvTranspose2d(1, 2, (2, 1), dtype=F64) if transposed else nn.Conv2d(1, 2, (2, 1), dtype=F64)
    dagfisher.declare(layer, "bernoulli")
    prior = torch.randn(shape, dtype=F64)
    size = len(torch.cat([p.flatten() for p in layer.parameters()]))
    full = torch.zeros(size, size, dtype=F64)
    parents, weights = [], []
    for bits in itertools.product((0.0, 1.0), repeat=prior.numel()):
        u = torch.tensor(bits, dtype=F64).reshape(shape)
        weight = torch.distributions.Bernoulli(logits=prior).log_prob(u).sum().exp()
        logits = layer(u)
        for child in itertools.product((0.0, 1.0), repeat=logits.numel()):
            h = torch.tensor(child, dtype=F64).reshape(logits.shape)
            log_p = torch.distributions.Bernoulli(logits=logits).log_prob(h).sum()
            parts = torch.autograd.grad(log_p, list(layer.parameters()), retain_graph=True)
            unit_major = parts[0].transpose(0, 1) if transposed else parts[0]
            score = torch.cat([unit_major.reshape(2, -1), parts[1][:, None]], 1).flatten()
            full += weight * log_p.exp().detach() * torch.outer(score, score)
        parents.append(u)
        weights.append(weight)
    optimizer = exact(layer.parameters(), damping=0.5)
    with dagfisher.sample_weights(torch.stack(weights)):
        layer(torch.cat(parents)).sum().backward()
    blocks = optimizer.fisher_blocks(layer.weight) * 1.5 - 0.5 * torch.eye(size // 2, dtype=F64)
    torch.testing.assert_close(torch.block_diag(*blocks), full, rtol=1e-9, atol=1e-12)


def test_a_bound_on_the_rows_changes_no_expectation_and_bounds_what_is_kept() -> None:
    torch.manual_seed(0)
    bounded, whole = nn.Conv2d(1, 2, 3, dtype=F64), nn.Conv2d(1, 2, 3, dtype=F64)
    bounded.load_state_dict(whole.state_dict())
    dagfisher.declare(bounded, "bernoulli", max_rows=40)
    dagfisher.declare(whole, "bernoulli")
    x = torch.randn(4, 1, 8, 8, dtype=F64)
    first = exact(whole.parameters(), damping=0.5)
    second = exact(bounded.parameters(), damping=0.5)
    whole(x)
    wanted = first.fisher_blocks(whole.weight)
    mean = torch.zeros_like(wanted)
    for _ in range(400):
        second._layers[0].recorder.clear()
        bounded(x)
        assert len(second._layers[0].recorder.passes[0].statistics.parents) == 40
        mean += second.fisher_blocks(bounded.weight) / 400
    assert (mean - wanted).norm() < 0.03 * wanted.norm()
    with pytest.raises(DeclarationError, match="max_rows"):
        dagfisher.declare(nn.Conv2d(1, 1, 1), "bernoulli", max_rows=0)


def test_a_single_image_without_a_batch_axis_is_one_sample() -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(1, 2, 3, dtype=F64)
    dagfisher.declare(module, "bernoulli")
    optimizer = exact(module.parameters(), damping=0.5)
    x = torch.randn(1, 6, 6, dtype=F64)
    module(x)
    alone = optimizer.fisher_blocks(module.weight)
    optimizer._layers[0].recorder.clear()
    module(x.unsqueeze(0))
    torch.testing.assert_close(optimizer.fisher_blocks(module.weight), alone)
    with pytest.raises(ShapeError, match="spatial"):
        dagfisher.observe(module, torch.zeros(6), torch.zeros(1, 2, 4, 4))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_a_ready_made_layer_is_the_distribution_of_its_output_in_space(family: str, transposed: bool) -> None:
    torch.manual_seed(0)
    kinds = {
        ("bernoulli", False): dagfisher.nn.BernoulliConv2d,
        ("bernoulli", True): dagfisher.nn.BernoulliConvTranspose2d,
        ("gaussian", False): dagfisher.nn.GaussianConv2d,
        ("gaussian", True): dagfisher.nn.GaussianConvTranspose2d,
    }
    layer = kinds[family, transposed](2, 3, 3, stride=2, dtype=F64)
    parents = torch.randn(5, 2, 7, 7, dtype=F64)
    output = layer(parents)
    if family == "bernoulli":
        reference: Any = torch.distributions.Bernoulli(logits=output)
    else:
        mean, log_std = output.split(3, dim=1)
        reference = torch.distributions.Normal(mean, log_std.exp())
    child = layer.sample(parents)
    assert child.shape == reference.mean.shape
    torch.testing.assert_close(layer.log_prob(child, parents), reference.log_prob(child).sum((1, 2, 3)))
    torch.testing.assert_close(layer.entropy(parents), reference.entropy().sum((1, 2, 3)))
    torch.testing.assert_close(layer.distribution(parents).mean, reference.mean)
