"""Forward passes become rows of U and Fisher weights q, staged until the optimizer's step takes them.

The hook is a free function that finds everything through its module, so that a copied model stays whole and never
drags an optimizer along. It copies what it keeps: an in-place operation afterwards changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .declare import Declaration, declaration_of, layer_name
from .errors import DeclarationError, SampleWeightError, ShapeError
from .families import GaussianMean, GaussianScale, gaussian_precision

_enabled: ContextVar[bool] = ContextVar("dagfisher_capture", default=True)
_weights: ContextVar[Tensor | None] = ContextVar("dagfisher_weights", default=None)


class Record(NamedTuple):
    """One captured forward pass of one layer."""

    rows: Tensor
    """The parents, (n × parents), without the constant 1."""
    fisher_weights: tuple[Tensor, ...] | None
    """q of each group of units; None for a Gaussian mean head, whose q comes from its scale head."""
    sample_weights: Tensor
    """One weight per row, not normalised."""
    total: Tensor | None = None
    """The sum of the weights over samples, where a sample has several rows; None: the rows are the samples."""


class Recorder:
    """What one layer's forward passes have left since the last step of its optimizer."""

    def __init__(self) -> None:
        self.armed = False
        self.ran = False
        self.records: list[Record] = []
        self.precisions: list[Tensor] = []

    def clear(self) -> None:
        """Forget what was staged."""
        self.records.clear()
        self.precisions.clear()


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
    token = _weights.set(weights.detach())
    try:
        yield
    finally:
        _weights.reset(token)


def observe(module: nn.Module, parents: Tensor | None, predictor: Tensor) -> None:
    """Feed a declared layer's Fisher with parents and predictor, as if its forward pass had been captured.

    For those who compute gradients themselves, without automatic differentiation. `sample_weights` and `no_capture`
    apply; on a step that reuses its Fisher, nothing is kept. A layer without parents takes None for them.
    """
    declaration = declaration_of(module)
    if declaration is None:
        raise DeclarationError(f"this {type(module).__name__} is not declared; call dagfisher.declare on it first.")
    if declaration.recorder is not None:
        declaration.recorder.ran = True
    if _enabled.get():
        _stage(declaration, parents, predictor)


def forward_hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Stage this forward pass, if an optimizer wants it."""
    declaration = declaration_of(module)
    if declaration is None:
        return
    recorder = declaration.recorder
    if recorder is not None:
        recorder.ran = True
    if not (module.training and torch.is_grad_enabled() and _enabled.get()):
        return
    if declaration.module is not module:
        raise DeclarationError(
            f"layer {layer_name(declaration)} ran as a replica of itself, as nn.DataParallel makes them; "
            f"use one process per device with torch.nn.parallel.DistributedDataParallel."
        )
    _stage(declaration, next(iter((*args, *kwargs.values())), None), output)


def _stage(declaration: Declaration, parents: Any, output: Tensor) -> None:
    module, family = declaration.module, declaration.family
    recorder = declaration.recorder
    armed = recorder is not None and recorder.armed
    mean = declaration.mean_head.recorder if declaration.mean_head is not None else None
    mean_armed = mean is not None and mean.armed
    if not (armed or mean_armed):
        return
    weight, bias = declaration.map.parameters(module)
    parameter = weight if weight is not None else bias
    assert parameter is not None
    dtype = compute_dtype(parameter)
    with torch.no_grad():
        predictor = declaration.map.predictors(module, output.detach()).to(dtype)
        if armed:
            assert recorder is not None
            try:
                rows = declaration.map.rows(module, parents, output)
                rows = rows.to(dtype, copy=_same_memory(rows, parents))
            except ShapeError as error:
                raise ShapeError(f"layer {layer_name(declaration)}: {error}") from None
            q = None if isinstance(family, GaussianMean) else family.fisher_weights(predictor)
            leading = declaration.map.leading(parents, output)
            recorder.records.append(_record(declaration, rows, q, _sample_weights(declaration, leading, rows)))
        if mean_armed:
            assert mean is not None and isinstance(family, GaussianScale)
            mean.precisions.append(gaussian_precision(predictor, family.scale))


def _record(
    declaration: Declaration, rows: Tensor, q: tuple[Tensor, ...] | None, sample: Tensor
) -> Record:
    """The record of one pass; each row carries its sample's weight, and at most `max_rows` rows stand for all."""
    n = rows.shape[0]
    if n == sample.shape[0]:
        return Record(rows, q, sample)
    weights = sample.repeat_interleave(n // sample.shape[0])
    most = declaration.max_rows
    if most is not None and n > most and q is not None:
        chosen = torch.randperm(n, device=rows.device)[:most]
        rows, q = rows[chosen], tuple(part[chosen] for part in q)
        weights = weights[chosen] * (n / most)
    return Record(rows, q, weights, sample.sum())


def _sample_weights(declaration: Declaration, leading: torch.Size, rows: Tensor) -> Tensor:
    weights = _weights.get()
    if weights is None:
        return rows.new_ones(leading.numel())
    if weights.shape != leading[: weights.dim()] or weights.dim() == 0:
        raise SampleWeightError(
            f"layer {layer_name(declaration)}: sample weights of shape {tuple(weights.shape)} do not fit "
            f"a forward pass with samples of shape {tuple(leading)}; give one weight per sample."
        )
    weights = weights.reshape(weights.shape + (1,) * (len(leading) - weights.dim())).expand(leading).reshape(-1)
    return weights.to(rows, copy=True)


def _same_memory(rows: Tensor, parents: Any) -> bool:
    """Whether the rows are a view of the parents, which may change, and not patches copied out of them."""
    return isinstance(parents, Tensor) and rows.untyped_storage().data_ptr() == parents.untyped_storage().data_ptr()


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Statistics and factors are float64 for a float64 parameter and float32 for all others."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
