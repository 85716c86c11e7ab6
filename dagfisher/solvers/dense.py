"""Every block built, factored and inverted: exact, for layers with few parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._reading import Asking
from .base import AskingSolver, Cost
from .blocks import products_cost
from .problems import BlockShape, Kind, Problem
from .rates import rates
from .spd import inverting, spd_inverse


@dataclass
class Dense(AskingSolver):
    """Keeps (αI + F_j)⁻¹, blocks × d × d numbers."""

    inverses: Tensor

    name: ClassVar[str] = "dense"
    needs_rows: ClassVar[bool] = False
    needs_damping: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = ("plain", "masked", "coupled")
    by_unit: ClassVar[dict[str, int] | None] = {"inverses": 0}

    @classmethod
    def cost(cls, shape: BlockShape, device: torch.device) -> Cost:
        n, d, units, blocks, update_every, _, classes, _ = shape
        d, units, blocks = classes * d, units // classes, blocks // classes if blocks > 1 else 1
        known = rates(device)
        prepare = blocks * (n * d**2 + known.small_inverse * d**3) + 40 * known.operation
        solve = known.stored * units * d**2 + known.operation
        begin = prepare + solve + (products_cost(n, d, known) if classes == 1 else 0.0)
        return Cost(prepare / update_every + solve, blocks * d**2 + n * d, begin)

    @classmethod
    def asking(cls, problem: Problem) -> Asking[tuple[Dense, Tensor]]:
        solver = cls((yield from inverting(problem.damped_blocks(), jitter=problem.damping > 0)))
        return solver, solver.solve(problem.gradient)

    def solve(self, gradient: Tensor) -> Tensor:
        # The units of a coupled variable are next to each other, and so are their gradients.
        rows = gradient.reshape(-1, self.inverses.shape[-1])
        return left_multiply(rows, self.inverses).reshape(gradient.shape)

    def applying(self, gradient: Tensor) -> float:
        each = 1.0 if len(self.inverses) == 1 else rates(gradient.device).stored
        return each * gradient.numel() * self.inverses.shape[-1]

    def blocks(self) -> Tensor:
        return spd_inverse(self.inverses, jitter=True)


def left_multiply(rows: Tensor, matrices: Tensor) -> Tensor:
    """Row j times matrix j (or the one matrix that all rows share); the vector on the left reads memory in order."""
    if matrices.shape[0] == 1:
        return rows @ matrices[0]
    return torch.bmm(rows.unsqueeze(1), matrices).squeeze(1)
