"""What conjugate gradients begin with: the rows that matter, a basis for them, and a gradient to calibrate on."""

from __future__ import annotations

import torch
from torch import Tensor

from .._reading import reads_freely
from .plain import LOOSE
from .problems import RowProblem
from .rates import Rates, rates
from .spd import eigenvectors

DROP_SHARE = 0.2
"""The part of the tolerance that left-out rows may use up."""
PARTIAL = 32
"""Directions of a partial basis."""
SMALL = 4
"""Operations in whose time all rows of a small layer are multiplied once."""
FEW = 8
"""Directions of a basis for one use."""


def weighted_gram(rows: Tensor, weights: Tensor) -> Tensor:
    """Pᵀ diag(q̄) P, q̄ the mean of the weights over the units, (n × blocks); (d × d)."""
    gram: Tensor = rows.T @ (weights.mean(1, keepdim=True) * rows)
    return gram


def drop_rows(problem: RowProblem) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that matter at this tolerance, their weights, and those of all units that are prepared together."""
    parents, weights, every = problem.parents, problem.weights, problem.every_weight
    whole = parents, weights, every
    if not reads_freely(parents.device):  # how many rows matter is not worth a question
        return whole
    product = 2.0 * problem.units * parents.numel()
    if problem.update_every == 1 and problem.tolerance >= LOOSE and product < SMALL * rates(parents.device).operation:
        return whole  # finding them costs more than a few products with all rows
    reach = torch.linalg.vector_norm(parents, dim=1).square_().mul_(every.amax(1))
    budget = DROP_SHARE * problem.tolerance * problem.damping
    if float(reach.amin()) > budget:
        return whole
    ordered, order = reach.sort()
    first = min(int((ordered.cumsum(0) <= budget).sum()), len(order) - 1)
    kept = order[first:].sort().values
    own = weights[kept]
    return parents[kept], own, own if every is weights else every[kept]


def iterated_share(problem: RowProblem) -> float:
    """The relative residual that `drop_rows` leaves to iterations."""
    return max((1 - DROP_SHARE) * problem.tolerance, torch.finfo(problem.parents.dtype).eps)


def leading_directions(gram: Tensor, count: int = PARTIAL) -> Tensor:
    """An orthonormal basis close to the leading eigenvectors of the Gram matrix, by two subspace iterations."""
    generator = torch.Generator(device=gram.device).manual_seed(0)
    start = torch.randn(gram.shape[0], count, generator=generator, device=gram.device, dtype=gram.dtype)
    subspace = torch.linalg.qr(gram @ start).Q
    subspace = torch.linalg.qr(gram @ subspace).Q
    rotated: Tensor = subspace @ eigenvectors(subspace.T @ gram @ subspace)
    return rotated


def few_directions(rows: Tensor, weights: Tensor, count: int) -> Tensor:
    """As `leading_directions`, by products with the rows: no Gram matrix is made."""
    mean = weights.mean(1, keepdim=True)
    generator = torch.Generator(device=rows.device).manual_seed(0)
    subspace = torch.randn(rows.shape[1], count, generator=generator, device=rows.device, dtype=rows.dtype)
    for _ in range(2):
        subspace = torch.linalg.qr(rows.T @ (mean * (rows @ subspace))).Q
    return subspace


def diagonal_along(directions: Tensor, rows: Tensor, weights: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The inverses of α + diag F_j along directions, (blocks × r), and of the mean of α + F_j outside, (blocks × 1)."""
    along = weights.T @ (rows @ directions).square()
    total = weights.T @ rows.square().sum(1, keepdim=True)
    outside = max(rows.shape[1] - directions.shape[1], 1)
    rest = (total - along.sum(1, keepdim=True)).clamp_min_(0) / outside
    return along.add_(damping).reciprocal_(), (rest + damping).reciprocal_()


def full_basis(n: int, size: int, blocks: int, update_every: int, known: Rates) -> bool:
    """Whether a whole eigenbasis pays: it saves the partial basis' products and about two iterations a step."""
    saved = blocks * size * (512.0 + 4 * n) * update_every
    return size <= 2 * PARTIAL or known.eigh * float(size) ** 3 <= saved
