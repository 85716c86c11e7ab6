"""A live bar on a terminal, where tqdm is installed; lines of text everywhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Bar:
    """Counts towards a total; `line` prints a whole line above the bar."""

    def __init__(self, total: float, label: str, *, initial: float = 0, unit: str = "step") -> None:
        self._bar: Any = None
        try:
            from tqdm import tqdm
        except ImportError:
            return
        shape = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
        self._bar = tqdm(
            total=total, initial=initial, desc=label, unit=unit, bar_format=shape, disable=None, leave=False
        )

    def update(self, amount: float = 1, note: str | None = None) -> None:
        """So much more is done."""
        if self._bar is not None:
            if note is not None:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(amount)

    def line(self, text: str) -> None:
        """Print a line to standard output."""
        if self._bar is not None and not self._bar.disable:
            self._bar.clear()
        print(text, flush=True)
        if self._bar is not None and not self._bar.disable:
            self._bar.refresh()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def table(header: list[str], lines: list[list[str]], left: int = 1) -> str:
    """Columns of text: the first `left` of them start, the others end, in line."""
    widths = [max(len(row[i]) for row in [header, *lines]) for i in range(len(header))]
    shown = []
    for row in [header, ["─" * width for width in widths], *lines]:
        aligned = enumerate(zip(row, widths, strict=True))
        cells = [cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in aligned]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def warn(text: str) -> None:
    """A sentence on standard error."""
    print(f"dagfisher: {text}", file=sys.stderr, flush=True)
