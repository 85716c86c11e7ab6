"""Sphinx configuration."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for settings_table
_init = (Path(__file__).resolve().parent.parent / "dagfisher" / "__init__.py").read_text(encoding="utf-8")
_version = re.search(r'^__version__ = "([^"]+)"', _init, flags=re.MULTILINE)
assert _version is not None

project = "dagfisher"
author = "the dagfisher authors"
copyright = author
release = version = _version.group(1)

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without a network
    "settings_table",
]
exclude_patterns = ["_build"]
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"dagfisher {release}"
html_theme_options = {"navigation_with_keys": True}


def setup(app: Any) -> None:
    """Leave docstrings of attributes as they are: napoleon takes what is before a colon in them for a type."""
    written: dict[str, list[str]] = {}

    def keep(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        if what in ("attribute", "data", "property"):
            written[name] = list(lines)

    def restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        if name in written:
            lines[:] = written.pop(name)

    app.connect("autodoc-process-docstring", keep, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-docstring", restore, priority=600)
