"""The packages that some benchmarks need beside dagfisher, and the sentence that says which are missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

PACKAGES = {"curvlinops": "curvlinops-for-pytorch", "pyro": "pyro-ppl"}
"""The names of packages where they are not those of their modules."""


def need(modules: Iterable[str]) -> None:
    """Leave with one sentence if any of these modules is not installed; nothing is imported."""
    missing = [PACKAGES.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        sys.exit(f"this needs {names}: pip install 'dagfisher[benchmarks]'")
