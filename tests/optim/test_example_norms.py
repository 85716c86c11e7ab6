"""Norms of the gradients of examples: against one backward pass per example and dense float64 solves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.declaration import declaration_of
from dagfisher.errors import MissingStatisticsError, ShapeError
from dagfisher.optim.examples import ExampleNorms

Losses = Callable[[], Tensor]


def run(opt: DAGNaturalGradient, losses: Losses, examples: Tensor | None = None) -> ExampleNorms:
    """The norms of one minibatch, with the Fisher of the same minibatch."""
    opt.zero_grad()
    with opt.example_norms(examples) as norms:
        losses().mean().backward()
    opt.step()
    return norms


def by_backward(opt: DAGNaturalGradient, losses: Losses, layers: list[nn.Module]) -> Tensor:
    """The three norms, (3 × n), by a backward pass for each example and dense solves of the optimizer's blocks."""
    found = []
    for loss in losses():
        squares = torch.zeros(3, dtype=torch.float64)
        trained = [p for layer in layers for p in layer.parameters()]
        gradients = dict(zip(trained, torch.autograd.grad(loss, trained, retain_graph=True), strict=True))
        for layer in layers:
            own = [layer.weight] + ([] if layer.bias is None else [layer.bias])
            mask = declaration_of(layer).mask
            weight = gradients[own[0]] if mask is None else gradients[own[0]] * mask
            if isinstance(layer, nn.ConvTranspose2d):
                weight = weight.transpose(0, 1)
            parts = [weight.flatten(1), *(gradients[b][:, None] for b in own[1:])]
            g = torch.cat(parts, 1).double()
            blocks = opt.fisher_blocks(own[0]).double()
            rows = g.reshape(len(blocks), -1, 1)  # units of one variable are one block
            x = torch.linalg.solve(blocks, rows)
            squares += torch.stack([g.square().sum(), x.square().sum(), (rows * x).sum()])
        found.append(squares.sqrt())
    return torch.stack(found, dim=1)


def check(
    model: nn.Module,
    layers: list[nn.Module],
    losses: Losses,
    examples: Tensor | None = None,
    solver: str = "dense",
) -> None:
    # With a rate of 0 the parameters stay, and the blocks of the step remain those of the minibatch.
    opt = exact(model.parameters(), lr=0.0, solver=solver, update_every=100, tolerance=1e-12)
    norms = run(opt, losses, examples)
    expected = by_backward(opt, losses, layers)
    found = torch.stack([norms.gradient, norms.natural, norms.fisher])
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)
    assert not torch.allclose(found[1], found[0], rtol=0.01)  # the Fisher does something


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 6),
    parents=st.integers(1, 5),
    units=st.integers(1, 4),
    bias=st.booleans(),
    solver=st.sampled_from(["dense", "woodbury", "conjugate"]),
    seed=st.integers(0, 99),
)
def test_norms_of_linear_layers_are_those_of_one_backward_pass_per_example(
    n: int, parents: int, units: int, bias: bool, solver: str, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(parents, units, bias=bias), nn.Sigmoid(), nn.Linear(units, 3, bias=bias)).double()
    dagfisher.declare(model[0], "bernoulli")
    dagfisher.declare(model[2], "bernoulli")
    x, y = torch.randn(n, parents).double(), torch.rand(n, 3).double().round()
    check(
        model,
        [model[0], model[2]],
        lambda: F.binary_cross_entropy_with_logits(model(x), y, reduction="none").sum(1),
        solver=solver,
    )


@pytest.mark.parametrize("kind", ["plain", "grouped", "transposed", "strided without bias"])
def test_norms_of_convolutions_sum_over_positions(kind: str) -> None:
    torch.manual_seed(1)
    layer = {
        "plain": lambda: nn.Conv2d(2, 4, 3, padding=1),
        "grouped": lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2),
        "transposed": lambda: nn.ConvTranspose2d(2, 4, 3, stride=2),
        "strided without bias": lambda: nn.Conv2d(2, 4, 2, stride=2, bias=False),
    }[kind]()
    model = layer.double()
    dagfisher.declare(model, "bernoulli")
    x = torch.randn(3, 2, 4, 6).double()
    check(model, [model], lambda: model(x).sin().flatten(1).sum(1))


def test_a_mask_leaves_out_what_is_not_trained() -> None:
    torch.manual_seed(2)
    model = nn.Linear(5, 5).double()
    mask = torch.tril(torch.ones(5, 5), -1).bool()
    model.weight.data *= mask
    dagfisher.declare(model, "bernoulli", mask=mask)
    x = torch.randn(4, 5).double()
    check(model, [model], lambda: model(x).sin().sum(1))


def test_units_of_a_categorical_variable_are_one_block() -> None:
    torch.manual_seed(3)
    model = nn.Linear(4, 3).double()
    dagfisher.declare(model, "categorical", classes=3)
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
    check(model, [model], lambda: F.cross_entropy(model(x), y, reduction="none"))


@pytest.mark.parametrize("samples_first", [True, False])
def test_an_example_may_have_several_samples(samples_first: bool) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    for layer in model:
        dagfisher.declare(layer, "bernoulli")
    x, noise = torch.randn(5, 4).double(), torch.randn(5, 6, 3).double()
    order = torch.arange(5)[:, None].expand(5, 6)

    def losses() -> Tensor:
        # The first layer runs once for each example, the second once for each sample.
        drawn = model[0](x)[:, None] + noise
        if samples_first:
            return model[1](drawn.transpose(0, 1).reshape(30, 3)).reshape(6, 5, 2).sin().mean((0, 2))
        return model[1](drawn.reshape(30, 3)).reshape(5, 6, 2).sin().mean((1, 2))

    check(model, list(model), losses, (order.T if samples_first else order).reshape(-1))


def test_a_layer_that_is_called_several_times_has_one_gradient() -> None:
    torch.manual_seed(5)
    model = nn.Linear(3, 3).double()
    dagfisher.declare(model, "bernoulli", calls="positions")
    x = torch.randn(4, 3).double()
    check(model, [model], lambda: model(model(x).sin()).sin().sum(1))


def test_a_summed_loss_gives_the_same_norms_as_its_mean() -> None:
    found = []
    for reduction in ("mean", "sum"):
        torch.manual_seed(6)
        model = nn.Linear(3, 2)
        dagfisher.declare(model, "bernoulli")
        opt = exact(model.parameters(), loss_reduction=reduction)
        with opt.example_norms() as norms:
            losses = model(torch.linspace(-1, 1, 12).reshape(4, 3)).sin().sum(1)
            (losses.mean() if reduction == "mean" else losses.sum()).backward()
        opt.step()
        found.append(torch.stack([norms.gradient, norms.natural, norms.fisher]))
    torch.testing.assert_close(found[0], found[1])


def test_gradients_and_fisher_are_as_without_the_block_and_nothing_stays_behind() -> None:
    states = []
    for looks in (False, True):
        torch.manual_seed(7)
        model = nn.Linear(3, 2)
        dagfisher.declare(model, "bernoulli")
        before = len(model._forward_hooks)
        opt = exact(model.parameters())
        for _ in range(3):
            losses = lambda: model(torch.randn(4, 3)).sin().sum(1)  # noqa: B023, E731
            if looks:
                run(opt, losses)
            else:
                opt.zero_grad()
                losses().mean().backward()
                opt.step()
        assert len(model._forward_hooks) == before
        states.append(model.weight.detach().clone())
    assert torch.equal(*states)


def test_what_cannot_be_known_is_refused() -> None:
    model = nn.Linear(3, 2)
    dagfisher.declare(model, "bernoulli")
    opt = exact(model.parameters())
    with opt.example_norms() as norms:
        pass
    with pytest.raises(MissingStatisticsError, match="ran inside the block"):
        norms.gradient  # noqa: B018
    with opt.example_norms() as norms:
        model(torch.randn(4, 3)).sum().backward()
    assert norms.gradient.shape == (4,)
    with pytest.raises(MissingStatisticsError, match="call step"):
        norms.natural  # noqa: B018
    with pytest.raises(ShapeError, match="same number of samples"):
        opt.example_norms(torch.tensor([0, 0, 1]))
    with opt.example_norms(torch.tensor([0, 0, 1, 1, 2, 2])) as norms:
        model(torch.randn(4, 3)).sum().backward()
    with pytest.raises(ShapeError, match="4 samples"):
        norms.gradient  # noqa: B018
