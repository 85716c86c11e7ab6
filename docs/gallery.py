"""The directives of the gallery: a page about a program in `examples/`, and cards that lead to such pages.

.. example:: wrap_vae

   What to conclude from it.

.. example-cards::

   wrap_vae
   wrap_sbn

`python docs/make_gallery.py` makes the pictures and the recorded outputs that they show.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).resolve().parent
EXAMPLES, GALLERY = DOCS.parent / "examples", DOCS / "gallery"


def docstring(name: str) -> tuple[str, str]:
    """The first line of a program's docstring, and the rest of it without the commands."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
    first, *paragraphs = text.split("\n\n")
    rest = [paragraph for paragraph in paragraphs if not paragraph.startswith("    ")]
    return " ".join(first.split()), "\n\n".join(rest)


def first_line(name: str) -> int:
    """The number of the line where the code of a program begins, after its docstring."""
    return 2 + (ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")).body[0].end_lineno or 0)


def commands(name: str) -> str:
    """The commands that the docstring of a program shows."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return "\n".join(line[4:] for line in text.splitlines() if line.startswith("    python "))


def page(name: str, conclusion: str) -> str:
    """The page about a program, as reStructuredText: picture, conclusion, commands, output, text and code."""
    first, rest = docstring(name)
    printed = (GALLERY / f"{name}.txt").read_text(encoding="utf-8")
    parts = [
        first,
        f".. image:: {name}.png\n   :alt: {first}",
        ".. rubric:: What to conclude",
        conclusion,
        ".. rubric:: Run it",
        ".. code-block:: bash\n\n" + textwrap.indent(commands(name), "   "),
        ".. rubric:: What it prints",
        ".. code-block:: text\n   :class: output\n\n" + textwrap.indent(printed, "   "),
        ".. rubric:: How it works",
        rest,
        ".. rubric:: The program",
        f".. literalinclude:: ../../examples/{name}.py\n   :language: python\n   :lines: {first_line(name)}-",
    ]
    return "\n\n".join(parts)


def cards(names: list[str]) -> str:
    """Cards that lead to the pages of these programs, as reStructuredText."""
    lines = [".. container:: cards", ""]
    for name in names:
        lines += [
            "   .. container:: card",
            "",
            f"      .. image:: gallery/{name}.png",
            f"         :target: gallery/{name}.html",
            f"         :alt: {name}",
            "",
            f"      :doc:`gallery/{name}`",
            "",
            f"      {docstring(name)[0]}",
            "",
        ]
    return "\n".join(lines)


class Example(SphinxDirective):
    """The directive ``example``; its argument is the name of the program, its content what to conclude."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(EXAMPLES / f"{self.arguments[0]}.py"))
        return self.parse_text_to_nodes(page(self.arguments[0], "\n".join(self.content)))


class ExampleCards(SphinxDirective):
    """The directive ``example-cards``; its content is the names of the programs, one on each line."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(cards([line for line in self.content if line.strip()]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directives known."""
    app.add_directive("example", Example)
    app.add_directive("example-cards", ExampleCards)
    return {"parallel_read_safe": True}
