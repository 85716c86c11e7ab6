"""Every public method says what it does, itself or through the class or protocol that it implements."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pytest
from typing_extensions import get_protocol_members, is_protocol

import dagfisher


def public_classes() -> list[type]:
    """The classes that the modules of the package define."""
    found: dict[type, None] = {}
    for module in pkgutil.walk_packages(dagfisher.__path__, "dagfisher."):
        if not module.name.endswith("__main__"):
            for thing in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(thing) and thing.__module__ == module.name and not thing.__name__.startswith("_"):
                    found[thing] = None
    return list(found)


def members(cls: type) -> set[str]:
    """What an instance is known to have: methods, properties, class attributes and declared fields."""
    return set(dir(cls)).union(*map(inspect.get_annotations, cls.__mro__))


def undocumented(cls: type, protocols: Iterable[type] = ()) -> Iterator[str]:
    """Public methods and properties of a class with no docstring, inherited or of a protocol that the class fulfils."""
    fulfilled = [p for p in protocols if p is not cls and get_protocol_members(p) <= members(cls)]
    for name, value in vars(cls).items():
        method = getattr(value, "__func__", value)
        if name.startswith("_") or not (inspect.isfunction(method) or isinstance(method, property)):
            continue
        bases = (*cls.__mro__, *fulfilled)
        if not any(inspect.getdoc(vars(base)[name]) for base in bases if name in vars(base)):
            yield f"{cls.__module__}.{cls.__qualname__}.{name}"


def test_every_public_method_is_documented() -> None:
    classes = public_classes()
    protocols = [cls for cls in classes if is_protocol(cls)]
    assert protocols
    found = [name for cls in classes for name in undocumented(cls, protocols)]
    assert not found, "\n".join(["these public methods have no docstring:", *found])


class Shape(Protocol):
    """Has an area."""

    name: str

    def area(self) -> float:
        """The area."""


class Base:
    """Documents one method."""

    def width(self) -> float:
        """The width."""
        return 1.0


class Square(Base):
    """Fulfils the protocol and overrides a documented method."""

    name = "square"

    def area(self) -> float:  # of the protocol
        return 1.0

    def width(self) -> float:  # of the base
        return 1.0


class Nameless:
    """Has the protocol's method, but not its name."""

    def area(self) -> float:
        return 1.0

    @property
    def side(self) -> float:
        return 1.0

    @classmethod
    def unit(cls) -> Any:
        return cls()

    @staticmethod
    def zero() -> float:
        """Documented."""
        return 0.0

    def _own(self) -> None: ...


@pytest.mark.parametrize(
    ("cls", "missing"),
    [(Shape, []), (Base, []), (Square, []), (Nameless, ["area", "side", "unit"])],
)
def test_missing_docstrings_are_found(cls: type, missing: list[str]) -> None:
    assert [name.split(".")[-1] for name in undocumented(cls, [Shape])] == missing
