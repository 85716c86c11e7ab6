"""A solver of your own: the pseudo-inverse, which needs no damping even where a block is singular.

    python examples/extending/eigen_solver.py

Fits a regression with a parent that occurs twice. Its block has no inverse, so that every solver of dagfisher asks for
damping; this one takes the shortest solution. The page `docs/extending.rst` explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher.solvers import BlockShape, Cost, Problem, Solver
from dagfisher.solvers.rates import rates
from dagfisher.testing import check_solver


@dagfisher.register_solver
@dataclass
class Eigen(Solver):
    """Keeps eigenvectors and eigenvalues of αI + F_j; mere rounding counts as 0."""

    vectors: Tensor
    """(blocks × d × d), one eigenvector in each column."""
    values: Tensor
    """(blocks × d)."""
    inverses: Tensor
    """1/values, and 0 where that would be rounding; (blocks × d)."""

    name: ClassVar[str] = "eigen"
    needs_rows: ClassVar[bool] = False  # the blocks are enough, wherever they come from
    needs_damping: ClassVar[bool] = False

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        n, d, units, blocks, update_every = shape[:5]
        known = rates(device)  # what operations cost on this type of device
        # Small eigenproblems cost about twice the rate of large ones.
        prepare = blocks * (n * d**2 + 2 * known.eigh * d**3) + 10 * known.operation
        # Each number that is kept is read twice.
        solve = 2 * known.stored * units * d**2 + 3 * known.operation
        return Cost(prepare / update_every + solve, blocks * d * (d + 2))

    @classmethod
    def prepare(cls, problem: Problem) -> Eigen:
        values, vectors = torch.linalg.eigh(problem.damped_blocks())
        rounding = torch.finfo(values.dtype).eps * values.shape[1]
        sound = values > rounding * values.amax(1, keepdim=True)
        inverses = torch.where(sound, 1 / values, 0)
        return cls(vectors, values, inverses)

    def solve(self, gradient: Tensor) -> Tensor:
        along = gradient.unsqueeze(1) @ self.vectors
        return (along * self.inverses.unsqueeze(1) @ self.vectors.mT).squeeze(1)

    def blocks(self) -> Tensor:
        return (self.vectors * self.values.unsqueeze(1)) @ self.vectors.mT


def check() -> None:
    """It solves the blocks, and a solver made of its state does the same."""
    check_solver(Eigen)


def make_data() -> tuple[Tensor, Tensor]:
    """Four parents, of which the last is the first again, and labels that depend on two of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    labels = torch.bernoulli(torch.sigmoid(x[:, :1] - x[:, 1:2]), generator=generator)
    return torch.cat([x, x[:, :1]], dim=1), labels


def fit(solver: str, steps: int = 8) -> tuple[nn.Linear, float]:
    """A logistic regression without damping, and the length of its last gradient."""
    x, labels = make_data()
    layer = nn.Linear(4, 1, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    dagfisher.declare(layer, "bernoulli")
    parameters = layer.parameters()
    opt = dagfisher.DAGNaturalGradient(parameters, lr=1.0, damping=0.0, solver=solver)
    for _ in range(steps):
        opt.zero_grad()
        loss = binary_cross_entropy_with_logits(layer(x), labels)
        loss.backward()
        opt.step()
    return layer, float(layer.weight.grad.norm())


def explain() -> dagfisher.fisher.Choice:
    """What "auto" takes for 50 units with 21 parents and 300 samples."""
    return dagfisher.choose_solver(rows=300, parents=21, units=50, damping=0.1)


if __name__ == "__main__":
    check()
    fitted, length = fit("eigen")
    print("weights:", ", ".join(f"{w:.3f}" for w in fitted.weight[0].tolist()), f"gradient: {length:.1e}")
    try:
        fit("dense")
    except dagfisher.errors.SingularBlockError as error:
        print("dense:", error)
    print(explain())
