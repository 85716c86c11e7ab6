"""Gradients, and the vectors made of them, are checked before any parameter moves, and made in full precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from .._reading import Asking, joint, reads_freely, told
from .._torch import sharded_by
from ..capture import compute_dtype
from ..errors import GradientError, NonFiniteError, SettingError
from ..parameter import ParameterDeclaration
from .layer import TrainedLayer


def require_whole(groups: list[dict[str, Any]], names: dict[int, str]) -> None:
    """Raise on a parameter of which this process has only a part, or that is a part of another one."""
    for group in groups:
        for index, p in enumerate(group["params"]):
            if (sharding := sharded_by(p)) is not None:
                raise SettingError(
                    f"parameter {names.get(id(p), index)} is sharded by {sharding}, which leaves each process a part "
                    f"of it; the Fisher block of a unit needs its whole weights and bias. Train declared layers in "
                    f"DistributedDataParallel, or leave them out of the sharding and give the optimizer only these."
                )


def require_dense(groups: list[dict[str, Any]], names: dict[int, str]) -> None:
    """Raise on a gradient that is sparse or complex."""
    for group in groups:
        for index, p in enumerate(group["params"]):
            if p.grad is None or (p.grad.layout == torch.strided and not p.grad.is_complex()):
                continue
            kind, remedy = ("sparse", "build its module with sparse=False")
            if p.grad.is_complex():
                kind, remedy = ("complex", "keep real and imaginary part as a real parameter (torch.view_as_complex)")
            raise GradientError(
                f"parameter {names.get(id(p), index)} has a {kind} gradient, which cannot be applied here; "
                f"{remedy}, or give it to an optimizer of torch.optim."
            )


def blame(
    vectors: dict[Tensor, Tensor], groups: list[dict[str, Any]], layers: list[TrainedLayer], names: dict[int, str]
) -> str:
    """Where an infinity or a NaN began: in what was captured, in a gradient, or in a vector made of finite ones."""
    gradients = {p: p.grad for p in vectors if p.grad is not None}
    return (
        origin(groups, layers, names)
        or _first_bad(gradients, "gradient", _LOSS, groups, layers, names)
        or _first_bad(vectors, "natural gradient", _DAMPING, groups, layers, names)
        or "the gradients are finite, but their sum overflows; no parameter has moved. Look at the scale of the loss."
    )


@contextmanager
def blaming(groups: list[dict[str, Any]], layers: list[TrainedLayer], names: dict[int, str]) -> Iterator[None]:
    """A statistic that is not finite is blamed on the layer where that began."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(origin(groups, layers, names) or str(error)) from None


def origin(groups: list[dict[str, Any]], layers: list[TrainedLayer], names: dict[int, str]) -> str | None:
    """A sentence on the first layer of the forward pass with a parameter or a captured pass that is not finite."""
    for layer in in_forward_order(layers):
        if not layer.recorder.passes and all(p.grad is None for p in layer.parameters):
            continue  # it has no part in this step
        if not _finite([p.parents for p in layer.recorder.passes]):
            others = {id(p) for each in layers for p in each.declaration.parameters}
            for p, name in _named(groups, names):
                if id(p) not in others and not _finite([p]):
                    return f"parameter {name} itself holds {_RUINED}"
            return (
                f"layer {layer.name}: its captured parents hold an infinity or a NaN, and no layer before it does; no "
                f"parameter has moved. Look at the data, and at what is done to them before this layer."
            )
        for kind, parameter in zip(("weight", "bias"), layer.declaration.parameters, strict=True):
            if not _finite([parameter]):
                whose = "" if isinstance(layer.declaration, ParameterDeclaration) else f": its {kind}"
                return f"layer {layer.name}{whose} itself holds {_RUINED}"
        if not _finite([t for p in layer.recorder.passes for t in p.tensors()]):
            joined = any(p.statistics is not None for p in layer.recorder.passes)  # parents and predictors in one
            held, rest = (
                ("captured parents or predictors", "") if joined else ("predictors", ", and its parents do not")
            )
            return (
                f"layer {layer.name}: its {held} hold an infinity or a NaN{rest}; no parameter has moved. Look at the "
                f"data, at the learning rate, and at predictors too large for an exponential."
            )
    return None


_LOSS = "Look at the loss and the data, or lower the learning rate"
_DAMPING = "Look at the data, lower the learning rate, or raise the damping"
_RUINED = (
    "an infinity or a NaN, from before this step; no parameter has moved now. Go back to a checkpoint whose "
    "parameters are finite. Look at the data and at the learning rate."
)


def in_forward_order(layers: list[TrainedLayer]) -> list[TrainedLayer]:
    """The layers as they ran since the last step, or before the last refresh; those that never did come first."""
    return sorted(layers, key=lambda layer: layer.order)


def _first_bad(
    suspects: dict[Tensor, Tensor],
    what: str,
    remedy: str,
    groups: list[dict[str, Any]],
    layers: list[TrainedLayer],
    names: dict[int, str],
) -> str | None:
    """A sentence on the layer nearest to the loss that has such a vector which is not finite, or on a parameter."""
    places = [(f"layer {layer.name}", layer.parameters) for layer in reversed(in_forward_order(layers))]
    places += [(f"parameter {name}", [p]) for p, name in _named(groups, names)]
    for place, parameters in places:
        if not _finite([suspects.get(p) for p in parameters]):
            return f"{place}: its {what} holds an infinity or a NaN; no parameter has moved. {remedy}."
    return None


def _named(groups: list[dict[str, Any]], names: dict[int, str]) -> list[tuple[Tensor, str]]:
    """Every parameter, with its name or its number in its group."""
    return [(p, names.get(id(p), str(i))) for group in groups for i, p in enumerate(group["params"])]


def _finite(tensors: Iterable[Tensor | None]) -> bool:
    return all(t is None or bool(t.isfinite().all()) for t in tensors)


@contextmanager
def full_precision(layers: list[TrainedLayer]) -> Iterator[None]:
    """No gradients are recorded, and no operation is cast to half precision, whatever autocast is active."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind in {p.device.type for layer in layers for p in layer.parameters}:
            if kind != "meta" and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class FiniteGuard:
    """Lets no infinity or NaN reach a parameter, without making an accelerator wait on a step that reuses."""

    def __init__(self) -> None:
        self._skipped: Tensor | None = None

    def require(
        self,
        vectors: dict[Tensor, Tensor],
        squares: dict[Tensor, Tensor],
        whole: list[Tensor],
        *,
        refreshing: bool,
        blamed: Callable[[], str],
    ) -> Asking[dict[torch.device, Tensor]]:
        """Raise on an infinity or a NaN; an accelerator that reuses skips the step and the next refresh raises.

        `whole` are tensors whose sums are not finite if a vector, or the square of its length, is not. What is returned
        says of each accelerator whether its parameters may move.
        """
        sound: dict[torch.device, Tensor] = {}
        for device in {v.device for v in whole}:
            here = [v for v in whole if v.device == device and v.numel()]
            if here:
                # A sum is infinite or NaN if a term is; it is taken where half precision does not overflow.
                sums = [v.float() if v.dim() == 0 else v.sum(dtype=compute_dtype(v)).float() for v in here]
                sound[device] = torch.stack(sums).isfinite().all()
        gates = {} if refreshing else {device: flag for device, flag in sound.items() if not reads_freely(device)}
        asked = {device: flag for device, flag in sound.items() if device not in gates}
        before = [self._skipped] if refreshing and self._skipped is not None else []
        answers = yield from joint([told(flag) for flag in (*asked.values(), *before)])
        for device, (finite,) in zip(asked, answers, strict=False):
            if not finite and not _finite(v for v in vectors.values() if v.device == device):
                raise NonFiniteError(blamed())
        for device, flag in gates.items():
            self._skipped = ~flag if self._skipped is None else self._skipped | ~flag.to(self._skipped.device)
            for kept in (vectors, squares):
                for p, v in kept.items():
                    if v.device == device:
                        kept[p] = torch.where(flag, v, torch.zeros_like(v))
        if before:
            self._skipped = None
            if answers[-1][0]:
                raise NonFiniteError(
                    "a gradient since the last refresh held an infinity or a NaN; those steps moved nothing. "
                    "Look at the data and the learning rate."
                )
        return gates
