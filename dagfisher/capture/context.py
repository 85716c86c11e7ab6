"""Which forward passes feed the Fisher, and with what weight: two context managers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

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
    sample.

    Args:
        weights: real and not negative. For an input (…, d) of a linear layer, as large as its leading axes, or as the
            first ones of them; for a convolution, (samples).
    """
    token = _weights.set(require_weights(weights))
    try:
        yield
    finally:
        _weights.reset(token)


def require_weights(weights: Any) -> Tensor:
    """The weights without their graph; an error unless they are a real tensor."""
    if not isinstance(weights, Tensor):
        raise SampleWeightError(f"sample weights must be a tensor, not a {type(weights).__name__}.")
    if weights.is_complex():
        raise SampleWeightError("sample weights must be real numbers that are not negative, not complex ones.")
    return weights.detach()


def capturing() -> bool:
    """Whether forward passes feed the Fisher here: False inside `no_capture`."""
    return _enabled.get()


def weights_of(declaration: Declaration, samples: torch.Size, like: Tensor) -> tuple[Tensor, bool]:
    """One weight per sample of this pass, (samples), in the dtype of `like`, and whether they were given; else ones."""
    weights = _weights.get()
    if weights is None:
        return like.new_ones(samples.numel()), False
    return fitted(declaration, weights, samples, like), True


def fitted(declaration: Declaration, weights: Tensor, samples: torch.Size, like: Tensor) -> Tensor:
    """The weights as one for each sample, (samples), in the dtype and on the device of `like`."""
    if weights.shape != samples[: weights.dim()] or weights.dim() == 0:
        raise SampleWeightError(
            f"layer {declaration.name}: sample weights of shape {tuple(weights.shape)} do not fit "
            f"a forward pass with samples of shape {tuple(samples)}; give one weight per sample."
        )
    weights = weights.reshape(weights.shape + (1,) * (len(samples) - weights.dim())).expand(samples).reshape(-1)
    return weights.to(like, copy=True)
