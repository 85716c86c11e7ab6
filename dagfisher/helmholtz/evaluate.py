"""Importance-sampled log-likelihoods, streamed so that memory does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .._draws import Part, PartGenerator
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
        progress: is told after each part how many examples it had.
        processes: share the examples, and all get the estimates of all; each must call this with the same arguments. By
            default this process does it alone. With a generator, the estimates do not depend on their number.

    Returns:
        Estimates for each of the n examples.
    """
    if samples < 1:
        raise ShapeError(f"an estimate needs at least one sample, not {samples}.")
    processes = Processes(False) if processes is None else processes
    drawing = generator if generator is None or processes.size == 1 else PartGenerator.copy_of(generator)
    encoded = machine.encode(x)
    parts: list[Tensor] = []
    examples = max(1, min(len(encoded), ROWS // min(samples, 64)))
    sizes = [min(examples, len(encoded) - start) for start in range(0, len(encoded), examples)]
    for start, size in zip(range(0, len(encoded), examples), sizes, strict=True):
        own = processes.share(size)
        part = encoded[start + own.start : start + own.stop]
        parts.append(_stream(machine, part, samples, drawing, (own, size)))
        if progress is not None:
            progress(size)
    if drawing is not generator and generator is not None and drawing is not None:
        generator.set_state(drawing.get_state())
    log_p, log_root, log_square = _gathered(parts, sizes, processes).unbind()
    log_s = math.log(samples)
    return Estimate(log_p - log_s, 2 * (log_root - log_s), torch.exp(2 * log_p - log_square), samples)


def _stream(machine: Networks, x: Tensor, samples: int, generator: Generator | None, part: tuple[range, int]) -> Tensor:
    """log Σ r, log Σ √r and log Σ r² of the ratios r = p/q of each example, (3 × examples).

    The examples are those of a range below so many that the processes share.
    """
    sums = torch.full((3, len(x)), -math.inf, dtype=x.dtype, device=x.device)
    own, whole = part
    chunk = max(1, ROWS // whole)
    for start in range(0, samples, chunk):
        count = min(chunk, samples - start)
        if isinstance(generator, PartGenerator):
            generator.part = Part(own.start, own.stop, whole, count)
        ratio = wake(machine, x, count, generator).log_ratio
        for i, power in enumerate((1.0, 0.5, 2.0)):
            sums[i] = torch.logaddexp(sums[i], torch.logsumexp(power * ratio, dim=0))
    return sums


def _gathered(own: list[Tensor], sizes: list[int], processes: Processes) -> Tensor:
    """The (3 × examples) of all parts, of which each process has its share, one after another."""
    if processes.size == 1:
        return torch.cat(own, dim=1)
    shares = [[len(share) for share in processes.shares(size)] for size in sizes]
    flat = torch.cat([part.reshape(-1) for part in own])
    found = processes.gather(flat, [3 * sum(column) for column in zip(*shares, strict=True)])
    pieces = []
    for part, counts in enumerate(shares):
        for rank, count in enumerate(counts):
            before = 3 * sum(each[rank] for each in shares[:part])
            pieces.append(found[rank][before : before + 3 * count].reshape(3, count))
    return torch.cat(pieces, dim=1)
