"""How long the gradient of each example of a minibatch is, in three metrics, from one ordinary backward pass.

The gradient of example n with respect to the weights of a layer is Σ_r δ_r u_rᵀ over its rows r: its samples, its
positions, and the calls of the layer. The forward pass has the parents u, and the backward pass of the minibatch brings
the derivatives δ of all examples at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from ..capture import layer_dtype
from ..errors import MissingStatisticsError, ShapeError
from .layer import TrainedLayer

AT_ONCE = 2**22
"""Numbers in the gradients of examples that exist at once."""


class _Call(NamedTuple):
    """One call of a layer inside the block."""

    parents: Any
    shape: torch.Size
    deltas: list[Tensor]
    """What backward passes brought to its output."""


class ExampleNorms:
    """Norms of the gradients g_n of the examples of one minibatch, over the declared layers of an optimizer.

    Order of life: enter the block, run the minibatch and its ``backward()``, leave it, read the norms. `natural` and
    `fisher` use the Fisher that the optimizer has when they are first read. Parameters that nobody declared, and those
    of :func:`dagfisher.declare_parameter`, are not counted.
    """

    def __init__(self, layers: Sequence[TrainedLayer], examples: Tensor | None) -> None:
        self._layers = [layer for layer in layers if layer.runs]
        self._order: Tensor | None = None
        self._count = 0
        if examples is not None:
            self._order, self._count = _order_of(examples)
        self._calls: dict[TrainedLayer, list[_Call]] = {layer: [] for layer in self._layers}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for layer in self._layers:
            hook = partial(_keep, self._calls[layer])
            self._hooks.append(layer.declaration.module.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @cached_property
    def gradient(self) -> Tensor:
        """‖g_n‖ of each example, (n)."""
        squares = []
        for layer, rows, deltas in self._seen:
            if rows.shape[1] == 1 and layer.columns().mask is None:
                squares.append((rows.square().sum(-1) * deltas.square().sum(-1)).sum((1, 2)))
            else:
                squares.append(torch.cat([g.square().sum((1, 2)) for g in _gradients(layer, rows, deltas)]))
        return _root_of_sum(squares)

    @property
    def natural(self) -> Tensor:
        """‖F̃⁻¹g_n‖ of each example, (n): how long the step of the example alone is, F̃ = (αI + F)/(1 + α)."""
        return self._solved[0]

    @property
    def fisher(self) -> Tensor:
        """√(g_nᵀF̃⁻¹g_n) of each example, (n): the length of that step in the Fisher metric."""
        return self._solved[1]

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        naturals, forms = [], []
        for layer, rows, deltas in self._seen:
            fisher = layer.fitting()
            if fisher is None:
                raise MissingStatisticsError(
                    f"layer {layer.name} has no Fisher yet, or not one that fits what is trained now; call step() "
                    f"before you read the natural norms."
                )
            pairs = []
            for gradients in _gradients(layer, rows, deltas):
                for g in gradients:
                    x = (1 + fisher.damping) * fisher.solve(g)
                    pairs.append(torch.stack([x.square().sum(), (g * x).sum()]))
            natural, form = torch.stack(pairs, dim=1)
            naturals.append(natural)
            forms.append(form)
        return _root_of_sum(naturals), _root_of_sum(forms)

    @cached_property
    def _seen(self) -> list[tuple[TrainedLayer, Tensor, Tensor]]:
        """Of each layer its rows, (n × rows × groups × d), and derivatives, (n × rows × groups × units of a group)."""
        found = []
        for layer, calls in self._calls.items():
            parts = [self._by_example(layer, call) for call in calls if call.deltas]
            if parts:
                rows, deltas = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
                found.append((layer, rows, deltas))
        self._calls.clear()
        if not found:
            raise MissingStatisticsError(
                "no declared layer of this optimizer ran inside the block and had its backward() there."
            )
        if len({len(rows) for _, rows, _ in found}) > 1:
            counts = ", ".join(f"{layer.name} {len(rows)}" for layer, rows, _ in found)
            raise ShapeError(f"the layers do not have the same number of examples ({counts}); give `examples`.")
        return found

    def _by_example(self, layer: TrainedLayer, call: _Call) -> tuple[Tensor, Tensor]:
        declaration, module = layer.declaration, layer.declaration.module
        count = declaration.samples(call.parents, call.shape).numel()
        dtype = layer_dtype(declaration)
        deltas = declaration.map.predictors(module, sum(call.deltas[1:], call.deltas[0])).to(dtype)
        columns = layer.columns()
        rows = deltas.new_ones(len(deltas), 1, 1)
        if columns.weight:
            found = declaration.map.rows(module, call.parents, call.shape).to(dtype)
            found = found if found.dim() == 3 else found.unsqueeze(1)
            rows = torch.cat([found, rows.expand(-1, found.shape[1], 1)], -1) if columns.bias else found
        groups = rows.shape[1]
        parts = [each.reshape(count, -1, groups, each.numel() // (len(each) * groups)) for each in (rows, deltas)]
        if self._order is not None and count != self._count:
            if len(self._order) != count:
                raise ShapeError(
                    f"layer {layer.name} ran with {count} samples; `examples` has {len(self._order)}, of "
                    f"{self._count} examples."
                )
            parts = [each[self._order].reshape(self._count, -1, *each.shape[2:]) for each in parts]
        # Back-propagation brings the derivatives of the mean of n losses, and what is wanted is that of each loss.
        scale = len(parts[0]) if layer.group["loss_reduction"] == "mean" else 1
        return parts[0], parts[1] * scale


def _keep(calls: list[_Call], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
    """A forward hook: keep the parents, and, once they arrive, the derivatives at the output."""
    if not output.requires_grad:
        return
    parents = next(iter((*args, *kwargs.values())), None)
    calls.append(_Call(parents.detach().clone() if isinstance(parents, Tensor) else None, output.shape, []))
    deltas = calls[-1].deltas
    output.register_hook(lambda delta: deltas.append(delta.detach().clone()))  # type: ignore[no-untyped-call]


def _order_of(examples: Tensor) -> tuple[Tensor, int]:
    """The samples in the order of their examples, and how many examples there are."""
    order = examples.reshape(-1).argsort(stable=True)
    counts = examples.reshape(-1).bincount()
    if int(counts.min()) != int(counts.max()):
        raise ShapeError("each example must have the same number of samples.")
    return order, len(counts)


def _gradients(layer: TrainedLayer, rows: Tensor, deltas: Tensor) -> Iterator[Tensor]:
    """The gradients of examples as (some examples × units × d), one chunk after another."""
    mask = layer.columns().mask
    size = deltas[0, 0].numel() * rows.shape[-1]
    step = max(1, AT_ONCE // max(size, 1))
    for u, delta in zip(torch.split(rows, step), torch.split(deltas, step), strict=True):
        gradients = torch.einsum("nrgl,nrgd->ngld", delta, u).flatten(1, 2)
        yield gradients if mask is None else gradients * mask


def _root_of_sum(squares: list[Tensor]) -> Tensor:
    """Over layers, which may be on several devices."""
    device = squares[0].device
    return torch.stack([each.to(device, squares[0].dtype) for each in squares]).sum(0).clamp_min(0).sqrt()
