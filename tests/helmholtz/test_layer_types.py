"""Machines of Gaussian, convolutional and transposed layers: against dense machines with tied weights, closed forms
and sampling."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dagfisher.errors import ShapeError
from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.nn import (
    BernoulliConv2d,
    BernoulliConvTranspose2d,
    BernoulliLinear,
    GaussianConv2d,
    GaussianConvTranspose2d,
    GaussianLinear,
    Prior,
    StochasticLayer,
)

F64 = torch.float64
SHAPE = (1, 5, 4)
PIXELS, HIDDEN = 20, 2 * 3 * 2


def bottom(kind: str, gaussian: bool) -> tuple[StochasticLayer, StochasticLayer]:
    """A bottom pair: 5×4 pixels below, two channels of 3×2 units above, each side dense or convolutional."""
    conv = {"kernel_size": 3, "stride": 2, "padding": 1, "dtype": F64}
    upward, downward = kind.split("/")
    p: StochasticLayer
    q: StochasticLayer
    if downward == "deconv":
        make = GaussianConvTranspose2d if gaussian else BernoulliConvTranspose2d
        more = {"min_std": 0.05} if gaussian else {"states": (-1, 1)}
        p = make(2, 1, output_padding=(0, 1), **conv, **more)  # type: ignore[arg-type]
    elif gaussian:
        p = GaussianLinear(HIDDEN, PIXELS, min_std=0.05, dtype=F64)
    else:
        p = BernoulliLinear(HIDDEN, PIXELS, states=(-1, 1), dtype=F64)
    if upward == "conv":
        q = BernoulliConv2d(1, 2, states=(-1, 1), **conv)  # type: ignore[arg-type]
    else:
        q = BernoulliLinear(PIXELS, HIDDEN, states=(-1, 1), dtype=F64)
    return p, q


def machine_of(kind: str, gaussian: bool) -> HelmholtzMachine:
    top = (BernoulliLinear(3, HIDDEN, states=(-1, 1), dtype=F64), BernoulliLinear(HIDDEN, 3, states=(-1, 1), dtype=F64))
    prior = Prior(3, states=(-1, 1), dtype=F64)
    machine = HelmholtzMachine([bottom(kind, gaussian), top], prior=prior, shape=SHAPE)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return machine


def unrolled(machine: HelmholtzMachine, network: str) -> tuple[Tensor, Tensor]:
    """Weight and bias of the dense layer that the bottom layer of a network is, differentiable about its own."""
    run, width = (machine.up, PIXELS) if network == "recognition" else (machine.down, HIDDEN)
    bias = run(0, torch.zeros(1, width, dtype=F64))
    return (run(0, torch.eye(width, dtype=F64)) - bias).T, bias[0]


def tied(machine: HelmholtzMachine, gaussian: bool) -> HelmholtzMachine:
    """The same machine, of dense layers only."""
    twin = machine_of("dense/dense", gaussian)
    for side, mine in (("generative", twin.generative), ("recognition", twin.recognition)):
        theirs = getattr(machine, side)
        mine[1].load_state_dict(theirs[1].state_dict())
        weight, bias = unrolled(machine, side)
        with torch.no_grad():
            mine[0].weight.copy_(weight)
            mine[0].bias.copy_(bias)
    twin.prior.load_state_dict(machine.prior.state_dict())
    return twin


X = torch.rand(3, PIXELS, dtype=F64, generator=torch.Generator().manual_seed(0)).round()
GREY = torch.rand(3, PIXELS, dtype=F64, generator=torch.Generator().manual_seed(1))
KINDS = ["conv/dense", "dense/deconv", "conv/deconv"]


@pytest.mark.parametrize("gaussian", [False, True], ids=["bernoulli", "gaussian"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["ws", "rws", "bihm"])
def test_a_convolutional_machine_is_a_dense_machine_with_tied_weights(
    kind: str, algorithm: str, gaussian: bool
) -> None:
    """The same draws give the same likelihood, and gradients that follow from the dense ones by the chain rule."""
    machine = machine_of(kind, gaussian)
    twin = tied(machine, gaussian)
    data = GREY if gaussian else X
    found = [Trainer(m, algorithm, lr=0.0, samples=4, seed=3).step(data) for m in (machine, twin)]
    torch.testing.assert_close(found[0], found[1])
    for side in ("generative", "recognition"):
        mine, theirs = getattr(machine, side)[0], getattr(twin, side)[0]
        weight, bias = unrolled(machine, side)
        wanted = torch.autograd.grad([weight, bias], [mine.weight, mine.bias], [theirs.weight.grad, theirs.bias.grad])
        torch.testing.assert_close(mine.weight.grad, wanted[0])
        torch.testing.assert_close(mine.bias.grad, wanted[1])
        above = [p.grad for p in getattr(machine, side)[1].parameters()]
        torch.testing.assert_close(above, [p.grad for p in getattr(twin, side)[1].parameters()])


@pytest.mark.parametrize("gaussian", [False, True], ids=["bernoulli", "gaussian"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fisher", ["wake", "dream"])
def test_the_blocks_of_a_convolutional_machine_are_sums_of_dense_ones(kind: str, gaussian: bool, fisher: str) -> None:
    """F of a channel is Σ Jᵀ F_u J over its units u, J the dense weights of u about the channel's own."""
    machine = machine_of(kind, gaussian)
    twin = tied(machine, gaussian)
    alpha = 0.3
    blocks = []
    for m in (machine, twin):
        trainer = Trainer(m, "nrws", lr=0.0, samples=4, seed=3, damping=alpha, solver="dense", fisher=fisher)
        trainer.step(GREY if gaussian else X)
        optimizer: object = trainer.optimizer
        found = {}
        for side in ("generative", "recognition"):
            damped = optimizer.fisher_blocks(getattr(m, side)[0].weight) * (1 + alpha)  # type: ignore[attr-defined]
            found[side] = damped - alpha * torch.eye(damped.shape[1], dtype=F64)
        blocks.append(found)
    for side in ("generative", "recognition"):
        layer = getattr(machine, side)[0]
        channels = layer.bias.shape[0]
        if not hasattr(layer, "kernel_size"):
            torch.testing.assert_close(blocks[0][side], blocks[1][side], rtol=1e-9, atol=1e-9)
            continue
        weight, bias = unrolled(machine, side)
        dense = torch.cat([weight, bias[:, None]], 1).reshape(channels, -1, weight.shape[1] + 1)
        units = blocks[1][side].reshape(channels, dense.shape[1], *blocks[1][side].shape[1:])
        for channel in range(channels):
            wanted = torch.zeros_like(blocks[0][side][channel])
            for unit in range(dense.shape[1]):
                rows = []
                for entry in dense[channel, unit]:
                    dw, db = torch.autograd.grad(
                        entry, [layer.weight, layer.bias], retain_graph=True, allow_unused=True, materialize_grads=True
                    )
                    own = dw[channel] if side == "recognition" else dw[:, channel]
                    rows.append(torch.cat([own.reshape(-1), db[channel].reshape(1)]))
                jacobian = torch.stack(rows)
                wanted += jacobian.T @ units[channel, unit] @ jacobian
            torch.testing.assert_close(blocks[0][side][channel], wanted, rtol=1e-9, atol=1e-9)


def test_states_stay_flat_and_shapes_are_known() -> None:
    machine = machine_of("conv/deconv", False)
    assert machine.shapes == [(1, 5, 4), (2, 3, 2), (3,)]
    assert machine.sizes == [20, 12, 3] and machine.visible == 20
    assert machine.extra_repr() == "1×5×4-2×3×2-3"
    assert [h.shape for h in machine.infer(X)] == [(3, 12), (3, 3)]
    assert machine.sample(6).shape == (6, 20)
    assert machine.reconstruct(X.reshape(3, 1, 5, 4), depth=2).shape == (3, 20)
    assert machine_of("dense/deconv", False).shapes == machine.shapes
    assert machine_of("conv/dense", False).shapes == machine.shapes
    assert machine_of("dense/dense", False).shapes == [(1, 5, 4), (12,), (3,)]


@pytest.mark.parametrize("kind", [*KINDS, "dense/dense"])
@pytest.mark.parametrize("gaussian", [False, True])
def test_importance_sampling_agrees_with_the_sum_over_all_states(kind: str, gaussian: bool) -> None:
    machine = machine_of(kind, gaussian)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.mul_(0.5)
    data = GREY if gaussian else X
    exact = machine.exact_log_likelihood(data)
    found = estimate(machine, data, 40_000, generator=torch.Generator().manual_seed(0))
    error = 5 * (1 / found.effective_samples).sqrt()
    assert found.effective_samples.min() > 50
    assert ((found.log_p - exact).abs() <= error).all()


def test_a_linear_gaussian_machine_has_the_likelihood_of_its_normal_distribution() -> None:
    """One hidden unit: the posterior is normal and linear in x, so with that q a single sample is exact."""
    machine = HelmholtzMachine([3, 1], families="gaussian", min_std=0.0).double()
    w, b, sigma = torch.tensor([[0.7], [-0.4], [1.1]], dtype=F64), torch.tensor([0.1, 0.2, -0.3], dtype=F64), 0.5
    mu, tau = 0.3, 0.8
    p, q = machine.generative[0], machine.recognition[0]
    precision = tau**-2 + float((w**2).sum()) / sigma**2
    with torch.no_grad():
        p.weight.copy_(torch.cat([w, torch.zeros(3, 1)]))
        p.bias.copy_(torch.cat([b, torch.full((3,), math.log(sigma))]))
        machine.prior.bias.copy_(torch.tensor([mu, math.log(tau)]))
        q.weight.copy_(torch.cat([w.T / sigma**2 / precision, torch.zeros(1, 3)]))
        offset = (mu / tau**2 - float(w[:, 0] @ b) / sigma**2) / precision
        q.bias.copy_(torch.tensor([offset, -0.5 * math.log(precision)]))
    x = torch.rand(5, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    covariance = tau**2 * w @ w.T + sigma**2 * torch.eye(3, dtype=F64)
    normal = torch.distributions.MultivariateNormal(w[:, 0] * mu + b, covariance)
    wanted = normal.log_prob(2 * x - 1) + 3 * math.log(2)
    found = estimate(machine, x, 1, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.log_p, wanted)
    torch.testing.assert_close(found.log_p_star, wanted)


def test_the_second_moment_of_a_gaussian_layer_is_diagonal_about_its_mean() -> None:
    """E[hhᵀ] = μμᵀ + diag(σ²); the thesis prints μμᵀ + σσᵀ (7.17), which 200,000 draws contradict."""
    layer = GaussianLinear(2, 3, dtype=F64)
    parents = torch.tensor([0.5, -1.0], dtype=F64)
    with torch.no_grad():
        mean, log_std = layer(parents).chunk(2)
    h = layer.sample(parents.expand(200_000, -1), torch.Generator().manual_seed(0))
    found = h.T @ h / len(h)
    wanted = torch.outer(mean, mean) + torch.diag((2 * log_std).exp())
    bound = 6 * (h.unsqueeze(2) * h.unsqueeze(1)).std(0) / math.sqrt(len(h))
    assert ((found - wanted).abs() <= bound).all()
    printed = torch.outer(mean, mean) + torch.outer(log_std.exp(), log_std.exp())
    assert ((found - printed).abs() > bound).any()


@pytest.mark.parametrize("algorithm", ["rws", "nrws", "nbihm", "dnrws"])
@pytest.mark.parametrize(
    "families",
    ["gaussian", ["gaussian", "bernoulli", "gaussian"], ["bernoulli", "gaussian", "bernoulli"]],
    ids=["gaussian", "gaussian-bernoulli-gaussian", "bernoulli-gaussian-bernoulli"],
)
def test_mixed_machines_learn(algorithm: str, families: str | list[str]) -> None:
    """Two patterns of six pixels with a little noise: the likelihood rises by more than a nat."""
    generator = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine([6, 4, 2], families=families, min_std=0.1)
    machine.reset_parameters(generator=generator)
    pattern = torch.tensor([[0.9, 0.9, 0.9, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.9, 0.9, 0.9]])
    x = pattern[torch.randint(2, (400,), generator=generator)]
    x = (x + 0.05 * torch.randn(x.shape, generator=generator)).clamp(0, 1)
    if families[0] == "bernoulli":
        x = x.round()
    settings = {"lr": 0.01} if algorithm == "rws" else {"lr": 0.03, "update_every": 1}
    trainer = Trainer(machine, algorithm, samples=5, **settings)  # type: ignore[arg-type]
    before, after = [], []
    for record, steps in ((before, 0), (after, 150)):
        for _ in range(steps):
            trainer.step(x[torch.randint(400, (32,), generator=generator)])
        found = machine.log_likelihood(x[:100], 200, generator=torch.Generator().manual_seed(1))
        record.append(float(found.mean()))
    assert after[0] > before[0] + 1


def test_no_standard_deviation_falls_below_the_bound() -> None:
    layer = GaussianConv2d(1, 2, 3, min_std=0.2)
    torch.nn.init.constant_(layer.bias, -50.0)
    predictor = layer(torch.zeros(1, 1, 4, 4)).flatten(1)
    assert layer.family.moments(predictor)[1].exp().min() >= 0.2 * (1 - 1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("pairs", "shape", "sentence"),
    [
        ([bottom("conv/dense", False)], None, "needs the shape of its data"),
        ([bottom("conv/dense", False)], (1, 28), "takes 1 channels and 2 spatial dimensions"),
        ([bottom("conv/dense", False)], (1, 7, 7), "but there are 2×4×4"),
        ([bottom("dense/deconv", False)], (20,), "have the shape 20"),
        ([bottom("dense/deconv", False)], (1, 4, 5), "cannot make 1×4×5"),
        ([(bottom("dense/deconv", False)[0], BernoulliLinear(20, 5))], SHAPE, "give the dense layer 12 units"),
        ([(BernoulliConv2d(2, 1, 3), BernoulliLinear(20, 12))], SHAPE, "use a transposed convolution"),
        ([(BernoulliLinear(12, 21), BernoulliLinear(20, 12))], None, "makes 21 units"),
        ([(BernoulliLinear(9, 20), BernoulliLinear(20, 9))], None, "and its prior 12"),
    ],
)
def test_layers_that_do_not_fit_are_named(
    pairs: list[tuple[StochasticLayer, StochasticLayer]], shape: tuple[int, ...] | None, sentence: str
) -> None:
    with pytest.raises(ShapeError, match=sentence):
        HelmholtzMachine(pairs, prior=Prior(12), shape=shape)


def test_families_and_states_that_cannot_be_are_named() -> None:
    with pytest.raises(ShapeError, match="for each of 3 layers"):
        HelmholtzMachine([4, 3, 2], families=["gaussian", "bernoulli"])
    with pytest.raises(ShapeError, match="'bernoulli' or 'gaussian'"):
        HelmholtzMachine([4, 3], families="poisson")
    with pytest.raises(ShapeError, match="units that are not Bernoulli"):
        HelmholtzMachine([4, 3], families="gaussian").exact_log_likelihood(torch.zeros(1, 4))
