"""Text in columns, figures with their errors, and counts in the singular or the plural."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence


class Table(str):
    """Text in columns, which a notebook shows as a table of its own; made by `table`."""

    header: list[str]
    lines: list[list[str]]
    left: int

    def _repr_html_(self) -> str:
        """The same as HTML, for notebooks."""
        places = ["left" if i < self.left else "right" for i in range(len(self.header))]

        def cells(line: Sequence[str]) -> list[str]:
            return [f'<div style="text-align: {p}">{html.escape(c)}</div>' for p, c in zip(places, line, strict=True)]

        found = html_table(cells(self.header), [cells(line) for line in self.lines])
        return f'<div style="overflow-x: auto">{found}</div>'


def html_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def with_error(value: float, error: float | None, digits: int = 2) -> str:
    """A figure and its standard error, "−12.34 ± 0.05"; the figure alone where there is no error."""
    shown = f"{value:.{digits}f}"
    return shown if error is None or math.isnan(error) else f"{shown} ± {error:.{digits}f}"


def counted(number: float, unit: str, form: str = ",.4g") -> str:
    """A number and its unit, which has an s unless the number, as it is printed, is one: "1 epoch", "2 epochs"."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:{form}}"
    return f"{shown} {unit}" + ("" if shown.replace(".0", "") == "1" else "s")


def explained(columns: dict[str, str]) -> str:
    """What the columns of a table say: a line for each, the words in a column of their own."""
    width = max(map(len, columns))
    return "\n".join(f"{name:<{width}}  {words}".rstrip() for name, words in columns.items())


def table(header: list[str], lines: list[list[str]], left: int = 1) -> Table:
    """A header, a rule and lines of text in aligned columns.

    Args:
        header: the titles of the columns.
        lines: the cells, one list for each line, as many in each as the header has.
        left: how many columns, counted from the first, are aligned at their left edge; the others at their right.
    """
    widths = [max(len(row[i]) for row in [header, *lines]) for i in range(len(header))]
    shown = []
    for row in [header, ["─" * width for width in widths], *lines]:
        aligned = enumerate(zip(row, widths, strict=True))
        cells = [cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in aligned]
        shown.append("  ".join(cells).rstrip())
    found = Table("\n".join(shown))
    found.header, found.lines, found.left = header, lines, left
    return found
