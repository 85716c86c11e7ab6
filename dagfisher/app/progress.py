"""A live bar on a terminal or in a notebook, where tqdm is installed; lines of text everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .._processes import is_first, is_shared


def show(text: str) -> None:
    """Print a line to standard output, in the first of several processes."""
    if is_first():
        print(text, flush=True)


def told_elsewhere(error: Exception) -> bool:
    """Whether another process shows this error."""
    return is_shared(error) and not is_first()


class Bar:
    """A count towards a total, with the time that it took and the time left; does nothing where tqdm is not installed.

    The first of several processes shows it. Use it in a ``with`` block: `update` as often as something is done, `line`
    for a whole line above the bar; the bar vanishes at the end of the block.

    Args:
        total: the count at which all is done.
        label: is shown in front of the bar.
        initial: what was done before.
        unit: what is counted.
    """

    def __init__(self, total: float, label: str, *, initial: float = 0, unit: str = "step") -> None:
        self._bar: Any = None
        if not is_first():
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        shape = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}"
        self._bar = tqdm(
            total=total, initial=initial, desc=label, unit=unit, bar_format=shape, disable=None, leave=False
        )

    @property
    def live(self) -> bool:
        """Whether someone can see the bar."""
        return self._bar is not None and not self._bar.disable

    def update(self, amount: float = 1, note: str | None = None) -> None:
        """Count so much more, and show a note behind the bar."""
        if self._bar is not None:
            if note is not None:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(amount)

    def line(self, text: str) -> None:
        """Print a line to standard output."""
        self._above(lambda: show(text))

    def warn(self, text: str) -> None:
        """Print a sentence to standard error, after the program's name."""
        self._above(lambda: warn(text))

    def _above(self, show: Callable[[], None]) -> None:
        if self.live:
            self._bar.clear()
        show()
        if self.live:
            self._bar.refresh()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def warn(text: str) -> None:
    """Print a sentence to standard error, after the program's name."""
    print(f"dagfisher: {text}", file=sys.stderr, flush=True)
