"""The parameters of a declared layer as one matrix: a row for each unit, a column for each parent, the bias last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..capture import Recorder, compute_dtype
from ..declaration import Declaration, require_own_parameters
from ..errors import DeclarationError, MissingStatisticsError
from ..maps import from_matrix, to_matrix
from ..parameter import ParameterDeclaration, ParameterRecorder


class LayerMatrix:
    """The weight and the bias of a declared layer that one optimizer trains, and their gradients as a matrix.

    Order of life: `bind` to param groups; then `gradient` and `split` at every step.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._parameter = declaration if isinstance(declaration, ParameterDeclaration) else None
        self.recorder = Recorder() if self._parameter is None else ParameterRecorder(self._parameter)

    def bind(self, group_of: dict[int, dict[str, Any]], names: dict[int, str]) -> None:
        """Note which of weight and bias are trained here, and in which groups."""
        weight, bias = self.declaration.parameters
        self._weight = weight if id(weight) in group_of else None
        self._bias = bias if id(bias) in group_of else None
        self.groups = [group_of[id(p)] for p in self.parameters]
        self.group = self.groups[0]
        self._layout_key: tuple[Any, ...] | None = None
        self._known_layout: list[Any] = []
        self.recorder.held = (self._weight, self._bias)
        for p in self.parameters:
            name = names.get(id(p), "")
            owner = name.rpartition(".")[0] if self._parameter is None else name
            if owner:
                self.declaration.learn_name(owner)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of this layer that the optimizer holds."""
        return [p for p in (self._weight, self._bias) if p is not None]

    @property
    def runs(self) -> bool:
        """Whether it is a module with forward passes, not a declared parameter."""
        return self._parameter is None

    @property
    def name(self) -> str:
        """The layer's qualified name, in quotes."""
        return self.declaration.name

    def _trained(self) -> tuple[Tensor | None, Tensor | None]:
        weight = self._weight if self._weight is not None and self._weight.requires_grad else None
        bias = self._bias if self._bias is not None and self._bias.requires_grad else None
        return weight, bias

    def layout(self) -> list[Any]:
        """What a prepared Fisher must fit: the trained ones of weight and bias, units, parents, family and dtype."""
        weight, bias = self._trained()
        key = (None if weight is None else weight.shape, bias is None, self._dtype())
        if key != self._layout_key:
            self._layout_key, self._known_layout = key, self._make_layout(weight, bias)
        return self._known_layout

    def _make_layout(self, weight: Tensor | None, bias: Tensor | None) -> list[Any]:
        units = sum(self.declaration.sizes)
        width = (0 if weight is None else weight.numel() // max(units, 1)) + (bias is not None)
        family, dtype = self.declaration.family.name, str(self._dtype())
        family += ", coupled" if self.declaration.coupled > 1 else ""
        return [weight is not None, bias is not None, units, width, family, dtype]

    def _dtype(self) -> torch.dtype:
        parameter = self._weight if self._weight is not None else self._bias
        assert parameter is not None
        return compute_dtype(parameter)

    def gradient(self, samples: Tensor | None = None) -> Tensor | None:
        """The gradients of the trained parameters as one (units × parents) matrix; None if there are none.

        `samples` are those that a loss is a sum over; by default those of the forward passes.
        """
        self._require_parameters()
        weight, bias = self._trained()
        parts = [None if p is None else p.grad for p in (weight, bias)]
        if parts[0] is None and parts[1] is None:
            return None
        for i, p in enumerate((weight, bias)):
            if p is not None and parts[i] is None:
                parts[i] = torch.zeros_like(p)
        dtype = self._dtype()
        weight_part, bias_part = (g if g is None or g.dtype == dtype else g.to(dtype) for g in parts)
        if self.group["loss_reduction"] == "sum":
            count = self._count() if samples is None else samples
            weight_part, bias_part = (None if g is None else g / count for g in (weight_part, bias_part))
        if weight_part is not None:
            mask = self.weight_mask()
            if mask is not None:
                weight_part = weight_part * mask
            weight_part = self.declaration.map.unit_major(self.declaration.module, weight_part)
        return to_matrix(weight_part, bias_part)

    def weight_mask(self) -> Tensor | None:
        """The layer's mask on the device of its weight, shaped like it; None if there is none or it is not trained."""
        if self._weight is None or self.declaration.mask is None:
            return None
        self.declaration.mask_matrix(self._weight.device)
        return self.declaration.mask

    def _mask(self) -> Tensor | None:
        """The mask as the solvers take it, (units × d), a column of ones for a trained bias."""
        weight, bias = self._trained()
        mask = None if weight is None else self.declaration.mask_matrix(weight.device)
        if mask is None or bias is None:
            return mask
        return torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)

    def _count(self) -> int:
        """The samples that the loss is a sum over."""
        if not self.recorder.samples:
            raise MissingStatisticsError(
                f"layer {self.name}: loss_reduction='sum' divides by the samples of the forward passes since the last "
                f"step or zero_grad(), and there were none in training mode with gradients enabled."
            )
        return self.recorder.samples

    def _require_parameters(self) -> None:
        """Raise if the module no longer has the parameters that the optimizer holds."""
        for name, held, own in zip(
            ("weight", "bias"), (self._weight, self._bias), self.declaration.parameters, strict=True
        ):
            if held is not None and own is not held:
                require_own_parameters(self.declaration)
                raise DeclarationError(
                    f"layer {self.name}: its {name} was replaced since this optimizer was built, which would go on "
                    f"training the old one; build the optimizer anew, or copy values into the old {name}."
                )

    def split(self, matrix: Tensor) -> dict[Tensor, Tensor]:
        """A matrix, (units × d), cut into vectors that are shaped like the trained parameters."""
        weight, bias = self._trained()
        trained = [p for p in (weight, bias) if p is not None]
        shape = None if weight is None else self.declaration.map.unit_major(self.declaration.module, weight)
        views = from_matrix(matrix, shape, bias)
        if weight is not None:
            views[0] = self.declaration.map.weight_major(self.declaration.module, views[0])
        return dict(zip(trained, views, strict=True))
