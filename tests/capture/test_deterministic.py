"""Deterministic layers: Fisher blocks from per-sample derivatives of sampled outputs, computed one sample at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError, MissingStatisticsError

F64 = torch.float64
ALPHA = 0.3


class VAE(nn.Module):
    """Encoder and decoder with a deterministic hidden layer each; z by reparametrisation."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 4), nn.Linear(2, 3)
        self.mean, self.log_var = nn.Linear(4, 2), nn.Linear(4, 2)
        self.out = nn.Linear(3, 5)
        self.act = nn.ReLU(inplace=in_place)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.act(self.encode(x))
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.exp(log_var / 2) * noise
        return self.out(self.act(self.decode(z))), mean, log_var


def declared(model: VAE, **settings: Any) -> VAE:
    dagfisher.declare_gaussian(mean=model.mean, log_var=model.log_var)
    dagfisher.declare(model.out, "bernoulli")
    for layer in (model.encode, model.decode):
        dagfisher.declare(layer, "deterministic", **settings)
    return model


def loss_of(model: VAE, x: Tensor, noise: Tensor) -> Tensor:
    logits, mean, log_var = model(x, noise)
    rest = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum()
    return (F.binary_cross_entropy_with_logits(logits, x, reduction="sum") + rest) / len(x)


def undamped(optimizer: DAGNaturalGradient, parameter: Tensor) -> Tensor:
    blocks = optimizer.fisher_blocks(parameter) * (1 + ALPHA)
    return blocks - ALPHA * torch.eye(blocks.shape[1], dtype=F64)


def case(in_place: bool = False) -> tuple[VAE, Tensor, Tensor]:
    torch.manual_seed(0)
    model = VAE(in_place).to(F64)
    return model, torch.rand(6, 5, dtype=F64).round(), torch.randn(6, 2, dtype=F64)


def draws(model: VAE, x: Tensor, noise: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs that sample_fisher draws: z's noise, then the pixels, in the order of the optimizer's layers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        logits, mean, log_var = model(x, noise)
    eps = torch.empty_like(mean).normal_(generator=generator)
    pixels = torch.empty_like(logits).uniform_(generator=generator) < torch.sigmoid(logits)
    return mean + torch.exp(log_var / 2) * eps, pixels.to(F64), log_var


def by_hand(model: VAE, x: Tensor, noise: Tensor, seed: int, weights: Tensor) -> dict[str, Tensor]:
    """Σ w_k g_k g_kᵀ with g_k the gradient of log q(z_k|x_k) + log p(x̂_k|z) of one sample, for each unit's own weights.

    z in the decoder is the model's own sample and a constant: the encoder has no part in log p(x̂|z).
    """
    z, pixels, _ = draws(model, x, noise, seed)
    found = {name: 0.0 for name in ("encode", "decode")}
    for k in range(len(x)):
        h = torch.relu(model.encode(x[k]))
        mean, log_var = model.mean(h), model.log_var(h)
        inside = (mean + torch.exp(log_var / 2) * noise[k]).detach()
        log_q = torch.distributions.Normal(mean, torch.exp(log_var / 2)).log_prob(z[k]).sum()
        logits = model.out(torch.relu(model.decode(inside)))
        log_p = -F.binary_cross_entropy_with_logits(logits, pixels[k], reduction="sum")
        for name, log in (("encode", log_q), ("decode", log_p)):
            layer = getattr(model, name)
            dw, db = torch.autograd.grad(log, [layer.weight, layer.bias], retain_graph=True)
            g = torch.cat([dw, db[:, None]], 1)
            found[name] = found[name] + weights[k] / weights.sum() * g.unsqueeze(2) * g.unsqueeze(1)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("zero_grad_between", [False, True])
def test_sampled_blocks_are_those_of_per_sample_gradients(
    in_place: bool, weighted: bool, zero_grad_between: bool
) -> None:
    model, x, noise = case(in_place)
    weights = torch.rand(6, dtype=F64) if weighted else torch.ones(6, dtype=F64)
    wanted = by_hand(model, x, noise, 7, weights)
    declared(model)
    optimizer = exact(model.parameters(), damping=ALPHA, solver="dense")
    optimizer.zero_grad()
    with dagfisher.sample_weights(weights):
        loss = loss_of(model, x, noise)
    optimizer.sample_fisher(torch.Generator().manual_seed(7))
    if zero_grad_between:
        optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    loss.backward()
    for name in ("encode", "decode"):
        torch.testing.assert_close(undamped(optimizer, getattr(model, name).weight), wanted[name], rtol=1e-8, atol=1e-9)
    optimizer.step()


def test_the_gradients_of_the_loss_are_not_touched() -> None:
    model, x, noise = case()
    loss_of(model, x, noise).backward()
    wanted = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    optimizer = exact(declared(model).parameters(), damping=ALPHA)
    loss = loss_of(model, x, noise)
    optimizer.sample_fisher()
    loss.backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_empirical_blocks_are_those_of_the_loss(reduction: str) -> None:
    model, x, noise = case()
    wanted: Any = 0.0
    for k in range(len(x)):
        loss = loss_of(model, x[k : k + 1], noise[k : k + 1])
        dw, db = torch.autograd.grad(loss, [model.encode.weight, model.encode.bias])
        g = torch.cat([dw, db[:, None]], 1)
        wanted = wanted + g.unsqueeze(2) * g.unsqueeze(1) / len(x)
    declared(model, fisher="empirical", reduction=reduction)
    optimizer = exact(model.parameters(), damping=ALPHA, solver="dense")
    loss = loss_of(model, x, noise) * (1 if reduction == "mean" else len(x))
    loss.backward()
    torch.testing.assert_close(undamped(optimizer, model.encode.weight), wanted, rtol=1e-8, atol=1e-9)


def test_the_sampled_fisher_is_the_true_one_in_expectation() -> None:
    """One deterministic layer under a Bernoulli layer: the unit-wise blocks of the exact Fisher, by summing over x̂."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).to(F64)
    x = torch.randn(4, 3, dtype=F64)
    states = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=F64)
    wanted: Any = 0.0
    for row in x:
        for y in states:
            logits = model(row)
            log_p = -F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
            dw, db = torch.autograd.grad(log_p, [model[0].weight, model[0].bias], retain_graph=True)
            g = torch.cat([dw, db[:, None]], 1)
            wanted = wanted + log_p.exp().detach() / len(x) * g.unsqueeze(2) * g.unsqueeze(1)
    dagfisher.declare(model[0], "deterministic")
    dagfisher.declare(model[2], "bernoulli")
    optimizer = exact(model.parameters(), damping=ALPHA, solver="dense")
    many = x.repeat(20_000, 1)
    loss = model(many).sum()
    optimizer.sample_fisher(torch.Generator().manual_seed(0))
    loss.backward()
    torch.testing.assert_close(undamped(optimizer, model[0].weight), wanted, rtol=0.03, atol=2e-3)


def parents_seen(hidden: Any, x: Tensor) -> Tensor:
    """The parent that each weight of a channel sees at each position, and 1 for the bias, (rows × 19)."""
    transposed = isinstance(hidden, nn.ConvTranspose2d)
    columns = []
    with torch.no_grad():
        for basis in torch.eye(18, dtype=F64):
            probe = torch.zeros_like(hidden.weight)
            own = probe[:, 0] if transposed else probe[0]
            own.copy_(basis.reshape(own.shape))
            run = F.conv_transpose2d if transposed else F.conv2d
            columns.append(run(x, probe, padding=1)[:, 0])
    return torch.stack([*columns, torch.ones_like(columns[0])], -1).reshape(-1, 19)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_convolutions_sum_over_positions(kind: Any) -> None:
    """The block of a channel is Σ δ² u uᵀ over samples and positions; what couples positions is left out."""
    torch.manual_seed(0)
    hidden, out = kind(2, 3, 3, padding=1).to(F64), nn.Conv2d(3, 1, 1).to(F64)
    x = torch.randn(2, 2, 4, 5, dtype=F64)
    a = hidden(x)
    logits = out(torch.tanh(a))
    noise = torch.empty_like(logits.movedim(1, -1)).uniform_(generator=torch.Generator().manual_seed(3))
    y = (noise.movedim(-1, 1) < torch.sigmoid(logits)).to(F64)
    delta = torch.autograd.grad(-F.binary_cross_entropy_with_logits(logits, y, reduction="sum"), a)[0]
    u = parents_seen(hidden, x)
    wanted = torch.stack([u.T @ (delta[:, unit].reshape(-1, 1) ** 2 * u) / len(x) for unit in range(3)])
    dagfisher.declare(hidden, "deterministic")
    dagfisher.declare(out, "bernoulli")
    model = nn.ModuleList([hidden, out])
    optimizer = exact(model.parameters(), damping=ALPHA, solver="dense")
    loss = out(torch.tanh(hidden(x))).sum()
    optimizer.sample_fisher(torch.Generator().manual_seed(3))
    loss.backward()
    torch.testing.assert_close(undamped(optimizer, hidden.weight), wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_empirical_fisher_of_a_convolution_is_scaled_by_samples_and_not_by_positions(reduction: str) -> None:
    torch.manual_seed(0)
    hidden = nn.Conv2d(2, 3, 3, padding=1).to(F64)
    x = torch.randn(2, 2, 4, 5, dtype=F64)
    a = hidden(x)
    delta = torch.autograd.grad(torch.tanh(a).square().sum(), a)[0]  # of the loss summed over the samples
    u = parents_seen(hidden, x)
    wanted = torch.stack([u.T @ (delta[:, unit].reshape(-1, 1) ** 2 * u) / len(x) for unit in range(3)])
    dagfisher.declare(hidden, "deterministic", fisher="empirical", reduction=reduction)
    optimizer = exact(hidden.parameters(), damping=ALPHA, solver="dense")
    (torch.tanh(hidden(x)).square().sum() / (len(x) if reduction == "mean" else 1)).backward()
    torch.testing.assert_close(undamped(optimizer, hidden.weight), wanted, rtol=1e-8, atol=1e-9)


def test_nothing_happens_on_a_step_that_reuses() -> None:
    model, x, noise = case()
    optimizer = exact(declared(model).parameters(), lr=0.01, damping=ALPHA, update_every=2)
    for step in range(4):
        loss = loss_of(model, x, noise)
        optimizer.zero_grad()
        if step % 2 == 0:
            optimizer.sample_fisher()
        else:
            state = torch.get_rng_state()
            optimizer.sample_fisher()
            assert torch.equal(torch.get_rng_state(), state)
        loss.backward()
        optimizer.step()


def test_what_is_missing_is_said() -> None:
    model, x, noise = case()
    before = copy.deepcopy(model.state_dict())
    optimizer = exact(declared(model).named_parameters(), damping=ALPHA)
    loss_of(model, x, noise).backward()
    with pytest.raises(MissingStatisticsError, match=r"layer 'encode': .* call optimizer.sample_fisher\(\) after"):
        optimizer.step()
    lonely = nn.Linear(2, 2)
    dagfisher.declare(lonely, "deterministic")
    alone = exact(lonely.parameters())
    lonely(torch.ones(3, 2))
    with pytest.raises(MissingStatisticsError, match="no captured pass of a stochastic layer"):
        alone.sample_fisher()
    with pytest.raises(DeclarationError, match="'sampled' or 'empirical'"):
        dagfisher.declare(nn.Linear(2, 2), "deterministic", fisher="exact")
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
