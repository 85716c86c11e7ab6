"""The forward hook of declared layers, which stages each pass in the recorder of its layer until a step takes it.

The hook is a free function that finds everything through its module, so that a copied model stays whole and never
drags an optimizer along. It copies what it keeps: an in-place operation afterwards changes nothing. It makes no
statistics: the step does that, which knows what its solver needs, or the recorder where a pass is too large to keep.

The recorder forgets what zero_grad() clears, which is every pass that had its backward() already. If zero_grad() comes
between the forward and the backward of a pass, that pass still counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from .._reading import reads_freely
from .._torch import inside_backward, inside_transform, outside_graphs
from ..declaration import Declaration, declaration_of, require_own_parameters
from ..errors import DeclarationError, SampleWeightError, ShapeError
from ..families import Deterministic, Family, GaussianConstant, GaussianScale
from .agreement import another_map, is_its_map, mismatch
from .context import capturing, fitted, require_weights, weights_of
from .pending import Derivative, Draw, NoGraph, Pending, edge_of
from .records import Backward, Pass, Received, Recorder

_outside_graphs: Callable[..., None] | None = None


def observe(module: nn.Module, parents: Tensor | None, predictor: Tensor) -> None:
    """Feed a declared layer's Fisher with parents and predictor, as if its forward pass had been captured.

    For those who compute gradients themselves, without automatic differentiation. `sample_weights` and `no_capture`
    apply; on a step that reuses its Fisher, nothing is kept.

    Args:
        module: a declared module.
        parents: what its forward pass would be given, for a linear layer (… × in_features); None for a layer without
            parents.
        predictor: what its forward pass would give, for a linear layer (… × out_features).
    """
    declaration = declaration_of(module)
    if declaration is None:
        raise DeclarationError(f"this {type(module).__name__} is not declared; call dagfisher.declare on it first.")
    if declaration.recorder is not None:
        declaration.recorder.ran = True
    if capturing():
        _stage(declaration, parents, predictor, check=False)


def forward_hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Stage this forward pass, if an optimizer wants it."""
    if not torch.compiler.is_compiling():
        _capture(module, args, kwargs, output)
    elif _outside_graphs is not None and module.training and torch.is_grad_enabled():
        _outside_graphs(module, args, kwargs, output)
    # Without an optimizer, in eval() and under no_grad() nothing is captured, and torch.compile may have a whole graph.


def leave_graphs() -> None:
    """From now on passes are captured outside the graphs of torch.compile: what those would trace changes every step.

    The first optimizer with declared layers calls it.
    """
    global _outside_graphs
    if _outside_graphs is None:
        _outside_graphs = outside_graphs(
            _capture,
            "dagfisher looks at the parents and the output of each declared layer between two graphs; "
            "call torch.compile without fullgraph=True.",
        )


def _capture(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    declaration = declaration_of(module)
    if declaration is None:
        return
    recorder = declaration.recorder
    if recorder is not None:
        recorder.ran = True
    if not (module.training and torch.is_grad_enabled() and capturing()):
        return
    counts = recorder is not None and recorder.counts
    if not counts and _wanted(declaration) is None and _wanted(declaration.mean_head) is None:
        return
    if inside_backward():
        # Activation checkpointing runs a pass again during backward(); the first run was captured, with its weights.
        if recorder is not None:
            recorder.recomputed = True
        return
    if inside_transform():
        return  # inside vmap, grad or jvp of torch.func there are no tensors to keep
    if declaration.module is not module:
        raise DeclarationError(
            f"layer {declaration.name} ran as a replica of itself, as nn.DataParallel makes them; "
            f"use one process per device with torch.nn.parallel.DistributedDataParallel."
        )
    parents = next(iter((*args, *kwargs.values())), None)
    if counts and isinstance(output, Tensor):
        recorder.samples += declaration.samples(parents, output.shape).numel()
    _stage(declaration, parents, output, check=declaration.reading.check)


def _wanted(declaration: Declaration | None) -> Recorder | None:
    """The layer's recorder, if the coming step refreshes and any of the layer's parameters is trained."""
    recorder: Recorder | None = declaration.recorder if declaration is not None else None
    if declaration is None or recorder is None or not recorder.armed:
        return None
    for own, held in zip(declaration.parameters, recorder.held, strict=True):
        if own is not None and held is not None and own is not held:
            if own.grad_fn is not None:
                require_own_parameters(declaration)  # a parametrization that came after the declaration
                raise DeclarationError(
                    f"layer {declaration.name} was called with a weight or bias that is computed from other tensors, "
                    f"as torch.func.functional_call can do; its Fisher blocks are those of its own parameters. Call "
                    f"it with these, or inside no_capture()."
                )
            return None  # another tensor in the place of the parameter: no gradient of this pass reaches the parameter
    trained = any(p is not None and p.requires_grad for p in declaration.parameters)
    return recorder if trained else None


@torch.no_grad()
def _stage(declaration: Declaration, parents: Any, output: Any, *, check: bool) -> None:
    recorder, mean = _wanted(declaration), _wanted(declaration.mean_head)
    if recorder is None and mean is None:
        return
    try:
        predictor = _predictor(declaration, output)
        if recorder is not None:
            each = _pass(declaration, recorder, parents, output, predictor)
            if check and not is_its_map(declaration):
                each.mismatch = _checked(declaration, parents, output)
            recorder.add(each)
    except ShapeError as error:
        raise ShapeError(f"layer {declaration.name}: {error}") from None
    if mean is not None:
        assert isinstance(declaration.family, GaussianScale)
        mean.tell(declaration.family.mean_weights(predictor))


def weigh(declaration: Declaration, recorder: Recorder, weights: Any) -> None:
    """Give weights to the passes of a layer that were given none yet."""
    given = require_weights(weights)
    for each in recorder.passes:
        if each.weighted:
            continue
        if each.statistics is not None:
            raise SampleWeightError(
                f"layer {declaration.name}: a pass of it was too large to keep, and its statistics were made without "
                f"weights; run it inside sample_weights(w) instead."
            )
        each.sample_weights = fitted(declaration, given, each.samples, each.sample_weights)
        each.weighted = True


def _predictor(declaration: Declaration, output: Any) -> Tensor:
    """The output as (n × units), in the dtype of the statistics."""
    if not isinstance(output, Tensor):
        raise ShapeError(f"its output is a {type(output).__name__}; a declared layer gives its predictor, one tensor.")
    predictor = declaration.map.predictors(declaration.module, output.detach())
    if predictor.shape[-1] != declaration.units:
        raise ShapeError(
            f"its predictor of shape {tuple(output.shape)} does not fit its {declaration.units} units; if its "
            f"parameters were given other shapes, build and declare a new module instead."
        )
    return predictor.to(layer_dtype(declaration))


def _pass(declaration: Declaration, recorder: Recorder, parents: Any, output: Tensor, predictor: Tensor) -> Pass:
    """What this forward pass leaves behind."""
    module, has_parents = declaration.module, declaration.parameters[0] is not None
    if has_parents and not isinstance(parents, Tensor):
        raise ShapeError(f"its parents must be one tensor, not a {type(parents).__name__}.")
    samples = declaration.samples(parents, output.shape)
    weights, weighted = weights_of(declaration, samples, predictor)
    found = edge_of(output)
    edge = None if found is None else found[0]
    received = None
    if recorder.watches and edge is not None:
        received = Received(edge.output_nr, partial(_rows_of, declaration.map.unit_axis(module)))
    draw = None
    if recorder.follows and found is not None and declaration.family.weights_from != "backward":
        draw = Draw(found[0], found[1].detach().clone(), declaration.map.unit_axis(module))
    return Pass(
        parents=parents.detach().to(predictor.dtype, copy=True) if has_parents else None,
        shape=output.shape,
        samples=samples,
        fisher_weights=_fisher_weights(declaration, recorder, predictor, edge, samples.numel()),
        sample_weights=weights,
        weighted=weighted,
        backward=None if edge is None else _tracked(edge, received),
        draw=draw,
        received=received,
    )


def _fisher_weights(
    declaration: Declaration, recorder: Recorder, predictor: Tensor, edge: GradientEdge | None, samples: int
) -> tuple[Tensor, ...] | Pending:
    """q of each group of units, or what will know it."""
    family = declaration.family
    if isinstance(family, Deterministic):
        return NoGraph() if edge is None else Derivative(family, edge, samples)
    if family.weights_from == "scale head":
        return recorder.head_weights()
    if isinstance(family, GaussianConstant):
        assert declaration.scale_parameter is not None
        return family.mean_weights(declaration.scale_parameter.detach().to(predictor), len(predictor))
    assert isinstance(family, (Family, GaussianScale))
    return family.fisher_weights(predictor)


def _checked(declaration: Declaration, parents: Any, output: Tensor) -> Tensor | None:
    """How far the output is from the declared map; None if that was read at once.

    It is for the first pass of a layer, and wherever reading costs nothing; otherwise the step reads it.
    """
    found = mismatch(declaration, parents, output)
    if declaration.agrees and not reads_freely(output.device):
        return found
    if float(found) > 1:
        raise another_map(declaration)
    declaration.agrees = True
    return None


def _rows_of(unit_axis: int, gradient: Tensor) -> Tensor:
    """(n × units)."""
    return gradient.movedim(unit_axis, -1).flatten(0, -2)


def _tracked(edge: GradientEdge, received: Received | None) -> Backward:
    """What will know whether backward() went through the output at this edge."""
    backward = Backward(received)
    edge.node.register_hook(backward)
    return backward


def layer_dtype(declaration: Declaration) -> torch.dtype:
    """The dtype of a layer's statistics and factors."""
    weight, bias = declaration.parameters
    parameter = weight if weight is not None else bias
    assert parameter is not None
    return compute_dtype(parameter)


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Statistics and factors are float64 for a float64 parameter and float32 for all others."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
