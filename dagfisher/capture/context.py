"""Which forward passes feed the Fisher, and with what weight: two context managers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from ..declaration import Declaration
from ..errors import SampleWeightError

_enabled: ContextVar[bool] = ContextVar("dagfisher_capture", default=True)
_weights: ContextVar[Tensor | None] = ContextVar("dagfisher_weights", default=None)


@contextmanager
def no_capture() -> Iterator[None]:
    """Forward passes inside this context do not feed the Fisher."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


@contextmanager
def sample_weights(weights: Tensor) -> Iterator[None]:
    """Forward passes inside this context carry these weights, one per sample of the pass.

    The weights of all passes that a step uses are normalised together to sum 1; a pass without weights counts 1 per
    sample. For an input (…, d) the weights follow its leading axes, or the first ones of them.
    """
    if not isinstance(weights, Tensor):
        raise SampleWeightError(f"sample weights must be a tensor, not a {type(weights).__name__}.")
    if weights.is_complex():
        raise SampleWeightError("sample weights must be real numbers that are not negative, not complex ones.")
    token = _weights.set(weights.detach())
    try:
        yield
    finally:
        _weights.reset(token)


def capturing() -> bool:
    """Whether no `no_capture` is in force."""
    return _enabled.get()


def weights_of(declaration: Declaration, samples: torch.Size, like: Tensor) -> Tensor:
    """One weight per sample of this pass, (samples), in the dtype and on the device of `like`; ones by default."""
    weights = _weights.get()
    if weights is None:
        return like.new_ones(samples.numel())
    if weights.shape != samples[: weights.dim()] or weights.dim() == 0:
        raise SampleWeightError(
            f"layer {declaration.name}: sample weights of shape {tuple(weights.shape)} do not fit "
            f"a forward pass with samples of shape {tuple(samples)}; give one weight per sample."
        )
    weights = weights.reshape(weights.shape + (1,) * (len(samples) - weights.dim())).expand(samples).reshape(-1)
    return weights.to(like, copy=True)
