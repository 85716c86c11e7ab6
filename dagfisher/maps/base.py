"""What a map is, the maps that are known by module type, and a layer's parameters as one matrix.

The matrix view has one row per unit and one column per parent; the bias, if it is trained, is the last column: the
weight of a parent that is always 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DeclarationError


class Map:
    """How modules of one type turn parents into predictors; subclass it and `register_map` to add one.

    Row k of `rows` times the weights of unit j, plus its bias, is entry (k, j) of `predictors`. A map knows no
    distributions and keeps nothing. `dagfisher.testing.check_map` holds a map to this contract.
    """

    def parameters(self, module: Any) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of the module, None where it has none; they must be parameters of the module itself."""
        return module.weight, module.bias

    def units(self, module: Any) -> int:
        """The number of units, one Fisher block each."""
        raise NotImplementedError

    def samples(self, module: Any, parents: Any, shape: torch.Size) -> torch.Size:
        """The shape of the samples in a forward pass: the axes that sample weights may follow.

        Args:
            module: the declared module.
            parents: the first argument of its forward pass.
            shape: of its output.

        Returns:
            A shape whose number of elements divides the number of rows.

        Raises:
            ShapeError: the parents do not fit the module.
        """
        raise NotImplementedError

    def row_size(self, module: Any) -> int:
        """How many numbers a row holds."""
        raise NotImplementedError

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        """The parents of every predictor, without the constant 1.

        Args:
            module: the declared module.
            parents: the first argument of its forward pass.
            shape: of its output.

        Returns:
            (n × parents), the rows of a sample next to each other; (n × groups × parents) where groups of units have
            parents of their own, as in a grouped convolution. It may be a view of `parents`.
        """
        raise NotImplementedError

    def offset(self, module: Any, parents: Any, shape: torch.Size) -> Tensor | None:
        """What the predictors have that no parameter of this map moves, (n × units) or (units); None: nothing.

        For example the part of a frozen weight beside a low-rank adapter.
        """
        return None

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        """The output as one row of units for each row of parents.

        Args:
            module: the declared module.
            output: of its forward pass.

        Returns:
            (n × units), in the order of `rows`.
        """
        raise NotImplementedError

    def unit_axis(self, module: Any) -> int:
        """The axis of the output that the units are on, counted from the end."""
        return -1

    def unit_major(self, module: Any, weight: Tensor) -> Tensor:
        """The weight, or a gradient of it, with the units on its first axis and the parents of a row on the others.

        Args:
            module: the declared module.
            weight: shaped like the module's weight.

        Returns:
            (units × …); flattened from the second axis on, its rows multiply the `rows`.
        """
        return weight

    def weight_major(self, module: Any, unit_major: Tensor) -> Tensor:
        """The inverse of `unit_major`: (units × …) in the shape of the module's weight."""
        return unit_major


_MAPS: dict[type[nn.Module], Map] = {}


def register_map(module_type: type[nn.Module], how: Map) -> None:
    """Let modules of this type, and of types derived from it, be declared; the nearest type counts.

    Args:
        module_type: a subclass of ``nn.Module``.
        how: the map of such modules. A type that has a map of its own already is an error.
    """
    if module_type in _MAPS and type(_MAPS[module_type]) is not type(how):
        raise DeclarationError(f"a {module_type.__name__} has a map already; derive a type of your own from it.")
    _MAPS[module_type] = how


def mapped_type(module: nn.Module) -> type[nn.Module] | None:
    """The type whose map the module has: its own, or the nearest that it derives from; None if there is none."""
    return next((kind for kind in type(module).__mro__ if kind in _MAPS), None)


def map_of(module: nn.Module) -> Map:
    """The map of a module: that of its type, or of the nearest type that it derives from.

    Raises:
        DeclarationError: no such type is registered.
    """
    kind = mapped_type(module)
    if kind is not None:
        return _MAPS[kind]
    raise DeclarationError(
        f"a {type(module).__name__} cannot be declared: dagfisher knows nn.Linear, convolutions, transposed "
        f"convolutions and the layers of dagfisher.nn. Declare the linear map inside it instead, or tell "
        f"dagfisher.register_map how its parents become predictors."
    )


def to_matrix(weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Gradients of weight and bias as one matrix.

    Args:
        weight: (units × …), or None if it is not trained.
        bias: (units), or None if it is not trained.

    Returns:
        (units × d), in each row the weights of a unit's parents, and its bias last.
    """
    parts = []
    if weight is not None:
        parts.append(weight if weight.dim() == 2 else weight.reshape(weight.shape[0], -1))
    if bias is not None:
        parts.append(bias.reshape(-1, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def from_matrix(matrix: Tensor, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """The inverse of `to_matrix`.

    Args:
        matrix: (units × d).
        weight: a tensor of the shape that the weight's part is to have, or None if it is not trained.
        bias: the same for the bias.

    Returns:
        Views of the matrix, shaped like the trained ones of weight and bias, in that order.
    """
    views = []
    if weight is not None:
        columns = matrix if bias is None else matrix[:, :-1]
        views.append(columns if columns.shape == weight.shape else columns.reshape(weight.shape))
    if bias is not None:
        column = matrix[:, -1]
        views.append(column if column.shape == bias.shape else column.reshape(bias.shape))
    return views
