"""A table of what the layers of a model are declared as."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from torch.nn.parameter import is_lazy

from ._text import Table, table
from .bypass import bypassed
from .declaration import Declaration, declaration_of


class Prepared(Protocol):
    """A declared layer as an optimizer trains it."""

    @property
    def solver(self) -> str:
        """The solvers that the last refresh chose."""

    def nbytes(self) -> int:
        """Bytes kept for the Fisher."""


class Trains(Protocol):
    """An optimizer that knows declared layers."""

    def layer_of(self, declaration: Declaration) -> Any:
        """The layer as it is trained, a `Prepared`, or None."""


def summary(model: nn.Module, optimizer: Trains | None = None) -> Table:
    """A table of the model's layers: what each is declared as, and the size of its Fisher blocks.

    It is text to be printed, and a notebook shows it as a table.

    Args:
        model: any module.
        optimizer: a :class:`DAGNaturalGradient`; with it, the table also has the solver of each layer and the bytes
            that it keeps, once a step was taken.
    """
    header = ["layer", "map", "family", "units", "parents", "parameters", "block", "solver", "bytes"]
    lines = []
    idle = bypassed(model)
    for name, module in model.named_modules():
        declaration, own = declaration_of(module), dict(module.named_parameters(recurse=False))
        alone = {f"{name}.{key}" if name else key: d for key, p in own.items() if (d := declaration_of(p)) is not None}
        rest = [p for p in own.values() if declaration_of(p) is None]
        if declaration is not None:
            lines.append([name, *_described(module, declaration, _count(rest)), *_prepared(declaration, optimizer)])
        elif rest:
            why = f": {idle[name]} never calls it" if name in idle else ""
            lines.append([name, type(module).__name__, f"not declared{why}", "", "", _count(rest), "", "", ""])
        for full, each in alone.items():
            described = _described(each.parameters[1], each, f"{each.units:,}")
            lines.append([full, *described, *_prepared(each, optimizer)])
    return table(header, lines, left=3)


def _count(parameters: list[nn.Parameter]) -> str:
    """How many numbers these parameters hold, as far as that is known."""
    return "not yet" if any(is_lazy(p) for p in parameters) else f"{sum(p.numel() for p in parameters):,}"


def _described(what: Any, declaration: Declaration, own: str) -> list[str]:
    weight, bias = declaration.parameters
    units = declaration.units
    parents = 0 if weight is None else weight.numel() // units
    block = (parents + (bias is not None)) * declaration.coupled
    family = declaration.family.name
    kind = "Parameter" if isinstance(what, nn.Parameter) else type(what).__name__
    kind = ", ".join(part for part in (kind, str(declaration.reading)) if part)
    return [kind, family, f"{units:,}", _parents(declaration, parents), own, f"{block}×{block}"]


def _parents(declaration: Declaration, parents: int) -> str:
    """The number of parents of a unit; with a mask the least, the mean and the most of them."""
    if declaration.mask is None:
        return f"{parents:,}"
    counts = declaration.map.unit_major(declaration.module, declaration.mask).flatten(1).sum(1).float()
    return f"{counts.min():g} / {counts.mean():g} / {counts.max():g}"


def _prepared(declaration: Declaration, optimizer: Trains | None) -> list[str]:
    if optimizer is None:
        return ["", ""]
    layer: Prepared | None = optimizer.layer_of(declaration)
    return ["not trained", ""] if layer is None else [layer.solver or "not yet", f"{layer.nbytes():,}"]
