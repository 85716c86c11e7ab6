"""Preconditioned conjugate gradients on many systems at once, one in each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .._reading import Asking, reads_freely

MOST = 10_000
"""Iterations after which rounding must be what keeps them from ending."""


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

    def left(self) -> Tensor:
        """The squared length of the residual over all systems, a scalar."""
        return self.residual.square().sum()

    def turn(self) -> None:
        """Find the next direction."""
        preconditioned = self.systems.precondition(self.residual)
        size = (self.residual * preconditioned).sum(1, keepdim=True)
        self._direction.mul_(size / self._size.clamp_min_(self._tiny)).add_(preconditioned)
        self._size = size

    def select(self, units: Tensor, systems: Systems) -> None:
        """Go on with some of the systems."""
        self.systems, self.solution, self.residual = systems, self.solution[units], self.residual[units]
        self._direction, self._size = self._direction[units], self._size[units]


class Descending(Protocol):
    """What `Descent` and its like have in common."""

    @property
    def solution(self) -> Tensor:
        """So far."""

    def left(self) -> Tensor:
        """The squared length of the residual over all systems, a scalar."""

    def descend(self, *, last: bool = False) -> None:
        """Go along the direction; the last time, the residual is not needed any more."""

    def turn(self) -> None:
        """Find the next direction."""


def iterate(descent: Descending, iterations: int) -> Tensor:
    """The solution after so many iterations, at least one; never waits for the device."""
    for _ in range(iterations - 1):
        descent.descend()
        descent.turn()
    descent.descend(last=True)
    return descent.solution


def attempt(descent: Descending, goal: float, total: Callable[[Tensor], Tensor], spare: float = math.inf) -> int | None:
    """How many iterations bring the residual below this share of what it is; reads from the device.

    None as soon as half of the iterations to come seem to be more than `spare`. `total` sums a number over all systems
    that are attempted together.
    """
    before, goal = math.inf, goal * math.sqrt(float(total(descent.left())))
    for count in range(1, MOST):
        descent.descend()
        size = math.sqrt(float(total(descent.left())))
        if size <= goal:
            return count
        if before < math.inf and _remaining(size, before, goal) > 2 * spare:
            return None
        before = size
        descent.turn()
    return MOST


def _remaining(size: float, before: float, goal: float) -> float:
    """Iterations to the goal, if the residual goes on to shrink as it did in the last one."""
    if not 0 < size < before or goal <= 0:
        return math.inf
    return math.log(goal / size) / math.log(size / before)


AHEAD = 8
"""Iterations on an accelerator before the host looks how far they came; then twice as many, and so on."""


def calibrate(
    systems: Systems, gradient: Tensor, length: Tensor, goal: float, lengths: Callable[[Tensor], Tensor]
) -> Asking[tuple[int, Tensor]]:
    """How many iterations bring the residual, over `length`, below the goal, and a solution that is as good.

    `lengths` gives the length of a tensor with a row for each system, over all systems that are calibrated together.
    """
    descent = Descent(systems, gradient)
    freely = reads_freely(gradient.device)
    best, best_at, count, ahead = float("inf"), 0, 0, 1 if freely else AHEAD
    length = length.clamp_min(torch.finfo(length.dtype).tiny)
    # A residual may grow for many iterations before it falls; without rounding it is zero after this many.
    patience = gradient.shape[1] + 8
    while True:
        sizes = []
        for i in range(ahead):
            if count + i > 0:
                descent.turn()
            descent.descend()
            sizes.append(lengths(descent.residual) / length)
        for size in (yield torch.stack(sizes)):
            count += 1
            if size <= goal or count >= min(best_at, 9 * patience) + patience:
                return count, descent.solution
            if size < best:
                best, best_at = size, count
        ahead *= 1 if freely else 2


def guide(gradient: Tensor, tells: Tensor, typical: Callable[[], Tensor]) -> Asking[tuple[Tensor, bool]]:
    """What to calibrate on: the gradient, or a `typical` one where the gradient `tells` nothing.

    Returns:
        It, and whether the host knows that it is the gradient, so that its solution is the gradient's.
    """
    if not reads_freely(gradient.device):
        return torch.where(tells, gradient, typical()), False
    (told,) = yield tells
    return (gradient, True) if told else (typical(), False)
