"""A Sphinx directive that shows a dataclass of settings as a table: names, defaults and what each does.

.. code-block:: rst

   .. settings-table:: dagfisher.optim.OptimizerSettings
"""

from __future__ import annotations

import importlib
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dagfisher._settings import settings_of


def rows(kind: Any) -> list[tuple[str, str, str]]:
    """Name, default and help of every setting of a dataclass, as reStructuredText."""
    found = []
    for entry in settings_of(kind):
        default = "" if entry.default is None else f"``{entry.default!r}``"
        found.append((f"``{entry.name}``", default, entry.help))
    return found


def table(kind: Any) -> str:
    """The settings as a list-table."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 18 14 68", ""]
    for name, default, text in [("setting", "default", "what it is"), *rows(kind)]:
        lines += [f"   * - {name}", f"     - {default}", f"     - {text}"]
    return "\n".join(lines)


class SettingsTable(SphinxDirective):
    """The directive ``settings-table``, whose argument is the dotted name of the dataclass."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        return self.parse_text_to_nodes(table(getattr(importlib.import_module(module), name)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known."""
    app.add_directive("settings-table", SettingsTable)
    return {"parallel_read_safe": True}
