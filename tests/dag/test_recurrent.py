"""A recurrent belief network: the cells' blocks are the whole Fisher matrix of the network unrolled in time."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from exact import exact
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import DAGNaturalGradient

F64 = torch.float64
ALPHA = 0.3
HIDDEN, VISIBLE, TIMES = 2, 1, 3
UNITS = HIDDEN + VISIBLE


class Recurrent(nn.Module):
    """h_t given (h_{t−1}, x_{t−1}), then x_t given h_t, all binary; the same weights at every time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.cell = nn.Linear(UNITS, HIDDEN, dtype=F64)
        self.out = nn.Linear(HIDDEN, VISIBLE, dtype=F64)
        for p in self.parameters():
            nn.init.normal_(p)

    def forward(self, states: Tensor) -> Tensor:
        """log p of all units at all times, (…), from their states, (… × times × units), hidden ones first."""
        before, total = torch.zeros_like(states[..., 0, :]), torch.zeros((), dtype=F64)
        for t in range(states.shape[-2]):
            now = states[..., t, :]
            total = total + log_prob(self.cell(before), now[..., :HIDDEN])
            total = total + log_prob(self.out(now[..., :HIDDEN]), now[..., HIDDEN:])
            before = now
        return total


class Expanded(nn.Module):
    """The same network with weights of its own at each time."""

    def __init__(self, tied: Recurrent) -> None:
        super().__init__()
        self.cells, self.outs = (nn.ModuleList(nn.Linear(a, b, dtype=F64) for _ in range(TIMES)) for a, b in SHAPES)
        for copies, own in ((self.cells, tied.cell), (self.outs, tied.out)):
            for copy in copies:
                copy.load_state_dict(own.state_dict())

    def forward(self, states: Tensor) -> Tensor:
        before = torch.cat([torch.zeros_like(states[..., :1, :]), states[..., :-1, :]], -2)
        hidden, visible = states.split([HIDDEN, VISIBLE], -1)
        given = [log_prob(cell(before[..., t, :]), hidden[..., t, :]) for t, cell in enumerate(self.cells)]
        return sum(given) + sum(log_prob(out(hidden[..., t, :]), visible[..., t, :]) for t, out in enumerate(self.outs))


SHAPES = ((UNITS, HIDDEN), (HIDDEN, VISIBLE))


def log_prob(logits: Tensor, units: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(logits, units, reduction="none").sum(-1)


def outcomes() -> Tensor:
    """All states of all units at all times, (2^(units·times) × times × units)."""
    return torch.tensor(list(product((0.0, 1.0), repeat=UNITS * TIMES)), dtype=F64).view(-1, TIMES, UNITS)


def full_fisher(net: nn.Module) -> tuple[Tensor, Tensor, list[str]]:
    """E[score scoreᵀ] by enumeration and autograd; the probabilities of the outcomes; the units of the rows.

    The parameters are ordered by layer and unit, weights before the bias.
    """
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    states = outcomes()
    scores = vmap(grad(lambda p, s: functional_call(net, p, (s,))), (None, 0))(parameters, states)
    columns, units = [], []
    for name in (name.removesuffix(".weight") for name in parameters if name.endswith("weight")):
        joined = torch.cat([scores[f"{name}.weight"], scores[f"{name}.bias"].unsqueeze(2)], 2)
        columns.append(joined.flatten(1))
        units += [f"{name} {unit}" for unit in range(joined.shape[1]) for _ in range(joined.shape[2])]
    p = torch.exp(net(states)).detach()
    flat = torch.cat(columns, 1)
    return (flat.T * p) @ flat, p, units


def declared(**reading: str) -> Recurrent:
    net = Recurrent()
    for layer in (net.cell, net.out):
        dagfisher.declare(layer, "bernoulli", **reading)
    return net


def blocks_of(opt: DAGNaturalGradient, layer: nn.Linear) -> Tensor:
    found = opt.fisher_blocks(layer.weight) * (1 + ALPHA)
    return found - ALPHA * torch.eye(found.shape[1], dtype=F64)


def test_probabilities_sum_to_one() -> None:
    torch.testing.assert_close(torch.exp(Recurrent()(outcomes())).sum(), torch.tensor(1.0, dtype=F64))


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate"])
def test_the_summed_blocks_are_the_whole_fisher_matrix(solver: str) -> None:
    """Each outcome is a sample with its probability as weight; between units there is nothing to leave out."""
    net = declared(calls="positions")
    full, p, _ = full_fisher(net)
    opt = exact(net.parameters(), damping=ALPHA, solver=solver, tolerance=1e-13)
    with dagfisher.sample_weights(p):
        (p @ net(outcomes())).backward()
    blocks = [block for layer in (net.cell, net.out) for block in blocks_of(opt, layer)]
    torch.testing.assert_close(torch.block_diag(*blocks), full, rtol=1e-10, atol=1e-12)


def test_off_the_blocks_the_fisher_matrix_is_zero() -> None:
    full, _, units = full_fisher(Recurrent())
    apart = torch.tensor([[a != b for b in units] for a in units])
    assert full[apart].abs().max() < 1e-14 < 1e-3 < full.diagonal().min()


def test_the_tied_fisher_matrix_is_the_sum_over_the_copies_of_the_expanded_network() -> None:
    """The Fisher matrix of the expanded network is block-diagonal over time too, so that cross terms vanish."""
    net = Recurrent()
    tied, _, of_tied = full_fisher(net)
    expanded, _, of_copies = full_fisher(Expanded(net))
    apart = torch.tensor([[a != b for b in of_copies] for a in of_copies])
    assert expanded[apart].abs().max() < 1e-14
    sharing = torch.block_diag(*(torch.eye((a + 1) * b, dtype=F64).repeat(TIMES, 1) for a, b in SHAPES))
    assert sharing.shape == (len(of_copies), len(of_tied))
    torch.testing.assert_close(sharing.T @ expanded @ sharing, tied)


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate", "auto"])
def test_the_step_is_that_of_the_whole_matrix(solver: str) -> None:
    """For a gradient of any loss, here of log p of one sequence."""
    net = declared(calls="positions")
    full, p, units = full_fisher(net)
    opt = exact(net.parameters(), damping=ALPHA, solver=solver, tolerance=1e-13)
    states = outcomes()
    with dagfisher.sample_weights(p):
        (0 * net(states).sum()).backward()
    with dagfisher.no_capture():
        net(states[77]).backward()

    def flat(vectors: dict[nn.Parameter, Tensor]) -> Tensor:
        layers = (net.cell, net.out)
        return torch.cat([torch.cat([vectors[m.weight], vectors[m.bias].unsqueeze(1)], 1).flatten() for m in layers])

    gradient = flat({parameter: parameter.grad for parameter in net.parameters()})
    wanted = (1 + ALPHA) * torch.linalg.solve(full + ALPHA * torch.eye(len(units), dtype=F64), gradient)
    torch.testing.assert_close(flat(opt.natural_gradient()), wanted, rtol=1e-8, atol=1e-10)


def test_calls_as_samples_give_the_mean_over_time() -> None:
    net = declared()
    full, p, _ = full_fisher(net)
    opt = exact(net.parameters(), damping=ALPHA, solver="dense")
    with dagfisher.sample_weights(p):
        (p @ net(outcomes())).backward()
    blocks = [block for layer in (net.cell, net.out) for block in blocks_of(opt, layer)]
    torch.testing.assert_close(TIMES * torch.block_diag(*blocks), full, rtol=1e-10, atol=1e-12)


def test_a_layer_over_the_whole_sequence_is_the_cell_called_at_each_time() -> None:
    """Given all states, the cell can see all times at once: positions=1."""
    net, states = Recurrent(), outcomes()
    full, p, _ = full_fisher(net)
    for layer in (net.cell, net.out):
        dagfisher.declare(layer, "bernoulli", positions=1)
    opt = exact(net.parameters(), damping=ALPHA, solver="dense")
    before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
    with dagfisher.sample_weights(p):
        total = log_prob(net.cell(before), states[..., :HIDDEN]) + log_prob(
            net.out(states[..., :HIDDEN]), states[..., HIDDEN:]
        )
    (p @ total.sum(1)).backward()
    blocks = [block for layer in (net.cell, net.out) for block in blocks_of(opt, layer)]
    torch.testing.assert_close(torch.block_diag(*blocks), full, rtol=1e-10, atol=1e-12)
