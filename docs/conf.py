"""Sphinx configuration."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for settings_table and gallery
_init = (Path(__file__).resolve().parent.parent / "dagfisher" / "__init__.py").read_text(encoding="utf-8")
_version = re.search(r'^__version__ = "([^"]+)"', _init, flags=re.MULTILINE)
assert _version is not None

REPOSITORY = "https://github.com/dagfisher/dagfisher"

project = "dagfisher"
author = "the dagfisher authors"
copyright = author
release = version = _version.group(1)

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.extlinks",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without a network
    "sphinx_copybutton",
    "settings_table",
    "gallery",
]
exclude_patterns = ["_build"]
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

extlinks = {"source": (f"{REPOSITORY}/blob/main/%s", "%s")}  # a file of the repository

html_theme = "furo"
html_title = f"dagfisher {release}"
html_favicon = html_logo = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["dagfisher.css"]
html_theme_options = {
    "navigation_with_keys": True,
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [
        {
            "name": "Repository",
            "url": REPOSITORY,
            "html": (
                '<svg stroke="currentColor" fill="none" stroke-width="1.6" viewBox="0 0 16 16">'
                '<circle cx="4" cy="3" r="2"/><circle cx="4" cy="13" r="2"/>'
                '<circle cx="12" cy="6" r="2"/><path d="M4 5v6M12 8c0 3-8 1-8 3"/></svg>'
            ),
            "class": "",
        }
    ],
}
copybutton_prompt_text = "$ "


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
