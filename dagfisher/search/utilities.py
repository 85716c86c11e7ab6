"""How much each sample of a generation counts, from the values of the function there."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Utilities = Callable[[Tensor], Tensor]
"""From the values (n,) of the samples, which are to be small, to weights (n,) that sum to 0."""


def rank_utilities(values: Tensor) -> Tensor:
    """Weights by rank alone: max(0, log(n/2 + 1) − log rank), normalised to sum 1, less 1/n.

    A search with them does not change if the function is replaced by any increasing function of it. Samples with equal
    values share the mean of their weights.

    Args:
        values: (n,), the smallest is the best.

    Returns:
        (n,), sums to 0.
    """
    n = len(values)
    ranks = torch.arange(1, n + 1, dtype=values.dtype, device=values.device)
    weights = torch.clamp(math.log(n / 2 + 1) - ranks.log(), min=0)
    weights = weights / weights.sum() - 1 / n
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    sums = torch.cat([weights.new_zeros(1), weights.cumsum(0)])
    shared: Tensor = (sums[ends] - sums[ends - counts]) / counts
    return shared[place]


def value_utilities(values: Tensor) -> Tensor:
    """Weights −(f − f̄)/n: with them a step follows the natural gradient of E[f] itself, with the mean as baseline.

    Steps are as long as f is large: choose a rate, or scale f. The rates of a `GaussianNetwork` are for ranks.

    Args:
        values: (n,); an infinity counts as the largest of the others, and as 0 if there are none.

    Returns:
        (n,), sums to 0.
    """
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        values = torch.where(finite, values, values[finite].amax() if bool(finite.any()) else values.new_zeros(()))
    return (values.mean() - values) / len(values)
