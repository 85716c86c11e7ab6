"""Text in columns."""

from __future__ import annotations


def table(header: list[str], lines: list[list[str]], left: int = 1) -> str:
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
    return "\n".join(shown)
