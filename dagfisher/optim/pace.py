"""How soon a Fisher is made anew, and how far a step may go: found by how fast the Fisher changes."""

from __future__ import annotations

from typing import NamedTuple

from .settings import USUAL

CALM, WILD = 2.0, 4.0
"""Up to CALM times the predicted curvature all is well; above WILD times a Fisher is out of date, or a step too far."""
LEAST_TRUST = 1e-8


class Pace(NamedTuple):
    """The pace of an optimizer that looks after itself.

    At each refresh the layer whose fresh samples find the most curvature, over what its old Fisher predicts, decides.
    Calm, and the next Fisher is kept twice as long, up to `USUAL` steps; wild, and it is kept a quarter as long. If it
    is wild though the Fisher was made for one step only, that step was too far, and the trust region shrinks until the
    steps are calm again.
    """

    interval: int = 1
    """Steps until the next refresh."""
    trust: float = 1.0
    """What the trust region is multiplied by, at most 1."""

    def after(self, ratio: float | None) -> Pace:
        """The pace after a refresh that found this ratio; None: it found none."""
        if ratio is None:
            return self
        if not ratio <= WILD:
            if self.interval > 1:
                return self._replace(interval=max(1, self.interval // 4))
            return self._replace(trust=max(self.trust / 4, LEAST_TRUST))
        return self if ratio > CALM else Pace(min(USUAL, 2 * self.interval), min(1.0, 2 * self.trust))
