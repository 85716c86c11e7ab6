"""Linear maps from parents to predictors: which rows of U a forward pass gives, and how a gradient is a matrix.

A map knows no distributions. Its matrix view has one row per unit (output feature) and one column per parent;
the bias, if trained, is the last column: the weight of a parent that is always 1.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .errors import DeclarationError, ShapeError


class Map(Protocol):
    """How one type of module turns parents into predictors."""

    def leading(self, parents: Any, output: Tensor) -> torch.Size:
        """The shape of the samples in this forward pass: the axes that sample weights may follow."""

    def rows(self, module: nn.Module, parents: Any, output: Tensor) -> Tensor:
        """The parents of every predictor without the constant 1, (n × parents), n a multiple of the samples.

        Where groups of units have parents of their own: (n × groups × parents).
        """

    def row_numbers(self, module: nn.Module, n: int) -> int:
        """How many numbers n rows hold."""

    def predictors(self, module: nn.Module, output: Tensor) -> Tensor:
        """The output as (n × units), its rows in the order of `rows`."""

    def parameters(self, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of the module, None where it has none."""

    def units(self, module: nn.Module) -> int:
        """The number of units, one Fisher block each."""

    def unit_major(self, module: nn.Module, weight: Tensor) -> Tensor:
        """A tensor shaped like the weight, with the units on its first axis."""

    def weight_major(self, module: nn.Module, unit_major: Tensor) -> Tensor:
        """The inverse of `unit_major`."""


class WeightIsUnitMajor:
    """Maps whose weight has the units on its first axis already."""

    def unit_major(self, module: nn.Module, weight: Tensor) -> Tensor:
        return weight

    def weight_major(self, module: nn.Module, unit_major: Tensor) -> Tensor:
        return unit_major


class LinearMap(WeightIsUnitMajor):
    """`nn.Linear`: every leading axis of the input is a sample."""

    def leading(self, parents: Any, output: Tensor) -> torch.Size:
        return output.shape[:-1]

    def rows(self, module: nn.Module, parents: Any, output: Tensor) -> Tensor:
        expected = module.in_features
        if parents.dim() == 0 or parents.shape[-1] != expected:
            raise ShapeError(f"parents of shape {tuple(parents.shape)} do not end in {expected} features.")
        rows: Tensor = parents.detach().reshape(-1, parents.shape[-1])
        return rows

    def row_numbers(self, module: nn.Module, n: int) -> int:
        return n * int(module.in_features)  # type: ignore[arg-type]

    def predictors(self, module: nn.Module, output: Tensor) -> Tensor:
        return output.reshape(-1, output.shape[-1])

    def parameters(self, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        return module.weight, module.bias  # type: ignore[return-value]

    def units(self, module: nn.Module) -> int:
        return int(module.out_features)  # type: ignore[arg-type]


class ConstantMap(WeightIsUnitMajor):
    """A layer with no parents but the constant 1: its predictor is its bias, the same for every sample."""

    def leading(self, parents: Any, output: Tensor) -> torch.Size:
        return output.shape[:-1]

    def rows(self, module: nn.Module, parents: Any, output: Tensor) -> Tensor:
        return output.new_empty(output.shape[:-1].numel(), 0)

    def row_numbers(self, module: nn.Module, n: int) -> int:
        return 0

    def predictors(self, module: nn.Module, output: Tensor) -> Tensor:
        return output.reshape(-1, output.shape[-1])

    def parameters(self, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        return None, module.bias  # type: ignore[return-value]

    def units(self, module: nn.Module) -> int:
        bias: Any = module.bias
        return int(bias.shape[0])


def map_of(module: nn.Module) -> Map:
    """The map of a module, by its type."""
    if isinstance(module, nn.Linear):
        return LinearMap()
    if getattr(module, "constant_map", False):
        return ConstantMap()
    if isinstance(module, nn.modules.conv._ConvNd):
        from .convolution import ConvolutionMap, TransposedMap

        return TransposedMap() if module.transposed else ConvolutionMap()
    raise DeclarationError(
        f"a {type(module).__name__} cannot be declared: dagfisher knows nn.Linear, convolutions, transposed "
        f"convolutions and the layers of dagfisher.nn. "
        f"Declare the linear map inside it instead."
    )


def to_matrix(weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Gradients of weight and bias as one (units × parents) matrix; None stands for a part that is not trained."""
    parts = []
    if weight is not None:
        parts.append(weight.reshape(weight.shape[0], -1))
    if bias is not None:
        parts.append(bias.reshape(-1, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def from_matrix(matrix: Tensor, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """The inverse of `to_matrix`: views shaped like the trained ones of weight and bias, in that order."""
    views = []
    if weight is not None:
        columns = matrix if bias is None else matrix[:, :-1]
        views.append(columns.reshape(weight.shape))
    if bias is not None:
        views.append(matrix[:, -1].reshape(bias.shape))
    return views
