"""Sphinx configuration."""

from __future__ import annotations

import re
import sys
from pathlib import Path

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
