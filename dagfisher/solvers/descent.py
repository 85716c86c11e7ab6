"""Preconditioned conjugate gradients on many systems at once, one in each row."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Systems(Protocol):
    """Symmetric positive definite systems, one for each row of a matrix."""

    def product(self, x: Tensor) -> Tensor:
        """Each system's matrix times its row."""

    def precondition(self, residual: Tensor) -> Tensor:
        """About the inverse of each system's matrix times its row, in new memory."""


class Descent:
    """The solution so far, and the vectors that lead on from it, one row for each system."""

    def __init__(self, systems: Systems, gradient: Tensor) -> None:
        self.systems = systems
        self.solution = torch.zeros_like(gradient)
        self.residual = gradient.clone()
        self._direction = systems.precondition(gradient)
        self._size = (gradient * self._direction).sum(1, keepdim=True)
        self._tiny = torch.finfo(gradient.dtype).tiny

    def descend(self, *, last: bool = False) -> None:
        """Go along the direction; the last time, the residual is not needed any more."""
        image = self.systems.product(self._direction)
        length = self._size / (self._direction * image).sum(1, keepdim=True).clamp_min_(self._tiny)
        self.solution.addcmul_(length, self._direction)
        if not last:
            self.residual.addcmul_(length, image, value=-1)

    def turn(self) -> None:
        """Find the next direction."""
        preconditioned = self.systems.precondition(self.residual)
        size = (self.residual * preconditioned).sum(1, keepdim=True)
        self._direction = preconditioned.addcmul_(size / self._size.clamp_min_(self._tiny), self._direction)
        self._size = size


def iterate(systems: Systems, gradient: Tensor, iterations: int) -> Tensor:
    """The solution after so many iterations, at least one; never waits for the device."""
    descent = Descent(systems, gradient)
    for _ in range(iterations - 1):
        descent.descend()
        descent.turn()
    descent.descend(last=True)
    return descent.solution


def calibrate(systems: Systems, gradient: Tensor, goal: float) -> tuple[int, Tensor]:
    """How many iterations bring the residual below the goal, and the solution they give; reads from the device."""
    descent = Descent(systems, gradient)
    best, best_at = float("inf"), 0
    # A residual may grow for many iterations before it falls; without rounding it is zero after this many.
    patience = gradient.shape[1] + 8
    for count in range(1, 10 * patience):
        descent.descend()
        size = float(descent.residual.norm())
        if size <= goal or count >= best_at + patience:
            break
        if size < best:
            best, best_at = size, count
        descent.turn()
    return count, descent.solution
