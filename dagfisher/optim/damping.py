"""Damping that each layer finds for itself: by how well its Fisher matrix predicts samples that it has not seen.

When a Fisher matrix is made anew there are, for a moment, two of them: F_old, from the samples of the last refresh, and
F, from fresh ones. With x = (αI + F_old)⁻¹ g the step was expected to curve the objective by xᵀ(αI + F_old)x = x·g;
the fresh samples say xᵀFx. If they say more, directions that F_old took for flat are not, and α was too small for what
a minibatch knows; if they say less, α may be smaller. So α is multiplied by the ratio of the two, within bounds. That
costs one solve and one product with the rows, and no evaluation of the loss.

The fresh samples judge the step, not the directions that neither of the two has seen. Noisy gradients have a part
along those too, and a small α makes it long. So α stays above a floor. The floor is higher the fewer samples there are
for each parent. It is gone where a gradient is far smaller than its own noise would be: then there is no noise, as in
a training on all data that converges. It is lower in models with deterministic layers, whose gradients come from
reparametrised samples and have less noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._processes import Processes
from .._reading import Asking
from ..fisher import LayerFisher
from ..fisher.segments import GramSegment, Segment
from ..solvers.rates import rates
from .spread import Load, balanced, share_of

START = 0.1
"""The damping of the first refresh, or this share of the mean diagonal element of the blocks, if that is more."""
RISE, FALL = 10.0, 2.0
"""One refresh multiplies the damping by at most the one, or divides it by the other, which is also how fast a damping
that is below its floor gets there."""
LEAST, LARGEST = 1e-5, 1e7
"""The bounds of a damping that is found."""
FLOOR, LOWER_FLOOR = 0.1, 0.03
"""The highest floor where all layers are stochastic, and in models with deterministic layers."""
SHARE = 3.0
"""The floor of a block of d parents made of n samples, in units of d / n, where that is less."""
NOISY = 0.1
"""A floor is whole where the predicted curvature of a step is this share of what noise alone would give, or more."""


def first_damping(segments: Sequence[Segment]) -> Asking[float]:
    """Where the damping of a layer starts; asks once."""
    (trace,) = yield torch.stack([segment.trace() for segment in segments]).sum()
    diagonal = trace / max(sum(segment.units * segment.parents_count for segment in segments), 1)
    return min(max(START, START * diagonal), LARGEST) if math.isfinite(diagonal) else START


class Compared(NamedTuple):
    """What the predictions of one layer are made of."""

    fisher: LayerFisher
    """Of the last refresh."""
    segments: Sequence[Segment]
    """The fresh samples."""
    gradient: Tensor
    """(units × d)."""


def predictions(compared: Sequence[Compared], processes: Processes) -> list[Tensor]:
    """xᵀFx by fresh samples, and x·g, which the Fisher of the last refresh predicts, for x = (αI + F_old)⁻¹ g.

    Of several processes each looks at some of the layers, and at its share of the units of large ones.

    Returns:
        Both numbers of each layer and tr F of its fresh samples, (3).
    """
    whos: dict[int, int | None] = dict.fromkeys(range(len(compared)))
    if processes.size > 1:
        whos = balanced({i: _load(each, processes.size) for i, each in enumerate(compared)}, processes.size)
    found = []
    for i, each in enumerate(compared):
        mine = whos[i] in (None, processes.rank)
        sharing = processes if whos[i] is None else Processes(False)
        found.append(_predicted(each, sharing) if mine else each.gradient.new_zeros(3))
    processes.sum_(found)
    return found


def _load(compared: Compared, size: int) -> Load:
    """What a prediction costs: a solution, and a product with the rows that they are made of, or with the blocks."""
    cost = 0.0
    for (solver, g), segment in zip(compared.fisher.runs(compared.gradient), compared.segments, strict=True):
        rows = segment.parents_count if isinstance(segment, GramSegment) else len(segment.parents)
        cost += solver.applying(g) + float(rows) * g.numel()
    starting = 10 * rates(compared.gradient.device).operation
    return Load(cost + starting, cost / size + starting)


def _predicted(compared: Compared, processes: Processes) -> Tensor:
    """The three numbers of one layer, over this process's share of the units."""
    found: list[Tensor] = []
    fisher, segments, gradient = compared
    parts = torch.split(gradient, list(fisher.sizes))
    for solver, segment, g in zip(fisher.solvers, segments, parts, strict=True):
        own = share_of(solver, segment, processes)
        if len(own) < segment.units:
            solver, segment, g = solver.part(own, segment.units), segment.part(own), g[own.start : own.stop]
        x = solver.solve(g)
        found.append(torch.stack([segment.curvature(x), (x * g).sum(), segment.trace()]))
    return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def adapted(damping: float, found: float, predicted: float, floor: float = LEAST) -> float:
    """The damping at which about as much curvature should be found as predicted, or the floor if that is more."""
    if not (found >= 0 and 0 < predicted < math.inf):  # a gradient of zero tells nothing, nor do overflows
        return damping
    wanted = min(max(damping * (found / predicted), damping / FALL), damping * RISE)
    return min(max(wanted, min(floor, damping * FALL), LEAST), LARGEST)  # what was given before may be out of bounds


def floor_of(parents: int, samples: int, predicted: float, noise: float, stochastic: bool = True) -> float:
    """The least damping of a layer that is refreshed with so many samples.

    Args:
        parents: of a unit.
        samples: outputs of each unit since the last step; neither a window nor the rows that are drawn count.
        predicted: the curvature that the last Fisher predicts for the step.
        noise: the same if the gradient were noise alone.
        stochastic: whether all layers of the model are.
    """
    whole = min(FLOOR if stochastic else LOWER_FLOOR, SHARE * parents / max(samples, 1))
    return max(LEAST, whole * min(1.0, predicted / (NOISY * noise))) if noise > 0 else whole


def noise_of(units: int, parents: int, samples: int, trace: float, damping: float) -> float:
    """About xᵀFx where the gradient is noise alone: Σ_j tr [F_j (αI + F_j)⁻¹]² / n, for eigenvalues that are alike.

    Units that are nearly always on or off have blocks far below α. Then this is far below what any sample of theirs
    gives, so that their floor stays: the next sample that says something must not be divided by next to nothing.
    """
    eigenvalue = trace / (units * parents)
    return units * parents / max(samples, 1) * (eigenvalue / (eigenvalue + damping)) ** 2
