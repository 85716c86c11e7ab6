"""A module becomes a declared layer, and stops being one."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .capture import forward_hook
from .declaration import Declaration, Reading, declaration_of, declarations
from .errors import DeclarationError
from .families import GaussianConstant, GaussianLogStd, GaussianMean, GaussianScale, Units, make_family
from .maps import LinearMap, map_of
from .parameter import declare_parameter, parameter_declaration


def declare(
    module: nn.Module,
    family: str | Units,
    *,
    mask: Tensor | None = None,
    positions: int = 0,
    calls: str = "samples",
    max_rows: float | None = None,
    check: bool = True,
    **settings: Any,
) -> nn.Module:
    """Declare that `module`'s output is the predictor of units of that family, and return the module.

    Args:
        module: an ``nn.Linear``, an ``nn.Conv1d/2d/3d`` or ``nn.ConvTranspose1d/2d/3d`` (one block per output
            channel), a layer that :mod:`dagfisher.nn` provides, or a type that :func:`dagfisher.register_map` knows.
        family: ``"bernoulli"`` (output = logits), ``"gaussian"`` (output = [mean, scale] in two halves; or the mean
            alone, with a fixed ``std``, or with ``scale="constant"`` or ``"tied"``: a learned σ for each unit, or one
            for all, that no parent moves, whose logarithm is the module's parameter ``log_std``), ``"laplace"``
            (output = [location, log b] in two halves, or the location alone with a fixed ``b``), ``"poisson"``
            (output = log rate), ``"categorical"`` (output = logits; the blocks of the units of a variable are coupled,
            or with ``coupled=False`` approximated by their diagonal), ``"deterministic"`` (hidden units inside an
            encoder or decoder, whatever activation follows; call :meth:`DAGNaturalGradient.sample_fisher` before
            ``backward()``), a name that :func:`dagfisher.register_family` knows, or a family itself, like
            ``Bernoulli(states=(-1, 1))``.
        settings: of the family: ``states=(0, 1)`` or ``(-1, 1)``; ``scale="log_std"`` or ``"log_var"``; ``std=1.0``;
            ``min_std=0.01`` (σ = 0.01 + exp(log_std)); ``classes=10``; ``fisher="sampled"`` or ``"empirical"``.
        mask: bool, shaped like the weight: (units × parents) for a linear map. Unit j sees the parents with
            ``mask[j]``, as in ``F.linear(x, mask * weight, bias)``, which the module's forward must compute. Weights
            under the mask never move.
        positions: how many of the last leading axes of the input are positions of one sample: 1 for an input (n, T, d)
            whose T positions belong to one sample. The blocks are summed over positions and averaged over samples, as
            those of a convolution are. By default all leading axes are samples.
        calls: what several calls of the module between two steps are: further ``"samples"``, or further
            ``"positions"`` of the same samples, as in a recurrent network. Calls whose gradients come from one
            ``backward()`` are then of the same samples.
        max_rows: use at most so many rows of a pass (samples, times output positions of a convolution), drawn at
            random, in place of all for the Fisher statistics; their expectation does not change. ``math.inf``: all. By
            default all are used unless they hold more than half a million numbers, as those of large convolutions do.
        check: compare some rows of the output with the module's map, at the first captured pass and at every refresh,
            and refuse a module whose output is something else.
    """
    reading = Reading(positions, calls, max_rows, check)
    if family == "gaussian" and settings.get("scale") in ("constant", "tied"):
        if (positions, calls) != (0, "samples"):
            raise DeclarationError(f"scale={settings['scale']!r} goes with one position per sample only.")
        family = _constant_scale(module, settings)
    fresh = declaration_of(module) is None if isinstance(module, nn.Module) else True
    declaration = _attached(module, make_family(family, **settings))
    try:
        declaration.set_mask(mask)
    except DeclarationError:
        if fresh:
            declaration.detach()
        raise
    declaration.reading = reading
    if isinstance(declaration.family, GaussianConstant):
        declaration.scale_name = SCALE
        scale = declaration.scale_parameter
        assert scale is not None
        declare_parameter(scale, GaussianLogStd(), draws=declaration.units if declaration.family.tied else 1)
    return module


SCALE = "log_std"
"""The name of the parameter that a Gaussian layer has whose scale no parent moves."""


def _constant_scale(module: nn.Module, settings: dict[str, Any]) -> GaussianConstant:
    """The family of a Gaussian layer whose scale is the module's parameter `log_std`, made here if there is none."""
    tied = settings.pop("scale") == "tied"
    if settings:
        raise DeclarationError(f"a scale that no parent moves does not go with {', '.join(settings)}.")
    how = map_of(module)
    weight = how.parameters(module)[0]
    if not isinstance(how, LinearMap) or weight is None:
        raise DeclarationError(
            f"a {type(module).__name__} cannot have a scale that no parent moves; only linear layers can. Declare its "
            f"log σ with dagfisher.declare_parameter, and it with a fixed std."
        )
    wanted = 1 if tied else how.units(module)
    if not hasattr(module, SCALE):
        setattr(module, SCALE, nn.Parameter(torch.zeros(wanted, dtype=weight.dtype, device=weight.device)))
    scale = getattr(module, SCALE)
    if not isinstance(scale, nn.Parameter) or scale.numel() != wanted:
        raise DeclarationError(f"the module's {SCALE} must be a parameter of {wanted} numbers, log σ of its units.")
    return GaussianConstant(tied)


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

    Args:
        mean: the module whose output is the mean.
        log_std: the module whose output is log σ.
        log_var: the module whose output is log σ².
        std: σ, the same for all units.
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
    for head in declarations():
        if head.mean_head is not None and (head.module is scale) != (head.mean_head.module is mean):
            raise DeclarationError(
                f"layer {head.name} is already the scale head of {head.mean_head.name}; a head has one "
                f"partner. Build a new module for another one."
            )
    mean_head = _attached(mean, GaussianMean())
    _attached(scale, GaussianScale(kind)).mean_head = mean_head


Declarable = TypeVar("Declarable", bound=nn.Module | nn.Parameter)


def undeclare(module: Declarable) -> Declarable:
    """Take a declaration back, its hook included, and return the module.

    A parameter that :func:`dagfisher.declare_parameter` declared may be given too.
    An optimizer that was built before goes on holding the layer; build it anew.

    Args:
        module: a declared module. If it is a head of a Gaussian layer with two heads, the other head is undeclared too.
    """
    declaration = declaration_of(module)
    if declaration is None:
        raise DeclarationError(f"this {type(module).__name__} is not declared.")
    scales = [d for d in declarations() if d.mean_head is declaration]
    scale = declaration.scale_parameter
    own = None if scale is None else parameter_declaration(scale)
    for each in [declaration, declaration.mean_head, own, *scales]:
        if each is not None:
            each.detach()
    return module


def _attached(module: nn.Module, family: Units) -> Declaration:
    """The declaration of the module as this family, made now unless it is there already."""
    if not isinstance(module, nn.Module):
        raise DeclarationError(
            f"only an nn.Module can be declared, not a {type(module).__name__}; for an nn.Parameter there is "
            f"declare_parameter."
        )
    existing = _require_free(module, family)
    if existing is not None:
        return existing
    declaration = Declaration(module, family)
    declaration.attach(forward_hook)
    return declaration


def _require_free(module: nn.Module, family: Units) -> Declaration | None:
    """The module's declaration as this family, if there is one; raise if it is declared as something else."""
    existing = declaration_of(module)
    if existing is not None and existing.family != family:
        raise DeclarationError(
            f"layer {existing.name} is already declared as {existing.family}; it cannot also be {family}. "
            f"Take that back with dagfisher.undeclare, or build a new module."
        )
    return existing
