"""The inverse Fisher of one layer: made from statistics, applied until the next refresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._reading import Asking, joint
from ..solvers import Solver
from .choose import solver_for
from .rows import joined_tensors
from .segments import CoupledSegment, Segment


@dataclass
class LayerFisher:
    """(αI + F_j)⁻¹ for every unit j of a layer.

    Order of life: `preparing` at a refresh, then `solve` at every step until the next one.
    """

    damping: float
    sizes: tuple[int, ...]
    """How many units each segment has."""
    solvers: list[Solver]
    """One for each segment."""
    coupled: bool = False
    """Whether blocks are those of variables with several units."""

    @classmethod
    def preparing(
        cls,
        segments: list[Segment],
        gradient: Tensor,
        *,
        damping: float,
        solver: str,
        tolerance: float,
        update_every: int,
    ) -> Asking[tuple[LayerFisher, Tensor]]:
        """The inverse Fisher, and what it makes of this gradient; the solvers of all segments ask at once.

        Args:
            segments: of the layer's statistics.
            gradient: (units × d).
            damping: α.
            solver: a name, or "auto".
            tolerance: the relative residual that an iterative solver may leave.
            update_every: K, for how many steps the solvers will be used.

        Returns:
            The inverse Fisher, and (αI + F_j)⁻¹ g_j for every unit j, (units × d).
        """
        sizes = tuple(segment.units for segment in segments)
        tasks: list[Asking[tuple[Solver, Tensor]]] = []
        for segment, g in zip(segments, _parts(gradient, sizes), strict=True):
            problem = segment.problem(damping, g, tolerance, update_every)
            tasks.append(solver_for(problem, solver).asking(problem))
        prepared = yield from joint(tasks)
        coupled = isinstance(segments[0], CoupledSegment)
        fisher = cls(damping, sizes, [each for each, _ in prepared], coupled)
        return fisher, joined_tensors([part for _, part in prepared])

    def solve(self, gradient: Tensor) -> Tensor:
        """(αI + F_j)⁻¹ g_j for every unit j, (units × d); never waits for the device."""
        return joined_tensors([solver.solve(part) for solver, part in self.runs(gradient)])

    def runs(self, gradient: Tensor) -> list[tuple[Solver, Tensor]]:
        """Each solver and the gradient of its units."""
        return list(zip(self.solvers, _parts(gradient, self.sizes), strict=True))

    def require_fitting(self, gradient: Tensor) -> None:
        """Raise some error unless gradients like this one, which is zero, can be solved for."""
        tensors = [v for solver in self.solvers for v in solver.state().values() if isinstance(v, Tensor)]
        if self.solve(gradient).shape != gradient.shape:
            raise ValueError("factors of another shape")
        if not all(v.is_meta or bool(v.isfinite().all()) for v in tensors):
            raise ValueError("factors that are not finite")

    def blocks(self) -> Tensor:
        """The damped blocks (αI + F_j)/(1 + α), (units × d × d), or (variables × C·d × C·d) if units are coupled."""
        pairs = zip(self.solvers, self.sizes, strict=True)
        return joined_tensors([_each(solver.blocks(), size, self.coupled) for solver, size in pairs]) / (
            1 + self.damping
        )

    def nbytes(self) -> int:
        """Bytes kept; a tensor that two solvers share counts once."""
        tensors = {v.data_ptr(): v for s in self.solvers for v in s.state().values() if isinstance(v, Tensor)}
        return sum(v.numel() * v.element_size() for v in tensors.values())


def damped_blocks(segments: list[Segment], damping: float) -> Tensor:
    """The damped blocks (αI + F_j)/(1 + α) that these segments have, (units × d × d)."""
    parts = [
        _each(segment.damped_blocks(damping), segment.units, isinstance(segment, CoupledSegment))
        for segment in segments
    ]
    return torch.cat(parts) / (1 + damping)


def _parts(gradient: Tensor, sizes: tuple[int, ...]) -> Sequence[Tensor]:
    """The gradient, (units × d), of each run of so many units."""
    return [gradient] if len(sizes) == 1 else torch.split(gradient, list(sizes))


def _each(blocks: Tensor, units: int, coupled: bool) -> Tensor:
    """One block for each unit, where all share one; blocks of variables of coupled units stay as they are."""
    return blocks.expand(units, -1, -1) if len(blocks) == 1 and not coupled else blocks
