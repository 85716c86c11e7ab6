"""Operations on rows of parents: join them, merge equal ones, and refuse what no Fisher can be made of."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from .._reading import Asking
from ..errors import NonFiniteError, SampleWeightError


def joined_tensors(tensors: list[Tensor]) -> Tensor:
    """All tensors, one after another along the first axis."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class Disagreement(Exception):
    """The output of a module is not what its declared map makes of its parents."""


def require_sound(total: Tensor, sample: Tensor, captured: list[Tensor], mismatch: Tensor | None) -> Asking[None]:
    """Raise on weights or numbers that no Fisher can be made of, or on a mismatch above 1; asks once."""
    # A sum is infinite or NaN if a term is.
    numbers = [total, sample.amin(), *(part.sum() for part in captured)]
    found = yield torch.stack(numbers if mismatch is None else [*numbers, mismatch.to(total)])
    off = 0.0 if mismatch is None else found.pop()
    if not (0 < found[0] < math.inf and found[1] >= 0):
        raise SampleWeightError("its sample weights must be finite, not negative, and not all zero.")
    if not all(map(math.isfinite, found[2:])):
        raise NonFiniteError(
            "its captured parents or predictors hold an infinity or a NaN; no parameter has moved. Look at the data, "
            "at the learning rate, and at predictors too large for an exponential."
        )
    if off > 1:
        raise Disagreement


@lru_cache(maxsize=256)
def _direction(d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(1)
    return torch.rand(d, generator=generator, device=device, dtype=dtype)


def merge_rows(rows: Tensor, weights: list[Tensor]) -> Asking[tuple[Tensor, list[Tensor]]]:
    """The distinct rows, (n' × d), and weights, (n' × units) each, in which those of equal rows are added.

    The blocks do not change. Asks once, and once more if rows seem to be equal.
    """
    n, d = rows.shape
    if n == 1:
        return rows, weights
    keys, order = (rows @ _direction(d, rows.dtype, rows.device)).sort()
    # Equal rows have equal keys up to rounding; most batches have none, and that is seen here.
    gap, low, high = yield torch.stack([keys.diff().amin(), keys[0], keys[-1]])
    if gap > 8 * torch.finfo(keys.dtype).eps * max(-low, high):
        return rows, weights
    ordered = rows[order]
    new = torch.ones(n, dtype=torch.bool, device=rows.device)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    place = new.cumsum(0) - 1  # of each row among the distinct ones
    distinct = int((yield place[-1:])[0]) + 1
    if distinct == n:
        return rows, weights
    target = torch.empty_like(order).index_copy_(0, order, place)
    merged = [q.new_zeros(distinct, q.shape[1]).index_add_(0, target, q) for q in weights]
    return rows.new_empty(distinct, d).index_copy_(0, place, ordered), merged
