"""What a module was declared to be, and the declared layers among some parameters.

A declaration lives in its module's `__dict__`, so that it travels with `deepcopy` and pickling, and registers itself
wherever it arrives. It holds no statistics: those belong to the optimizer that asked for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from .errors import DeclarationError
from .families import Units
from .maps import Map, map_of

_KEY = "_dagfisher_declaration"
_declared: weakref.WeakSet[Declaration] = weakref.WeakSet()


class Declaration:
    """A module as a DAG layer: its map, its family, and who listens to its forward passes.

    Order of life: made and `attach`ed by `declare`; listened to by the recorder of one optimizer at a time; `detach`ed
    by `undeclare`.
    """

    def __init__(self, module: nn.Module, family: Units, max_rows: int | None = None) -> None:
        self.module = module
        self.family = family
        self.map: Map = map_of(module)
        self.max_rows = max_rows
        self.mean_head: Declaration | None = None
        """For the scale head of a Gaussian layer: the head whose Fisher weights its passes tell."""
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

    def learn_name(self, name: str) -> None:
        """The layer has this qualified name in some model; the name in the largest model is kept."""
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
        """Become the module's declaration, with this forward hook."""
        self.module.__dict__[_KEY] = self
        self._hook = self.module.register_forward_hook(hook, with_kwargs=True)
        _declared.add(self)

    def detach(self) -> None:
        """Leave the module as it was before `attach`."""
        if self._hook is not None:
            self._hook.remove()
        self.module.__dict__.pop(_KEY, None)
        _declared.discard(self)

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
    """Let the declared layers of a model know their qualified names in it, unless they know longer ones."""
    for name, module in model.named_modules():
        declaration = declaration_of(module)
        if declaration is not None and name:
            declaration.learn_name(name)


def declarations() -> list[Declaration]:
    """Every declaration that is in force in this process."""
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
                    f"has no block of its own. Use one module twice instead of two modules."
                )
            owner[id(parameter)] = declaration
    found = {id(d): d for p in wanted if (d := owner.get(id(p))) is not None}
    return list(found.values())
