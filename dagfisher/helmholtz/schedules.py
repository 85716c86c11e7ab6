"""How a setting changes in the course of training: a factor as a function of the epochs done and of all epochs.

A schedule is written as text: one of

* ``constant``;
* ``cosine``, ``cosine:END`` or ``cosine:END:FROM``: from 1 to END (0) along half a cosine;
* ``linear``, ``linear:END`` or ``linear:END:FROM``: the same along a straight line;
* ``step:EPOCHS:FACTOR``: times FACTOR after every so many epochs;

where FROM is the share of training during which the factor still is 1, and, before or instead of it with a ``+``,

* ``warm-up:EPOCHS``: from nearly 0 to 1 in a straight line during the first epochs.

For example ``warm-up:1+cosine`` or ``linear:0:0.5``. The factor depends on nothing else, so a resumed run continues
exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import SettingError

_SHAPES = "constant, cosine[:END[:FROM]], linear[:END[:FROM]], step:EPOCHS:FACTOR and warm-up:EPOCHS, joined by +"


@dataclass(frozen=True)
class Schedule:
    """A factor that changes with the epochs done.

    Args:
        text: in the words above, for example ``"warm-up:1+cosine"``.
    """

    text: str = "constant"

    def __post_init__(self) -> None:
        for part in self.text.split("+"):
            _parse(part, self.text)

    def factor(self, epoch: float, epochs: float) -> float:
        """The factor when `epoch` epochs are done, of `epochs` in all."""
        return math.prod(_factor(*_parse(part, self.text), epoch, epochs) for part in self.text.split("+"))


def _parse(part: str, whole: str) -> tuple[str, tuple[float, ...]]:
    kind, *numbers = part.strip().split(":")
    try:
        values = tuple(float(number) for number in numbers)
    except ValueError:
        values = (math.nan,)
    counts = {"constant": (0,), "cosine": (0, 1, 2), "linear": (0, 1, 2), "step": (2,), "warm-up": (1,)}
    sound = len(values) in counts.get(kind, ()) and all(0 <= v < math.inf for v in values)
    if sound and kind in ("step", "warm-up"):
        sound = values[0] >= 1e-6
    if sound and len(values) == 2 and kind in ("cosine", "linear"):
        sound = values[1] < 1
    if not sound:
        raise SettingError(f"{whole!r} is not a schedule; there are {_SHAPES}.")
    return kind, values


def _factor(kind: str, values: tuple[float, ...], epoch: float, epochs: float) -> float:
    if kind == "constant":
        return 1.0
    if kind == "step":
        try:
            return float(values[1] ** math.floor(epoch / values[0] + 1e-9))
        except OverflowError:
            return math.inf
    if kind == "warm-up":
        # Not 0 at the first step, which would be a step lost.
        return min(1.0, max(epoch / values[0], 1e-3))
    end, start = (*values, 0.0, 0.0)[:2] if len(values) < 2 else values
    done = min(1.0, max(0.0, epoch / epochs - start) / (1 - start))
    along = 0.5 * (1 - math.cos(math.pi * done)) if kind == "cosine" else done
    return 1 + (end - 1) * along
