"""What a module was declared to be, and the declared layers among some parameters.

A declaration lives in its module's `__dict__`, so that it travels with `deepcopy` and pickling, and registers itself
wherever it arrives. It holds no statistics: those belong to the optimizer that asked for them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from .errors import DeclarationError, ShapeError
from .families import Units
from .maps import Map, map_of

_KEY = "_dagfisher_declaration"
_declared: weakref.WeakSet[Declaration] = weakref.WeakSet()


@dataclass(frozen=True)
class Reading:
    """How the forward passes of a layer are read."""

    positions: int = 0
    """How many of the last leading axes of the input are positions of one sample, over which blocks are summed."""
    calls: str = "samples"
    """What several calls between two steps are: further "samples", or further "positions" of the same samples."""
    max_rows: float | None = None
    """How many rows of a pass, drawn at random, are used in place of all; None: enough of them."""
    check: bool = True
    """Whether outputs are compared with the declared map."""

    def __post_init__(self) -> None:
        given = self.max_rows
        if given is not None and given != math.inf and not (isinstance(given, int) and given >= 1):
            raise DeclarationError(f"max_rows must be a whole number of at least 1, or math.inf, not {given!r}.")
        if not isinstance(self.positions, int) or self.positions < 0:
            raise DeclarationError(f"positions must be a whole number of at least 0, not {self.positions!r}.")
        if self.calls not in ("samples", "positions"):
            raise DeclarationError(f"calls must be 'samples' or 'positions', not {self.calls!r}.")

    def __str__(self) -> str:
        axes = {0: "", 1: "1 axis of positions"}.get(self.positions, f"{self.positions} axes of positions")
        calls = "calls are positions" if self.calls == "positions" else ""
        return ", ".join(part for part in (axes, calls) if part)


_changes = 0


def _count_change() -> None:
    global _changes
    _changes += 1


def changes() -> int:
    """How often a layer was declared or undeclared in this process; optimizers look whether it has grown."""
    return _changes


class Declaration:
    """A module as a DAG layer: its map, its family, and who listens to its forward passes.

    Order of life: made and `attach`ed by `declare`; listened to by the recorder of one optimizer at a time; `detach`ed
    by `undeclare`.
    """

    def __init__(self, module: nn.Module, family: Units) -> None:
        self.module = module
        self.family = family
        self.map: Map = map_of(module)
        self.reading = Reading()
        self.mask: Tensor | None = None
        """Shaped like the weight, true where a parent is allowed; None: all are."""
        self.agrees = False
        """Whether an output of the module was found to be what its map says."""
        self.mean_head: Declaration | None = None
        """For the scale head of a Gaussian layer: the head whose Fisher weights its passes tell."""
        self.scale_name: str | None = None
        """The name of the module's parameter log σ, for a Gaussian layer whose scale no parent moves."""
        self.given_name: str | None = None
        """The qualified name, once an optimizer or `declare_model` has said it."""
        self._hook: RemovableHandle | None = None
        self._recorder: weakref.ref[Any] | None = None
        require_own_parameters(self)
        family.split(self.units)

    @property
    def units(self) -> int:
        """The number of units, one Fisher block each."""
        return self.map.units(self.module)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many units each group with Fisher weights of its own has."""
        return self.family.split(self.units)

    @property
    def scale_parameter(self) -> nn.Parameter | None:
        """log σ of a Gaussian layer whose scale no parent moves."""
        return None if self.scale_name is None else getattr(self.module, self.scale_name)

    @property
    def coupled(self) -> int:
        """How many neighbouring units are one variable with coupled blocks; 1: none are."""
        return self.family.coupling(self.units)

    def set_mask(self, mask: Tensor | None) -> None:
        """Let each unit have only the parents that the mask, shaped like the weight, allows."""
        weight = self.parameters[0]
        if mask is not None:
            if weight is None:
                raise DeclarationError(f"layer {self.name} has no parents, so that a mask has no meaning.")
            if self.coupled > 1:
                raise DeclarationError(
                    f"layer {self.name}: the units of a categorical variable are coupled and cannot each have a mask; "
                    f"declare it with coupled=False."
                )
            try:
                mask = torch.as_tensor(mask, device=weight.device).bool().expand(weight.shape).clone()
            except (RuntimeError, TypeError, ValueError):
                shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
                raise DeclarationError(
                    f"layer {self.name}: its mask must be a bool tensor shaped like its weight, "
                    f"{tuple(weight.shape)}, not {shape}."
                ) from None
        self.mask = mask

    def mask_matrix(self, device: torch.device) -> Tensor | None:
        """The mask as (units × parents), or None."""
        if self.mask is None:
            return None
        if self.mask.device != device:
            self.mask = self.mask.to(device)
        return self.map.unit_major(self.module, self.mask).reshape(self.units, -1)

    @property
    def parameters(self) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias, None where there is none."""
        return self.map.parameters(self.module)

    @property
    def name(self) -> str:
        """The qualified name of the layer if it is known, otherwise its type and shape; in quotes, for messages."""
        if self.given_name:
            return f"'{self.given_name}'"
        shapes = [p.shape for p in self.parameters if p is not None]
        shape = "×".join(str(s) for s in shapes[0]) if shapes else ""
        return f"'{type(self.module).__name__}({shape})'"

    def samples(self, parents: Any, shape: torch.Size) -> torch.Size:
        """The axes of a forward pass that are samples, given the first argument and the shape of the output."""
        axes = self.map.samples(self.module, parents, shape)
        if self.reading.positions >= max(len(axes), 1):
            raise ShapeError(
                f"an output of shape {tuple(shape)} has {len(axes)} leading axes, and {self.reading.positions} of them "
                f"cannot be positions; the first one is of samples."
            )
        return axes[: len(axes) - self.reading.positions]

    def learn_name(self, name: str) -> None:
        """Take this qualified name, which the layer has in some model, unless a longer one ends with it."""
        if not (self.given_name or "").endswith(f".{name}"):
            self.given_name = name

    @property
    def recorder(self) -> Any:
        """The `capture.Recorder` of the optimizer that trains this layer, or None."""
        return None if self._recorder is None else self._recorder()

    @recorder.setter
    def recorder(self, recorder: Any) -> None:
        self._recorder = weakref.ref(recorder)

    def attach(self, hook: Any) -> None:
        """Put this declaration and a forward hook on the module."""
        self.module.__dict__[_KEY] = self
        self._hook = self.module.register_forward_hook(hook, with_kwargs=True)
        _declared.add(self)
        _count_change()

    def detach(self) -> None:
        """Leave the module as it was before `attach`."""
        if self._hook is not None:
            self._hook.remove()
        self.module.__dict__.pop(_KEY, None)
        _declared.discard(self)
        _count_change()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _declared.add(self)

    def __repr__(self) -> str:
        return f"{self.name}: {self.family.name} on {type(self.module).__name__}"


def declaration_of(module: nn.Module | nn.Parameter) -> Declaration | None:
    """The declaration of a module, or of a parameter, if it has one."""
    return module.__dict__.get(_KEY)


def name_layers(model: nn.Module) -> None:
    """Tell the declared layers of a model their qualified names in it; those that know longer names keep them."""
    for name, module in model.named_modules():
        declaration = declaration_of(module)
        if declaration is not None and name:
            declaration.learn_name(name)


def declarations() -> list[Declaration]:
    """Every declaration that is in force in this process, in no particular order."""
    return [d for d in list(_declared) if declaration_of(d.module) is d]


def require_own_parameters(declaration: Declaration) -> None:
    """Raise unless weight and bias are parameters of the module itself, not computed from others, and have shapes."""
    module = declaration.module
    own = {id(p) for p in module.parameters(recurse=False)}
    for name, parameter in zip(("weight", "bias"), declaration.parameters, strict=True):
        if parameter is None:
            continue
        if id(parameter) not in own:
            raise DeclarationError(
                f"layer {declaration.name}: its {name} is computed from other parameters, as weight_norm, "
                f"spectral_norm, pruning and parametrizations do; the Fisher block is that of the {name} itself. "
                f"Remove the parametrization, or leave the layer undeclared."
            )
        if is_lazy(parameter):
            raise DeclarationError(
                f"a {type(module).__name__} has no parameters yet; run it on one batch before you declare it."
            )


def find_layers(parameters: Iterable[Tensor]) -> list[Declaration]:
    """The declared layers that own any of these parameters, in the order of the parameters."""
    wanted = list(parameters)
    ids = {id(p) for p in wanted}
    owner: dict[int, Declaration] = {}
    for declaration in declarations():
        if not any(id(p) in ids for p in declaration.module.parameters()):
            continue
        require_own_parameters(declaration)
        for parameter in declaration.parameters:
            if parameter is None or id(parameter) not in ids:
                continue
            other = owner.get(id(parameter))
            if other is not None and other is not declaration:
                raise DeclarationError(
                    f"layers {other.name} and {declaration.name} share a parameter; a shared parameter "
                    f"has no block of its own. Use one module in both places, declared with calls='positions' if the "
                    f"same samples go through it twice."
                )
            owner[id(parameter)] = declaration
    found = {id(d): d for p in wanted if (d := owner.get(id(p))) is not None}
    return list(found.values())
