"""Forward passes become rows of U and Fisher weights q, staged until the optimizer's step takes them.

The hook is a free function that finds everything through its module, so that a copied model stays whole and never
drags an optimizer along. It copies what it keeps: an in-place operation afterwards changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from .declare import Declaration, declaration_of, layer_name
from .errors import DeclarationError, SampleWeightError, ShapeError
from .families import GaussianMean, GaussianScale, gaussian_precision
from .records import Gram, Record, Recorder
from .segments import grams

ACCUMULATE = 2**22
"""Numbers in the rows of a convolution's pass above which its Gram matrices are summed in chunks of this size."""

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
                recorder.records.append(_record(declaration, recorder, parents, output, predictor))
            except ShapeError as error:
                raise ShapeError(f"layer {layer_name(declaration)}: {error}") from None
        if mean_armed:
            assert mean is not None and isinstance(family, GaussianScale)
            mean.precisions.append(gaussian_precision(predictor, family.scale))


def _record(
    declaration: Declaration, recorder: Recorder, parents: Any, output: Tensor, predictor: Tensor
) -> Record:
    """The record of one pass; each row carries its sample's weight, and at most `max_rows` rows stand for all."""
    module, family, leading = declaration.module, declaration.family, declaration.map.leading(parents, output)
    sample = _sample_weights(declaration, leading, predictor)
    q = None if isinstance(family, GaussianMean) else family.fisher_weights(predictor)
    n, most = predictor.shape[0], declaration.max_rows
    if q is not None and recorder.accumulates and most is None and n > leading.numel() > 1:
        chunk = ACCUMULATE * leading.numel() // declaration.map.row_numbers(module, n)
        if chunk < leading.numel():
            return _accumulated(declaration, parents, output, q, sample, max(1, chunk))
    rows = declaration.map.rows(module, parents, output)
    rows = rows.to(predictor.dtype, copy=_same_memory(rows, parents))
    if n == sample.shape[0]:
        return Record(rows, q, sample)
    weights = sample.repeat_interleave(n // sample.shape[0])
    if most is not None and n > most and q is not None:
        chosen = torch.randperm(n, device=rows.device)[:most]
        rows, q = rows[chosen], tuple(part[chosen] for part in q)
        weights = weights[chosen] * (n / most)
    return Record(rows, q, weights, sample.sum())


def _accumulated(
    declaration: Declaration, parents: Tensor, output: Tensor, q: tuple[Tensor, ...], sample: Tensor, chunk: int
) -> Record:
    """The Gram matrices of a convolution's pass, summed over chunks of so many samples."""
    module = declaration.module
    sizes = declaration.family.split(declaration.map.units(module))
    positions = q[0].shape[0] // sample.shape[0]
    found: tuple[Gram, ...] = ()
    for start in range(0, sample.shape[0], chunk):
        part = slice(start, start + chunk)
        rows = declaration.map.rows(module, parents[part], output[part]).to(sample.dtype)
        fisher = tuple(each[start * positions : (start + chunk) * positions] for each in q)
        here = grams(rows, fisher, sample[part].repeat_interleave(positions), sizes)
        for total, more in zip(found, here, strict=False):
            total.blocks.add_(more.blocks)
        found = found or here
    return Record(sample.new_empty(0, 0), fisher_weights=(), sample_weights=sample, total=sample.sum(), grams=found)


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
