"""A parameter that is itself the predictor of units without parents becomes a declared layer, without a module.

Such a unit has the same distribution for every sample, so its Fisher block is q of the parameter as it is: exact, and
known without any forward pass. Nothing about the code that uses the parameter changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .capture import Pass, Recorder, compute_dtype, forward_hook
from .declaration import _KEY, Declaration, declaration_of
from .errors import DeclarationError
from .families import Family, Units, make_family
from .maps import ConstantMap, register_map


def declare_parameter(
    parameter: nn.Parameter, family: str | Units = "bernoulli", *, draws: int = 1, **settings: Any
) -> nn.Parameter:
    """Declare that `parameter` is the predictor of units without parents, like a prior's, and return it.

    Use it in the loss as before, like ``F.binary_cross_entropy_with_logits(prior.expand_as(z), z)``; the optimizer
    reads the Fisher weights off its value at each refresh. Copies and pickles of it are declared too; a parameter put
    in its place, as by ``load_state_dict(assign=True)``, must be declared again.

    Args:
        parameter: (units), (1 × units), or any shape with at most one axis that is longer than 1. For a Gaussian whose
            scale is learned too, 2·units: [mean, scale] in two halves.
        family: as :func:`dagfisher.declare` takes it; every family that has a distribution.
        draws: how many values of these units, all with this distribution, one sample of the data holds: 1 for a latent
            vector; T where each of T positions of a sample has a latent vector with this prior.
        settings: of the family.

    Returns:
        The parameter. :func:`dagfisher.undeclare` takes the declaration back.
    """
    if type(parameter) not in (nn.Parameter, DeclaredParameter):
        raise DeclarationError(
            f"declare_parameter needs an nn.Parameter, not a {type(parameter).__name__}; "
            f"declare takes modules, and a lazy parameter must have its shape first."
        )
    if not (isinstance(draws, int) and draws >= 1):
        raise DeclarationError(f"draws must be a whole number of at least 1, not {draws!r}.")
    if sum(size != 1 for size in parameter.shape) > 1:
        raise DeclarationError(
            f"a parameter of shape {tuple(parameter.shape)} has more than one axis that is longer than 1; keep its "
            f"units on one axis, and reshape it where it is used."
        )
    if any(isinstance(value, Tensor) for value in settings.values()):
        raise DeclarationError(
            f"{', '.join(settings)} must be no tensor; give mean and scale as one parameter, in two halves."
        )
    units = make_family(family, **settings)
    if not isinstance(units, Family) or units.weights_from != "forward":
        raise DeclarationError(f"a parameter cannot be {units.name}: its units need a distribution of their own.")
    existing = parameter_declaration(parameter)
    if existing is None:
        ParameterDeclaration(parameter, units, draws).attach(forward_hook)
    elif existing.told()[:2] != (units, draws):
        raise DeclarationError(
            f"parameter {existing.name} is already declared as {existing.family}; take that back with "
            f"dagfisher.undeclare first."
        )
    return parameter


def parameter_declaration(parameter: nn.Parameter) -> ParameterDeclaration | None:
    """The parameter's own declaration, if it has one."""
    found = declaration_of(parameter)
    return found if isinstance(found, ParameterDeclaration) else None


class DeclaredParameter(nn.Parameter):
    """What a parameter's class is while it is declared, so that copies and pickles of it are declared too."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = super().__deepcopy__(memo)  # type: ignore[no-untyped-call]
        own = parameter_declaration(self)
        assert own is not None
        return copied if declaration_of(copied) is not None else _declared(copied, *own.told())

    def __reduce_ex__(self, protocol: Any) -> Any:
        own = parameter_declaration(self)
        assert own is not None
        return _unpickled, (self.data, self.requires_grad, *own.told())


def _unpickled(data: Tensor, requires_grad: bool, *told: Any) -> nn.Parameter:
    return _declared(nn.Parameter(data, requires_grad), *told)


def _declared(parameter: nn.Parameter, family: Family, draws: int, name: str | None) -> nn.Parameter:
    declaration = ParameterDeclaration(parameter, family, draws)
    declaration.given_name = name
    declaration.attach(forward_hook)
    return parameter


class _Bias(nn.Module):
    """The module that a declaration needs; nobody calls it."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self.bias = parameter


class _BiasMap(ConstantMap):
    """One unit per entry of the bias, whatever its shape."""

    def units(self, module: Any) -> int:
        return int(module.bias.numel())


register_map(_Bias, _BiasMap())


class ParameterDeclaration(Declaration):
    """A parameter as a DAG layer without parents.

    Order of life: as of every declaration. It lives in the parameter's `__dict__`.
    """

    def __init__(self, parameter: nn.Parameter, family: Family, draws: int) -> None:
        super().__init__(_Bias(parameter), family)
        self.parameter = parameter
        self.draws = draws

    @property
    def name(self) -> str:
        """The qualified name of the parameter if it is known, otherwise its shape; in quotes, for messages."""
        return f"'{self.given_name or 'Parameter' + str(tuple(self.parameter.shape))}'"

    def told(self) -> tuple[Family, int, str | None]:
        """What another parameter must be told to be declared like this one: family, draws, name."""
        assert isinstance(self.family, Family)
        return self.family, self.draws, self.given_name

    def attach(self, hook: Any) -> None:
        super().attach(hook)
        self.parameter.__class__ = DeclaredParameter
        self.parameter.__dict__[_KEY] = self

    def detach(self) -> None:
        super().detach()
        self.parameter.__dict__.pop(_KEY, None)
        self.parameter.__class__ = nn.Parameter


class ParameterRecorder(Recorder):
    """Gives the pass that a declared parameter never has: one sample, with the Fisher weights of its value now."""

    def __init__(self, declaration: ParameterDeclaration) -> None:
        super().__init__()
        self._declaration = declaration

    @torch.no_grad()
    def take(self) -> list[Pass]:
        family, draws, _ = self._declaration.told()
        parameter = self._declaration.parameter
        predictor = parameter.detach().reshape(1, -1).to(compute_dtype(parameter))
        q = tuple(draws * weights for weights in family.fisher_weights(predictor))
        return [Pass(None, predictor.shape, torch.Size([1]), q, predictor.new_ones(1))]
