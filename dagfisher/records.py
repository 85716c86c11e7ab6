"""What forward passes leave behind for a step: rows and Fisher weights, or Gram matrices where rows are too many."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Gram(NamedTuple):
    """Blocks of a run of units that share their parents, not yet divided by the sum of the sample weights."""

    blocks: Tensor
    """Σ_k w_k q_jk u_k u_kᵀ, (units or 1 × d × d), the constant 1 last."""
    units: int


class Record(NamedTuple):
    """One captured forward pass of one layer."""

    rows: Tensor
    """The parents, (n × parents), without the constant 1."""
    fisher_weights: tuple[Tensor, ...] | None
    """q of each group of units; None for a Gaussian mean head, whose q comes from its scale head."""
    sample_weights: Tensor
    """One weight per row, not normalised."""
    total: Tensor | None = None
    """The sum of the weights over samples, where a sample has several rows; None: the rows are the samples."""
    grams: tuple[Gram, ...] | None = None
    """Instead of rows and Fisher weights, where the rows would be too many to keep."""


class Recorder:
    """What one layer's forward passes have left since the last step of its optimizer.

    `armed`: the coming step wants passes; `accumulates`: it can do with Gram matrices where rows are too many.
    """

    def __init__(self) -> None:
        self.armed = False
        self.accumulates = False
        self.ran = False
        self.records: list[Record] = []
        self.precisions: list[Tensor] = []

    def clear(self) -> None:
        """Forget what was staged."""
        self.records.clear()
        self.precisions.clear()
