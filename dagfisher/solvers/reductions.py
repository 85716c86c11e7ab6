"""What conjugate gradients begin with: the rows that matter, a basis for them, and a gradient to calibrate on."""

from __future__ import annotations

import torch
from torch import Tensor

from .._reading import reads_freely
from .problems import RowProblem
from .rates import Rates
from .spd import eigenvectors

DROP_SHARE = 0.2
"""The part of the tolerance that left-out rows may use up."""
PARTIAL = 32
"""Directions of a partial basis."""


def weighted_gram(rows: Tensor, mean: Tensor) -> Tensor:
    """Pᵀ diag(q̄) P, q̄ the mean of the weights over the units, (n × 1); (d × d)."""
    gram: Tensor = rows.T @ (mean * rows)
    return gram


def drop_rows(problem: RowProblem) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that matter at this tolerance, their weights, and the mean of these over all units, (n × 1)."""
    parents, weights, mean = problem.parents, problem.weights, problem.every_weight.mean(1, keepdim=True)
    if not reads_freely(parents.device):  # how many rows matter is not worth a question
        return parents, weights, mean
    reach = problem.every_weight.amax(1) * parents.square().sum(1)
    ordered, order = reach.sort()
    budget = DROP_SHARE * problem.tolerance * problem.damping
    first = int((ordered.cumsum(0) <= budget).sum())
    if first == 0:
        return parents, weights, mean
    kept = order[min(first, len(order) - 1) :].sort().values
    return parents[kept], weights[kept], mean[kept]


def leading_directions(gram: Tensor, count: int = PARTIAL) -> Tensor:
    """An orthonormal basis close to the leading eigenvectors of the Gram matrix, by two subspace iterations."""
    generator = torch.Generator(device=gram.device).manual_seed(0)
    start = torch.randn(gram.shape[0], count, generator=generator, device=gram.device, dtype=gram.dtype)
    subspace = torch.linalg.qr(gram @ start).Q
    subspace = torch.linalg.qr(gram @ subspace).Q
    rotated: Tensor = subspace @ eigenvectors(subspace.T @ gram @ subspace)
    return rotated


def full_basis(n: int, size: int, blocks: int, update_every: int, known: Rates) -> bool:
    """Whether a whole eigenbasis pays: it saves the partial basis' products and about two iterations a step."""
    saved = blocks * size * (512.0 + 4 * n) * update_every
    return size <= 2 * PARTIAL or known.eigh * float(size) ** 3 <= saved
