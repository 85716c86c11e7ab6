"""The tables that `register_family`, `register_map`, `register_solver` and `register_algorithm` write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagfisher.families import base as families
from dagfisher.helmholtz import ALGORITHMS
from dagfisher.maps import base as maps
from dagfisher.solvers import SOLVERS

TABLES: tuple[dict[Any, Any], ...] = (families._FAMILIES, maps._MAPS, SOLVERS, ALGORITHMS)


@contextmanager
def registrations_forgotten() -> Iterator[None]:
    """What is registered inside this context is forgotten at its end."""
    before = [dict(table) for table in TABLES]
    try:
        yield
    finally:
        for table, entries in zip(TABLES, before, strict=True):
            table.clear()
            table.update(entries)
