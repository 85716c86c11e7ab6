"""Hidden units without a distribution of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import DeclarationError
from .base import Units, WeightsFrom, register_family


@dataclass(frozen=True)
class Deterministic(Units):
    """A unit without a distribution of its own, inside an encoder or decoder.

    Its Fisher weight is the square of the back-propagated derivative ∂ log p/∂a; see :mod:`dagfisher.capture.pending`.
    """

    fisher: str = "sampled"
    """"sampled" from the model by `DAGNaturalGradient.sample_fisher`, or "empirical"."""
    reduction: str = "mean"
    """Of the loss over the samples, "mean" or "sum"; the empirical Fisher depends on it."""
    name = "deterministic"
    weights_from: ClassVar[WeightsFrom] = "backward"

    def __post_init__(self) -> None:
        if self.fisher not in ("sampled", "empirical"):
            raise DeclarationError(f"fisher must be 'sampled' or 'empirical', not {self.fisher!r}.")
        if self.reduction not in ("mean", "sum"):
            raise DeclarationError(f"reduction must be 'mean' or 'sum', not {self.reduction!r}.")


register_family("deterministic", Deterministic)
