"""Importance-sampled log-likelihoods, streamed so that memory does not grow with the number of samples."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .._processes import Processes
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
    processes: Processes | None = None,
) -> Estimate:
    """Importance-sampled log-likelihoods of examples; memory does not grow with the number of samples.

    Args:
        machine: whose p is evaluated, with draws of its q.
        x: data in [0, 1], (n, pixels).
        samples: draws of q(h|x) for each example.
        generator: of the draws.
        progress: is told after each part how many more examples are done, about, in all processes.
        processes: share the examples, and all get the estimates of all; each must call this with the same arguments. By
            default this process does it alone. With a generator, the estimates do not depend on their number.

    Returns:
        Estimates for each of the n examples.
    """
    if samples < 1:
        raise ShapeError(f"an estimate needs at least one sample, not {samples}.")
    processes = Processes(False) if processes is None else processes
    encoded = machine.encode(x)
    parts = torch.split(encoded, max(1, ROWS // min(samples, 256)))
    drawing = [generator, *_generators(generator, len(parts) - 1)]
    counts = [sum(len(parts[number]) for number in share) for share in processes.shares(len(parts))]
    own, told, done, found = counts[processes.rank], 0, 0, []
    for number in processes.share(len(parts)):
        found.append(_stream(machine, parts[number], samples, drawing[number]))
        done += len(parts[number])
        if progress is not None:  # the others are about as far
            progress(len(encoded) * done // max(own, 1) - told)
            told = len(encoded) * done // max(own, 1)
    if generator is not None and processes.size > 1:  # only the first process has used it
        generator.set_state(processes.gather_objects(generator.get_state())[0])
    flat = torch.cat([encoded.new_empty(0), *(sums.T.reshape(-1) for sums in found)])
    gathered = torch.cat(processes.gather(flat, [3 * count for count in counts]))
    log_p, log_root, log_square = gathered.reshape(-1, 3).T.contiguous().unbind()
    log_s = math.log(samples)
    return Estimate(log_p - log_s, 2 * (log_root - log_s), torch.exp(2 * log_p - log_square), samples)


def _generators(first: Generator | None, count: int) -> list[Generator | None]:
    """Generators for so many parts, by the state of the first one; so no process draws the numbers of another."""
    if first is None:
        return [None] * count
    state = bytes(first.get_state().tolist())
    return [Generator(first.device).manual_seed(zlib.crc32(state, number)) for number in range(1, count + 1)]


def _stream(machine: Networks, x: Tensor, samples: int, generator: Generator | None) -> Tensor:
    """log Σ r, log Σ √r and log Σ r² of the ratios r = p/q of each example, (3 × examples)."""
    sums = torch.full((3, len(x)), -math.inf, dtype=x.dtype, device=x.device)
    chunk = max(1, ROWS // max(len(x), 1))
    for start in range(0, samples, chunk):
        ratio = wake(machine, x, min(chunk, samples - start), generator).log_ratio
        for i, power in enumerate((1.0, 0.5, 2.0)):
            sums[i] = torch.logaddexp(sums[i], torch.logsumexp(power * ratio, dim=0))
    return sums
