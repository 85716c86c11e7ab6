"""What a declared layer's units are: the base class of families, and the names that `declare` knows.

A predictor has the units on its last axis. The Fisher weight q is the Fisher information of a unit's distribution about
its own predictor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor

from ..errors import DeclarationError

WeightsFrom = Literal["forward", "scale head", "backward"]
"""Where Fisher weights come from."""


class Units:
    """What the outputs of a declared layer are, and when their Fisher weights are known."""

    name: ClassVar[str]
    """As `declare` takes it and tables show it."""

    weights_from: ClassVar[WeightsFrom] = "forward"
    """Where the Fisher weights come from: the layer's own forward pass, that of the other head of a Gaussian layer, or
    a backward pass."""

    def split(self, outputs: int) -> tuple[int, ...]:
        """How many outputs belong to each group of units with Fisher weights of their own; by default one group.

        Args:
            outputs: the number of outputs of the layer.

        Returns:
            Numbers that add up to `outputs`.
        """
        return (outputs,)

    def coupling(self, outputs: int) -> int:
        """How many neighbouring units are one variable with coupled blocks; 1: none are.

        The Fisher weights of coupled units are their probabilities π, and the Fisher information of a variable about
        its predictors is diag(π) − ππᵀ.
        """
        return 1


class Family(Units):
    """The distribution of each unit given its predictor; subclass it and `register_family` to add one.

    A subclass gives `name`, `fisher_weights`, `log_prob`, `sample` and `mean`. `score` and `entropy_score` are found by
    automatic differentiation unless it gives them too. `dagfisher.testing.check_family` checks a family. Make it a
    frozen dataclass: a layer that is declared twice must be declared with an equal family.
    """

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        """q, the Fisher information of each unit's distribution about its own predictor.

        Args:
            predictor: (n × outputs).

        Returns:
            One tensor for each group of `split`, (n × units), or (n × 1) where all units of the group share one block.
        """
        raise NotImplementedError

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        """log p(value | predictor), one number per unit.

        Args:
            value: (… × units).
            predictor: (… × outputs).

        Returns:
            (… × units).
        """
        raise NotImplementedError

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        """∂ log p(value | predictor) / ∂ predictor, of each unit.

        Args:
            value: (… × units).
            predictor: (… × outputs).

        Returns:
            (… × outputs).
        """
        return _derivative(lambda at: self.log_prob(value, at), predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        """One draw per unit, without a gradient.

        Args:
            predictor: (… × outputs).
            generator: of the random numbers; the same state gives the same draw. None: torch's own.

        Returns:
            (… × units).
        """
        raise NotImplementedError

    def mean(self, predictor: Tensor) -> Tensor:
        """The expectation of each unit, (… × units), given the predictor, (… × outputs)."""
        raise NotImplementedError

    def entropy(self, predictor: Tensor) -> Tensor:
        """The entropy of each unit in nats, (… × units), given the predictor, (… × outputs)."""
        raise NotImplementedError(f"family {self.name!r} gives no entropy.")

    def entropy_score(self, predictor: Tensor) -> Tensor:
        """∂ (sum of the entropies) / ∂ predictor, (… × outputs)."""
        return _derivative(self.entropy, predictor)


def _derivative(function: Callable[[Tensor], Tensor], predictor: Tensor) -> Tensor:
    with torch.enable_grad():
        at = predictor.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(at).sum(), at)
    return found


_FAMILIES: dict[str, Callable[..., Units]] = {}


def register_family(name: str, make: Callable[..., Units]) -> None:
    """Let `declare(module, name, **settings)` declare units of the family `make(**settings)`.

    Args:
        name: as `declare`, `declare_model` and tables show it; a name that is taken is an error.
        make: the family's class, or any callable that gives a family.
    """
    if name in _FAMILIES and _FAMILIES[name] is not make:
        raise DeclarationError(f"there is a family {name!r} already; choose another name.")
    _FAMILIES[name] = make


def family_names() -> list[str]:
    """The names that `declare` and `make_family` know."""
    return list(_FAMILIES)


def family_settings(family: str | Units) -> list[str] | None:
    """The settings that `make_family` takes with this family; None if that cannot be known."""
    if isinstance(family, Units):
        return []
    try:
        parameters = inspect.signature(_FAMILIES[family]).parameters.values()
    except (KeyError, TypeError, ValueError):
        return None
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else [p.name for p in parameters]


def make_family(family: str | Units, **settings: Any) -> Units:
    """The family that a name and settings mean.

    Args:
        family: a name that was registered; or a family, which is returned as it is.
        settings: keyword arguments of the family's class; none beside a family that is given.

    Raises:
        DeclarationError: there is no such family, or it does not take these settings.
    """
    if isinstance(family, Units):
        if settings:
            raise DeclarationError(f"{family} has its settings already; give {', '.join(settings)} to it instead.")
        return family
    if family not in _FAMILIES:
        raise DeclarationError(f"unknown family {family!r}; choose one of {', '.join(_FAMILIES)}.")
    try:
        return _FAMILIES[family](**settings)
    except TypeError as error:
        raise DeclarationError(f"family {family!r} does not take these settings: {error}.") from None
