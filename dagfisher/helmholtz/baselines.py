"""Coefficients of REINFORCE: the signal log p − log q of each sample, less a baseline from the other samples.

A baseline that does not depend on the sample itself leaves the expectation of the gradient as it is. The one that
leaves the least variance is a mean of the others' signals, weighted by the squared lengths of their scores ∇log q(h|x).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from .sampling import Wake, by_sample

SHARE = 0.1
"""The damping of the diagonal Fisher in `score_lengths`, as a share of its mean."""


class HasWake(Protocol):
    """What is needed of a step of an algorithm."""

    @property
    def wake(self) -> Wake:
        """S samples of q(h|x) for each of B examples."""


def leave_one_out(step: HasWake) -> Tensor:
    """REINFORCE, (S, B): log p − log q of each sample less the mean over the other samples of its example."""
    return _less_others(step.wake.log_ratio, torch.ones_like(step.wake.log_ratio))


def optimal_baseline(step: HasWake) -> Tensor:
    """REINFORCE, (S, B), less the others' mean weighted by ‖∇log q‖²: the gradient has the least variance."""
    return _less_others(step.wake.log_ratio, score_lengths(step.wake))


def natural_baseline(step: HasWake) -> Tensor:
    """REINFORCE, (S, B), with weights in the metric of the diagonal Fisher: of the *natural* gradient's variance."""
    return _less_others(step.wake.log_ratio, score_lengths(step.wake, natural=True))


def _less_others(signal: Tensor, weights: Tensor) -> Tensor:
    others = (weights * signal).sum(0) - weights * signal
    rest = (weights.sum(0) - weights).clamp_min(torch.finfo(weights.dtype).tiny)
    return (signal - others / rest) / signal.numel()


def score_lengths(wake: Wake, *, natural: bool = False) -> Tensor:
    """The squared length of ∇log q(h|x) about all weights and biases of dense layers, (S, B).

    Args:
        wake: the samples.
        natural: the length sᵀD⁻¹s, with D the damped diagonal of the Fisher of these samples; else sᵀs.
    """
    total = torch.zeros_like(wake.log_ratio)
    for scores, weights, parents in _layers(wake):
        squares, powers = scores.square(), torch.cat([parents.square(), torch.ones_like(parents[..., :1])], -1)
        if natural:
            rows = powers.expand(*weights.shape[:-1], -1).flatten(0, -2)
            diagonal = weights.flatten(0, -2).T @ rows / len(rows)
            inverse = 1 / (diagonal + SHARE * diagonal.mean())
            total = total + (squares * (powers @ inverse.T)).sum(-1)
        else:
            total = total + squares.sum(-1) * powers.sum(-1)
    return total


def _layers(wake: Wake) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Scores (S, B, outputs), Fisher weights (the same, or with S of 1) and parents of every recognition layer."""
    below = wake.x.unsqueeze(0)
    for family, states, predictor in zip(wake.families, wake.hidden, wake.recognition, strict=True):
        given = predictor.detach().reshape(-1, wake.x.shape[0], predictor.shape[-1])
        child = by_sample(states, wake.samples)
        flat = given.flatten(0, -2)
        sizes = family.split(flat.shape[-1])
        groups = zip(family.fisher_weights(flat), sizes, strict=True)
        found = torch.cat([q.expand(len(flat), size) for q, size in groups], -1)
        yield family.score(child, given), found.reshape(given.shape), below
        below = child
