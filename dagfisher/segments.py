"""Runs of units that share their parents and have Fisher weights of one kind: each is one problem for a solver."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .records import Gram
from .solvers.base import gram_blocks


def segments(parents: Tensor, weights: tuple[Tensor, ...], sizes: tuple[int, ...]) -> list[tuple[Tensor, Tensor, int]]:
    """(parents, weights, units) of each run.

    Parents are (n × d), or (n × groups × d) for a grouped convolution; `weights` has (n × units) or (n × 1) for each
    group of units that a family distinguishes, and `sizes` says how many units that group has.
    """
    if parents.dim() == 2:
        return [(parents, q, size) for q, size in zip(weights, sizes, strict=True)]
    channels = sum(sizes) // parents.shape[1]
    found, start = [], 0
    for q, size in zip(weights, sizes, strict=True):
        inner = range((start // channels + 1) * channels, start + size, channels)
        for first, last in pairwise([start, *inner, start + size]):
            part = q if q.shape[1] == 1 else q[:, first - start : last - start]
            found.append((parents[:, first // channels].contiguous(), part, last - first))
        start += size
    return found


def grams(rows: Tensor, fisher: tuple[Tensor, ...], sample: Tensor, sizes: tuple[int, ...]) -> tuple[Gram, ...]:
    """The Gram matrices of one pass; rows are without the constant 1, `sample` has a weight for each of them."""
    rows = torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], dim=-1)
    weights = tuple(q * sample.unsqueeze(1) for q in fisher)
    return tuple(Gram(gram_blocks(u, q, 0.0), units) for u, q, units in segments(rows, weights, sizes))
