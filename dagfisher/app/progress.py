"""A live bar on a terminal or in a notebook, where tqdm is installed; elsewhere a line of text now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .._processes import is_first, is_shared

LINE_SECONDS = 30.0
"""At least so long between two lines about how far it is, and before the first."""


def show(text: str) -> None:
    """Print a line to standard output, in the first of several processes."""
    if is_first():
        print(text, flush=True)


def told_elsewhere(error: Exception) -> bool:
    """Whether another process shows this error."""
    return is_shared(error) and not is_first()


class Bar:
    """A count towards a total, with the time that it took and the time left.

    The first of several processes shows it. Where there is no terminal, or no tqdm, it is a line on standard error
    every half a minute, so that what is quick stays silent. Use it in a ``with`` block: `update` as often as something
    is done, `line` for a whole line above the bar; the bar vanishes at the end of the block.

    Args:
        total: the count at which all is done.
        label: is shown in front of the bar.
        initial: what was done before.
        unit: what is counted.
    """

    def __init__(self, total: float, label: str, *, initial: float = 0, unit: str = "step") -> None:
        self._bar: Any = None
        self._label, self._total = label, total
        self._initial = self._done = initial
        self._began = self._told = time.monotonic()
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
        self._done += amount
        if self._bar is not None:
            if note is not None:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(amount)
        due = self._done < self._total and time.monotonic() - self._told >= LINE_SECONDS
        if due and is_first() and not self.live:
            self._tell()

    def left(self, done: float | None = None) -> float | None:
        """The seconds left at the pace so far, if so much is done; None as long as there is no pace.

        Args:
            done: the count; what the updates add up to, if not given.
        """
        done = self._done if done is None else done
        if done <= self._initial:
            return None
        return (time.monotonic() - self._began) * max(0.0, self._total - done) / (done - self._initial)

    def _tell(self) -> None:
        left = self.left()
        if left is not None:
            self._told = time.monotonic()
            share = int(100 * self._done / self._total)
            print(f"{self._label}: {share} % done, {duration(left)} left", file=sys.stderr, flush=True)

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
        self._told = time.monotonic()
        if self.live:
            self._bar.refresh()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """A time to wait in its largest fitting unit: "20 s", "3 min", "2.5 h"."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


def warn(text: str) -> None:
    """Print a sentence to standard error, after the program's name."""
    print(f"dagfisher: {text}", file=sys.stderr, flush=True)
