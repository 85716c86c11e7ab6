"""How soon a Fisher is made anew: found by how fast the Fisher changes."""

from __future__ import annotations

from typing import NamedTuple

from .settings import USUAL

CALM, WILD = 2.0, 4.0
"""Up to CALM times the predicted curvature all is well; above WILD times a Fisher is out of date."""


class Pace(NamedTuple):
    """The pace of an optimizer that looks after itself.

    At each refresh the layer whose fresh samples find the most curvature, over what its old Fisher predicts, decides.
    Calm, and the next Fisher is kept twice as long, up to `USUAL` steps; wild, and it is kept a quarter as long.
    """

    interval: int = 1
    """Steps until the next refresh."""

    def after(self, ratio: float | None) -> Pace:
        """The pace after a refresh that found this ratio; None: it found none."""
        if ratio is None:
            return self
        if not ratio <= WILD:
            return Pace(max(1, self.interval // 4))
        return self if ratio > CALM else Pace(min(USUAL, 2 * self.interval))
