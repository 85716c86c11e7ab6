"""Forward passes become rows of U and Fisher weights q, staged until the optimizer's step takes them.

The hook is a free function that finds everything through its module, so that a copied model stays whole and never
drags an optimizer along. It copies what it keeps: an in-place operation afterwards changes nothing.

What zero_grad() clears, it also forgets: passes whose backward() came before it. A pass from before zero_grad() counts
if its backward() comes after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from .declare import Declaration, declaration_of, layer_name
from .deterministic import edge_of, follow
from .errors import DeclarationError, SampleWeightError, ShapeError
from .families import Deterministic, GaussianMean, GaussianScale, gaussian_precision
from .records import Backward, Gram, Record, Recorder
from .segments import grams

ACCUMULATE = 2**22
"""Numbers in the rows of a convolution's pass above which its Gram matrices are summed in chunks of this size."""

_enabled: ContextVar[bool] = ContextVar("dagfisher_capture", default=True)
_weights: ContextVar[Tensor | None] = ContextVar("dagfisher_weights", default=None)
_outside_graphs: Callable[..., None] | None = None


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
    capture = _outside_graphs
    if capture is None:
        capture = _leave_graphs() if "torch._dynamo" in sys.modules else _capture
    capture(module, args, kwargs, output)


def _leave_graphs() -> Callable[..., None]:
    """`_capture` outside the graphs of torch.compile: what they would trace differs from step to step."""
    global _outside_graphs
    outside: Any = torch.compiler.disable(_capture)  # type: ignore[no-untyped-call]
    outside._torchdynamo_disable_msg = (
        "dagfisher looks at the parents and the output of each declared layer between two graphs; "
        "call torch.compile without fullgraph=True."
    )
    _outside_graphs = outside
    return outside  # type: ignore[no-any-return]


def _capture(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    declaration = declaration_of(module)
    if declaration is None:
        return
    recorder = declaration.recorder
    if recorder is not None:
        recorder.ran = True
    if not (module.training and torch.is_grad_enabled() and _enabled.get()):
        return
    if torch._C._current_graph_task_id() != -1:
        # Activation checkpointing runs a pass again during backward(); the first run was captured, with its weights.
        if recorder is not None:
            recorder.recomputed = True
        return
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return  # inside vmap, grad or jvp of torch.func there are no tensors to keep
    if declaration.module is not module:
        raise DeclarationError(
            f"layer {layer_name(declaration)} ran as a replica of itself, as nn.DataParallel makes them; "
            f"use one process per device with torch.nn.parallel.DistributedDataParallel."
        )
    _stage(declaration, next(iter((*args, *kwargs.values())), None), output)


def _wanted(declaration: Declaration | None) -> Recorder | None:
    """The layer's recorder, if the coming step refreshes and any of the layer's parameters is trained."""
    recorder = declaration.recorder if declaration is not None else None
    if declaration is None or recorder is None or not recorder.armed:
        return None
    trained = any(p is not None and p.requires_grad for p in declaration.map.parameters(declaration.module))
    return recorder if trained else None


def _stage(declaration: Declaration, parents: Any, output: Any) -> None:
    module, family = declaration.module, declaration.family
    recorder, mean = _wanted(declaration), _wanted(declaration.mean_head)
    if recorder is None and mean is None:
        return
    weight, bias = declaration.map.parameters(module)
    parameter = weight if weight is not None else bias
    assert parameter is not None
    dtype = compute_dtype(parameter)
    with torch.no_grad():
        try:
            predictor = _predictor(declaration, output).to(dtype)
            if recorder is not None:
                if weight is not None and not isinstance(parents, Tensor):
                    raise ShapeError(f"its parents must be one tensor, not a {type(parents).__name__}.")
                record = _record(declaration, recorder, parents, output, predictor)
                edge = edge_of(output)
                followed = None
                if recorder.follows and edge is not None:
                    followed = follow(declaration, *edge, declaration.map.leading(parents, output).numel())
                backward = None if edge is None else _follow(edge[0])
                recorder.records.append(record._replace(backward=backward, followed=followed))
        except ShapeError as error:
            raise ShapeError(f"layer {layer_name(declaration)}: {error}") from None
        if mean is not None:
            assert isinstance(family, GaussianScale)
            mean.precisions.append(gaussian_precision(predictor, family.scale))


def _predictor(declaration: Declaration, output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise ShapeError(f"its output is a {type(output).__name__}; a declared layer gives its predictor, one tensor.")
    units = declaration.map.units(declaration.module)
    predictor = declaration.map.predictors(declaration.module, output.detach())
    if predictor.shape[-1] != units:
        raise ShapeError(
            f"its predictor of shape {tuple(output.shape)} does not fit its {units} units; if its parameters were "
            f"given other shapes, build and declare a new module instead."
        )
    return predictor


def _follow(edge: GradientEdge) -> Backward:
    """What will know whether backward() went through the output that stands there."""
    backward = Backward()
    edge.node.register_hook(backward)
    return backward


def _record(declaration: Declaration, recorder: Recorder, parents: Any, output: Tensor, predictor: Tensor) -> Record:
    """The record of one pass; each row carries its sample's weight, and at most `max_rows` rows stand for all."""
    module, family, leading = declaration.module, declaration.family, declaration.map.leading(parents, output)
    sample = _sample_weights(declaration, leading, predictor)
    q = None if isinstance(family, (GaussianMean, Deterministic)) else family.fisher_weights(predictor)
    n, most = predictor.shape[0], declaration.max_rows
    if q is not None and recorder.accumulates and most is None and n > leading.numel() > 1:
        chunk = ACCUMULATE * leading.numel() // declaration.map.row_numbers(module, n)
        if chunk < leading.numel():
            return _accumulated(declaration, parents, output, q, sample, max(1, chunk))
    rows = declaration.map.rows(module, parents, output)
    rows = rows.to(predictor.dtype, copy=_same_memory(rows, parents))
    if len(rows) != n:
        raise ShapeError(f"{len(rows)} rows of parents do not fit {n} rows of predictors.")
    if n == sample.shape[0]:
        return Record(rows, q, sample)
    weights = sample.repeat_interleave(n // max(sample.shape[0], 1))
    if most is not None and n > most and q is not None:
        chosen = torch.randperm(n, device=rows.device, generator=_generator(recorder, rows.device))[:most]
        rows, q = rows[chosen], tuple(part[chosen] for part in q)
        weights = weights[chosen] * (n / most)
    return Record(rows, q, weights, sample.sum())


def _generator(recorder: Recorder, device: torch.device) -> torch.Generator:
    """Random numbers of the pass's own: a model's dropout does not notice, and a resumed run draws the same rows."""
    recorder.drawn += 1
    seed = (torch.initial_seed() * 1_000_003 + recorder.step) * 1_000_003 + recorder.drawn
    return torch.Generator(device=device).manual_seed(seed % 2**63)


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
