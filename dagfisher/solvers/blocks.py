"""Fisher blocks as dense matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .rates import Rates

_SMALL = 64
"""Up to so many parents, blocks are built as matrix products with all products of two parents."""
_CHUNK = 2**22
"""Numbers of such products in memory at once."""


def gram_blocks(parents: Tensor, weights: Tensor, damping: float) -> Tensor:
    """αI + Uᵀ Q_j U as dense matrices, (blocks × d × d)."""
    d, units = parents.shape[1], weights.shape[1]
    if d <= _SMALL:
        blocks = parents.new_zeros(units, d * d)
        rows = max(1, _CHUNK // (d * d))
        for u, q in zip(torch.split(parents, rows), torch.split(weights, rows), strict=True):
            blocks.addmm_(q.T, (u.unsqueeze(2) * u.unsqueeze(1)).reshape(-1, d * d))
        blocks = blocks.reshape(units, d, d)
    else:
        blocks = parents.new_empty(units, d, d)
        for j, q in enumerate(weights.unbind(1)):
            torch.mm(parents.T, q.unsqueeze(1) * parents, out=blocks[j])
    blocks.diagonal(dim1=1, dim2=2).add_(damping)
    return blocks


def products_cost(n: int, d: int, known: Rates) -> float:
    """Multiply-adds in whose time `gram_blocks` writes the products of two parents and reads them, beside its own."""
    return 5.0 * known.stored * n * d**2 if d <= _SMALL else 0.0


def coupled_block(parents: Tensor, probability: Tensor, shares: Tensor) -> Tensor:
    """F of one variable, its units next to each other, (C·d × C·d)."""
    n, d = parents.shape
    classes = probability.shape[1]
    weighted = shares.unsqueeze(1) * probability
    seen = (probability.unsqueeze(2) * parents.unsqueeze(1)).reshape(n, classes * d)
    block = -(seen.T @ (shares.unsqueeze(1) * seen))
    for c in range(classes):
        own = slice(c * d, (c + 1) * d)
        block[own, own] += parents.T @ (weighted[:, c : c + 1] * parents)
    return block


def masked_blocks(blocks: Tensor, mask: Tensor, damping: float) -> Tensor:
    """The blocks on the entries that the mask allows, damped there, and the identity elsewhere, (units × d × d)."""
    kept = mask.to(blocks.dtype)
    blocks = blocks * kept.unsqueeze(2) * kept.unsqueeze(1)
    blocks.diagonal(dim1=1, dim2=2).add_(1 + (damping - 1) * kept)
    return blocks
