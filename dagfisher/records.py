"""What forward passes leave behind for a step: rows and Fisher weights, or Gram matrices where rows are too many."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Gram(NamedTuple):
    """Blocks of a run of units that share their parents, not yet divided by the sum of the sample weights."""

    blocks: Tensor
    """Σ_k w_k q_jk u_k u_kᵀ, (units or 1 × d × d), the constant 1 last."""
    units: int


class _Sampling:
    """Whether the backward pass that is running is one of sampled outputs, which is no part of any gradient."""

    active = False


sampling = _Sampling()


class Backward:
    """Whether the backward pass of a captured forward pass has run; a hook of its output's node in the graph."""

    __slots__ = ("cleared", "ran")

    def __init__(self) -> None:
        self.ran = False
        self.cleared = False  # zero_grad() came before it ran

    def __call__(self, *gradients: Any) -> None:
        self.ran = self.ran or not sampling.active


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
    backward: Backward | None = None
    """What becomes of its gradient; None if the pass has no graph."""
    followed: Any = None
    """What `dagfisher.deterministic` needs of the pass, in a model with deterministic layers."""

    def counts(self) -> bool:
        """Whether the gradient at hand may hold this pass."""
        return self.backward is None or self.backward.ran or not self.backward.cleared


class Recorder:
    """What one layer's forward passes have left since the last step of its optimizer.

    `armed`: the coming step wants passes; `accumulates`: it can do with Gram matrices where rows are too many.
    """

    def __init__(self) -> None:
        self.armed = False
        self.accumulates = False
        self.pairs = False  # Fisher weights come from a scale head, pass by pass
        self.follows = False  # the model has deterministic layers
        self.ran = False
        self.recomputed = False  # a pass ran during a backward pass
        self.step = 0
        self.drawn = 0  # how often rows were drawn since zero_grad() or the last step
        self.records: list[Record] = []
        self.precisions: list[Tensor] = []

    def begin(self, step: int) -> None:
        """What follows belongs to this step."""
        if step != self.step:
            self.step, self.drawn = step, 0

    def clear(self) -> None:
        """Forget what was staged."""
        self.records.clear()
        self.precisions.clear()
        self.recomputed = False

    def clear_gradients(self) -> None:
        """Forget the passes whose gradients are being cleared, and halves of passes of a Gaussian mean head."""
        records = self.records
        if records and records[0].fisher_weights is None and self.pairs:
            records = records[: len(self.precisions)]
        self.precisions = self.precisions[: len(records)]
        self._keep([i for i, r in enumerate(records) if r.backward is not None and not r.backward.ran])
        self.drawn = 0
        for record in self.records:
            assert record.backward is not None
            record.backward.cleared = True

    def take(self) -> tuple[list[Record], list[Tensor]]:
        """The passes that the coming step is to use, and the precisions that belong to them."""
        if not all(r.counts() for r in self.records):
            self._keep([i for i, r in enumerate(self.records) if r.counts()])
        return self.records, self.precisions

    def _keep(self, kept: list[int]) -> None:
        extra = self.precisions[len(self.records) :]
        self.precisions = [self.precisions[i] for i in kept if i < len(self.precisions)] + extra
        self.records = [self.records[i] for i in kept]
