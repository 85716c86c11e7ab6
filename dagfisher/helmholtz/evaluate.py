"""Importance-sampled log-likelihoods, streamed so that memory does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..errors import ShapeError
from .sampling import Networks, wake

ROWS = 8192
"""Samples times examples that are in memory at once."""


@dataclass
class Estimate:
    """What the samples say of each example; tensors have a value for each, (n,)."""

    log_p: Tensor
    """log p(x) ≈ log mean_k p(x, h_k)/q(h_k|x)."""
    log_p_star: Tensor
    """BiHM's log p*(x) + 2 log Z ≈ 2 log mean_k √(p(x, h_k)/q(h_k|x)); Z ≤ 1 is not estimated."""
    effective_samples: Tensor
    """(Σ w)²/Σ w² of the importance weights w = p/q."""
    samples: int

    @property
    def mean(self) -> float:
        """The mean of log p over the examples."""
        return float(self.log_p.double().mean())

    @property
    def standard_error(self) -> float:
        """The standard error of `mean` over the examples, NaN for one; the estimator's own bias is not part of it."""
        if len(self.log_p) < 2:
            return math.nan
        return float(self.log_p.double().std() / math.sqrt(len(self.log_p)))


@torch.no_grad()
def estimate(
    machine: Networks,
    x: Tensor,
    samples: int = 1000,
    *,
    generator: Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> Estimate:
    """Importance-sampled log-likelihoods of examples; memory does not grow with the number of samples.

    Args:
        machine: whose p is evaluated, with draws of its q.
        x: data in [0, 1], (n, pixels).
        samples: draws of q(h|x) for each example.
        generator: of the draws.
        progress: is told after each part how many examples it had.

    Returns:
        Estimates for each of the n examples.
    """
    if samples < 1:
        raise ShapeError(f"an estimate needs at least one sample, not {samples}.")
    encoded = machine.encode(x)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    examples = max(1, min(len(encoded), ROWS // min(samples, 64)))
    for start in range(0, len(encoded), examples):
        part = encoded[start : start + examples]
        parts.append(_stream(machine, part, samples, generator))
        if progress is not None:
            progress(len(part))
    log_p, log_root, log_square = (torch.cat(column) for column in zip(*parts, strict=True))
    log_s = math.log(samples)
    return Estimate(log_p - log_s, 2 * (log_root - log_s), torch.exp(2 * log_p - log_square), samples)


def _stream(machine: Networks, x: Tensor, samples: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ r, log Σ √r and log Σ r² of the ratios r = p/q of each example."""
    sums = [torch.full((len(x),), -math.inf, dtype=x.dtype, device=x.device) for _ in range(3)]
    chunk = max(1, ROWS // len(x))
    for start in range(0, samples, chunk):
        ratio = wake(machine, x, min(chunk, samples - start), generator).log_ratio
        for i, power in enumerate((1.0, 0.5, 2.0)):
            sums[i] = torch.logaddexp(sums[i], torch.logsumexp(power * ratio, dim=0))
    return sums[0], sums[1], sums[2]
