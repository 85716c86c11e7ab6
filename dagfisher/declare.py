"""A module becomes a DAG layer (a map and a family), and layers are found again from their parameters.

The declaration lives in the module's `__dict__`, so that it travels with `deepcopy` and pickling, and registers
itself wherever it arrives. It holds no statistics: those belong to the optimizer that asked for them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .errors import DeclarationError
from .families import Deterministic, Family, GaussianMean, GaussianScale, make_family
from .maps import Map, map_of

if TYPE_CHECKING:
    from .records import Recorder

_KEY = "_dagfisher_declaration"
_declared: weakref.WeakSet[Declaration] = weakref.WeakSet()


class Declaration:
    """What a module was declared to be, and who listens to its forward passes."""

    def __init__(self, module: nn.Module, family: Family | GaussianMean | GaussianScale | Deterministic) -> None:
        self.module = module
        self.family = family
        self.map: Map = map_of(module)
        self.mean_head: Declaration | None = None
        self.max_rows: int | None = None
        self._recorder: weakref.ref[Recorder] | None = None
        _declared.add(self)

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the optimizer that trains this layer, if there is one."""
        return None if self._recorder is None else self._recorder()

    @recorder.setter
    def recorder(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _declared.add(self)

    def __repr__(self) -> str:
        return f"{layer_name(self)}: {self.family.name} on {type(self.module).__name__}"


def declare(module: nn.Module, family: str, *, max_rows: int | None = None, **settings: Any) -> nn.Module:
    """Declare that `module`'s output is the predictor of units of that family, and return the module.

    Args:
        module: an ``nn.Linear``, an ``nn.Conv1d/2d/3d`` or ``nn.ConvTranspose1d/2d/3d`` (one block per output
            channel), or a layer that :mod:`dagfisher.nn` provides.
        family: ``"bernoulli"`` (output = logits), ``"gaussian"`` (output = [mean, scale] in two halves, or the mean
            alone with a fixed ``std``), ``"poisson"`` (output = log rate), ``"categorical"`` (output = logits; the
            block used is the per-unit diagonal π(1−π) of the true one, which couples the units of a variable), or
            ``"deterministic"`` (hidden units inside an encoder or decoder, whatever activation follows; call
            :meth:`DAGNaturalGradient.sample_fisher` before ``backward()``).
        settings: of the family: ``states=(0, 1)`` or ``(-1, 1)``; ``scale="log_std"`` or ``"log_var"``; ``std=1.0``;
            ``min_std=0.01`` (σ = 0.01 + exp(log_std)); ``classes=10``; ``fisher="sampled"`` or ``"empirical"``.
        max_rows: let at most so many output positions of a convolution, drawn at random, stand for all in its Fisher
            statistics; their expectation does not change. Default: every position counts.
    """
    if max_rows is not None and not (isinstance(max_rows, int) and max_rows >= 1):
        raise DeclarationError(f"max_rows must be a whole number of at least 1, not {max_rows!r}.")
    _attach(module, make_family(family, **settings))
    _require(module).max_rows = max_rows
    return module


def declare_gaussian(
    *,
    mean: nn.Module,
    log_std: nn.Module | None = None,
    log_var: nn.Module | None = None,
    std: float | None = None,
) -> None:
    """Declare a Gaussian layer whose mean and scale come from two modules, or whose `std` is a fixed number.

    Give exactly one of `log_std`, `log_var` and `std`. The two heads run equally often between two optimizer steps,
    and their k-th passes belong together.
    """
    if sum(given is not None for given in (log_std, log_var, std)) != 1:
        raise DeclarationError("declare_gaussian takes exactly one of log_std=, log_var= and std=.")
    if std is not None:
        declare(mean, "gaussian", std=std)
        return
    kind, scale = ("log_std", log_std) if log_std is not None else ("log_var", log_var)
    assert scale is not None
    if scale is mean:
        raise DeclarationError("mean and scale are one module; declare(module, 'gaussian') takes two halves of one.")
    if map_of(mean).units(mean) != map_of(scale).units(scale):
        raise DeclarationError(
            f"the mean has {map_of(mean).units(mean)} units and the {kind} has {map_of(scale).units(scale)}; "
            f"they must be equal."
        )
    _require_free(mean, GaussianMean())
    _require_free(scale, GaussianScale(kind))
    for head in list(_declared):
        if head.mean_head is not None and (head.module is scale) != (head.mean_head.module is mean):
            raise DeclarationError(
                f"layer {layer_name(head)} is already the scale head of {layer_name(head.mean_head)}; a head has one "
                f"partner. Build a new module for another one."
            )
    _attach(mean, GaussianMean())
    _attach(scale, GaussianScale(kind))
    _require(scale).mean_head = _require(mean)


def _attach(module: nn.Module, family: Family | GaussianMean | GaussianScale | Deterministic) -> nn.Module:
    from .capture import forward_hook

    if not isinstance(module, nn.Module):
        raise DeclarationError(f"only an nn.Module can be declared, not a {type(module).__name__}.")
    if _require_free(module, family):
        return module
    declaration = Declaration(module, family)
    require_own_parameters(declaration)
    family.split(declaration.map.units(module))
    module.__dict__[_KEY] = declaration
    module.register_forward_hook(forward_hook, with_kwargs=True)
    return module


def _require_free(module: nn.Module, family: Family | GaussianMean | GaussianScale | Deterministic) -> bool:
    """Whether the module is already declared as this; raise if it is declared as something else."""
    existing = declaration_of(module)
    if existing is not None and existing.family != family:
        raise DeclarationError(
            f"layer {layer_name(existing)} is already declared as {existing.family}; it cannot also be {family}. "
            f"Build a new module if you want another family."
        )
    return existing is not None


def declaration_of(module: nn.Module) -> Declaration | None:
    """The module's declaration, if it has one."""
    return module.__dict__.get(_KEY)


def _require(module: nn.Module) -> Declaration:
    declaration = declaration_of(module)
    assert declaration is not None
    return declaration


def require_own_parameters(declaration: Declaration) -> None:
    """Raise unless weight and bias are parameters of the module itself, not computed from others, and have shapes."""
    module = declaration.module
    for name in ("bias",) if getattr(module, "constant_map", False) else ("weight", "bias"):
        if name not in module._parameters:
            raise DeclarationError(
                f"layer {layer_name(declaration)}: its {name} is computed from other parameters, as weight_norm, "
                f"spectral_norm, pruning and parametrizations do; the Fisher block is that of the {name} itself. "
                f"Remove the parametrization, or leave the layer undeclared."
            )
        parameter = module._parameters[name]
        if parameter is not None and is_lazy(parameter):
            raise DeclarationError(
                f"a {type(module).__name__} has no parameters yet; run it on one batch before you declare it."
            )


def find_layers(parameters: Iterable[Tensor]) -> list[Declaration]:
    """The declared layers that own any of these parameters, in the order of the parameters."""
    wanted = list(parameters)
    ids = {id(p) for p in wanted}
    owner: dict[int, Declaration] = {}
    for declaration in list(_declared):
        if declaration.module.__dict__.get(_KEY) is not declaration:
            continue
        if not any(id(p) in ids for p in declaration.module.parameters()):
            continue
        require_own_parameters(declaration)
        for parameter in declaration.map.parameters(declaration.module):
            if parameter is None or id(parameter) not in ids:
                continue
            other = owner.get(id(parameter))
            if other is not None and other is not declaration:
                raise DeclarationError(
                    f"layers {layer_name(other)} and {layer_name(declaration)} share a parameter; a shared parameter "
                    f"has no block of its own. Use one module twice instead of two modules."
                )
            owner[id(parameter)] = declaration
    found = {id(d): d for p in wanted if (d := owner.get(id(p))) is not None}
    return list(found.values())


def layer_name(declaration: Declaration) -> str:
    """The qualified name of the layer in the largest model that holds it, in quotes; for messages."""
    module = declaration.module
    best, size = "", 0
    # A module whose __init__ never finished has no children to look through.
    for candidate in [o for o in gc.get_objects() if issubclass(type(o), nn.Module) and "_modules" in o.__dict__]:
        for name, child in candidate.named_modules():
            if child is module and name:
                count = sum(1 for _ in candidate.modules())
                if count > size:
                    best, size = name, count
    shapes = [p.shape for p in declaration.map.parameters(module) if p is not None]
    shape = "×".join(str(s) for s in shapes[0]) if shapes else ""
    return f"'{best}'" if best else f"'{type(module).__name__}({shape})'"
