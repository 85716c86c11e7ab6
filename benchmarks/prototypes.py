"""Figures of the prototypes that the library was planned from, measured again with the library.

    python benchmarks/prototypes.py             # a minute of one core
    python benchmarks/prototypes.py --table     # what was kept

Fully visible belief nets on miniMNIST B: independent pixels, 5,000 steps of Adam, 50 natural steps. Masked blocks: how
many conjugate-gradient iterations an error of one per cent takes, with two preconditioners, written here in plain
PyTorch; and a natural gradient of the library beside dense blocks. The product with coupled blocks. Other prototypes
have programs of their own: `second_moment.py`, `examples/softmax_regression.py`, `examples/probe_layers.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.app import table
from dagfisher.nn import MaskedBernoulliLinear

RESULTS = Path(__file__).parent / "results" / "prototypes.json"
PIXELS, ROWS, DAMPING = 196, 500, 0.1
PROTOTYPES = {
    "independent pixels, test log-likelihood": "-49.55",
    "fully visible, Adam, 5,000 steps of 100": "-33.66",
    "fully visible, 50 natural steps of 2,000": "-33.69",
    "masked blocks, iterations to an error of 1 %, shared basis": "3",
    "the same, Jacobi": "5",
    "masked blocks, dense over matrix-free, time of a natural gradient": "9.6",
    "error of the matrix-free coupled product": "3e-15",
}
"""What is measured, and what the prototype had."""


def images() -> tuple[Tensor, Tensor]:
    data = datasets.load("mini-mnist")
    return data.evaluation("train").float(), data.evaluation("test").float()


def independent(train: Tensor, test: Tensor) -> float:
    """The log-likelihood of test images if each pixel has its mean over the training images, with one more of each."""
    mean = (train.sum(0) + 1) / (len(train) + 2)
    return float((test * mean.log() + (1 - test) * (1 - mean).log()).sum(1).mean())


def belief_net(
    make: Callable[[nn.Module], torch.optim.Optimizer], steps: int, batch: int, train: Tensor
) -> MaskedBernoulliLinear:
    """Each pixel given those before it, after some steps from zero, with a rate that falls in the second half."""
    net = MaskedBernoulliLinear(torch.ones(PIXELS, PIXELS).tril(-1))
    for p in net.parameters():
        nn.init.zeros_(p)
    opt, generator = make(net), torch.Generator().manual_seed(0)
    rate = opt.param_groups[0]["lr"]
    for step in range(steps):
        opt.param_groups[0]["lr"] = rate * min(1.0, 2 * (1 - step / steps))
        x = train[torch.randint(len(train), (batch,), generator=generator)]
        opt.zero_grad()
        (-net.log_prob(x, x).mean()).backward()
        opt.step()
    return net


class Blocks:
    """The damped masked blocks of a layer, as products with all of them at once."""

    def __init__(self, rows: Tensor, weights: Tensor, mask: Tensor) -> None:
        self.rows, self.weights, self.mask = rows, weights, mask

    def product(self, x: Tensor) -> Tensor:
        """αX + M∘(((XUᵀ)∘qᵀ)U), (units × d)."""
        return DAMPING * x + self.mask * (((x @ self.rows.T) * self.weights.T) @ self.rows)

    def solved(self, g: Tensor) -> Tensor:
        """By Cholesky factors of dense blocks."""
        blocks = torch.einsum("nd,nj,ne->jde", self.rows, self.weights, self.rows)
        blocks = blocks * self.mask[:, :, None] * self.mask[:, None] + DAMPING * torch.eye(self.rows.shape[1])
        return torch.cholesky_solve(g.unsqueeze(-1), torch.linalg.cholesky(blocks)).squeeze(-1)

    def in_a_basis(self) -> Callable[[Tensor], Tensor]:
        """α + c_j λ in the eigenbasis of the mean of u uᵀ, c_j the sum of the weights of unit j."""
        eigenvalues, basis = torch.linalg.eigh(self.rows.T @ self.rows / len(self.rows))
        scale = DAMPING + self.weights.sum(0)[:, None] * eigenvalues.clamp_min(0)
        return lambda r: self.mask * ((r @ basis / scale) @ basis.T)

    def by_diagonal(self) -> Callable[[Tensor], Tensor]:
        """The diagonal of each block."""
        diagonal = DAMPING + self.mask * (self.weights.T @ self.rows.square())
        return lambda r: r / diagonal


def iterations(blocks: Blocks, g: Tensor, precondition: Callable[[Tensor], Tensor], most: int = 50) -> int:
    """Conjugate-gradient iterations, all units at once, until the error of the layer is one per cent."""
    exact, x, r = blocks.solved(g), torch.zeros_like(g), g
    z = precondition(r)
    p, old = z, (r * z).sum(1, keepdim=True)
    for count in range(1, most + 1):
        y = blocks.product(p)
        step = old / (p * y).sum(1, keepdim=True).clamp_min(1e-30)
        x, r = x + step * p, r - step * y
        if float((x - exact).norm() / exact.norm()) < 0.01:
            return count
        z = precondition(r)
        new = (r * z).sum(1, keepdim=True)
        p, old = z + new / old.clamp_min(1e-30) * p, new
    return most


def times(net: MaskedBernoulliLinear, x: Tensor) -> float:
    """A fresh natural gradient by dense blocks over one by conjugate gradients, medians of five."""
    seconds: dict[str, list[float]] = {"dense": [], "conjugate": []}
    for _ in range(5):
        for solver, taken in seconds.items():
            opt = DAGNaturalGradient(net.parameters(), lr=0.0, damping=DAMPING, solver=solver)
            opt.zero_grad()
            (-net.log_prob(x, x).mean()).backward()
            began = time.process_time()
            opt.step()
            taken.append(time.process_time() - began)
    return statistics.median(seconds["dense"]) / statistics.median(seconds["conjugate"])


def coupled_product() -> float:
    """The largest error of diag(π) − ππᵀ as B = π∘A − π∘Σ_c π_c A_c, against the dense block of a variable."""
    torch.manual_seed(0)
    rows, x = torch.randn(40, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    pi, w = torch.randn(40, 5, dtype=torch.float64).softmax(1), torch.full((40, 1), 1 / 40, dtype=torch.float64)
    a = rows @ x.T
    found = (w * (pi * a - pi * (pi * a).sum(1, keepdim=True))).T @ rows
    q = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None]
    dense = torch.einsum("nk,ncb,nd,ne->cdbe", w, q, rows, rows).reshape(35, 35)
    return float((dense @ x.reshape(-1) - found.reshape(-1)).abs().max())


def measure() -> dict[str, str]:
    """Each figure of `PROTOTYPES`, as text."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, test = images()
    adam = belief_net(lambda net: torch.optim.Adam(net.parameters(), lr=0.01), 5000, 100, train)
    natural = belief_net(lambda net: DAGNaturalGradient(net.parameters(), lr=1.0, damping=0.01), 50, 2000, train)
    with torch.no_grad():
        values = [float(net.log_prob(test, test).mean()) for net in (adam, natural)]
    x = train[:ROWS]
    natural.zero_grad()
    (-natural.log_prob(x, x).mean()).backward()
    rows = torch.cat([x, torch.ones(ROWS, 1)], 1)
    mask = torch.cat([natural.mask.float(), torch.ones(PIXELS, 1)], 1)
    assert natural.weight.grad is not None and natural.bias.grad is not None
    g = mask * torch.cat([natural.weight.grad, natural.bias.grad[:, None]], 1)
    rho = torch.sigmoid(natural(x)).detach()
    blocks = Blocks(rows, rho * (1 - rho) / ROWS, mask)
    found = [
        *(f"{value:.2f}" for value in (independent(train, test), *values)),
        *(f"{iterations(blocks, g, how)}" for how in (blocks.in_a_basis(), blocks.by_diagonal())),
        f"{times(natural, x):.0f}",
        f"{coupled_product():.0e}",
    ]
    return dict(zip(PROTOTYPES, found, strict=True))


def show(found: dict[str, Any]) -> str:
    """The figures beside those of the prototypes."""
    return table(["", "prototype", "here"], [[name, PROTOTYPES[name], found[name]] for name in PROTOTYPES])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    if not parser.parse_args().table:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    print(show(json.loads(RESULTS.read_text())))
