"""What forward passes leave behind for a step, and the recorder that keeps it for one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..errors import MissingStatisticsError
from .pending import Draw, HeadWeights, Pending


class Backward:
    """Whether the backward pass of a captured forward pass has run; a hook of its output's node in the graph."""

    __slots__ = ("cleared", "paused", "ran")

    def __init__(self) -> None:
        self.ran = False
        self.cleared = False  # zero_grad() came before it ran
        self.paused = False  # the backward pass that runs now is no part of any gradient

    def __call__(self, *gradients: Any) -> None:
        self.ran = self.ran or not self.paused


@dataclass(eq=False)
class Pass:
    """One captured forward pass of one layer: copies of all that its statistics are made of."""

    parents: Tensor | None
    """As the module was given them; None for a layer without parents."""
    shape: torch.Size
    """Of the output."""
    fisher_weights: tuple[Tensor, ...] | Pending
    """q of each group of units, (n × units) or (n × 1); or who will know them."""
    sample_weights: Tensor
    """One weight per sample, not normalised."""
    backward: Backward | None = None
    """What becomes of its gradient; None if the pass has no graph."""
    draw: Draw | None = None
    """What `sample_fisher` needs of a stochastic layer's pass, in a model with deterministic layers."""
    statistics: Any = None
    """Made of the pass at once, where it is too large to keep; its parents and Fisher weights are gone then."""
    order: int = field(default_factory=count().__next__)
    """Grows from pass to pass, over all layers."""

    def counts(self) -> bool:
        """Whether the gradient at hand may hold this pass."""
        return self.backward is None or self.backward.ran or not self.backward.cleared

    def tensors(self) -> list[Tensor]:
        """The tensors that it keeps for the statistics."""
        known = self.fisher_weights.tensors() if isinstance(self.fisher_weights, Pending) else self.fisher_weights
        made = [] if self.statistics is None else self.statistics.tensors()
        return [t for t in (self.parents, self.sample_weights, *known, *made) if t is not None]


class Recorder:
    """What one layer's forward passes have left since the last step of its optimizer.

    Order of life: `begin` a step; the optimizer sets `armed` if it refreshes; forward passes are `add`ed; `zero_grad`
    forgets those whose gradients it clears; the step `take`s the rest and then `clear`s.
    """

    def __init__(self) -> None:
        self.armed = False  # the coming step wants passes
        self.compact: Callable[[Pass, int], Pass] | None = None  # what the optimizer does at once to the n-th pass
        self.follows = False  # the model has deterministic layers
        self.ran = False  # the module was called, whether captured or not
        self.recomputed = False  # a pass ran during a backward pass
        self.passes: list[Pass] = []
        self._step = 0
        self._added = 0  # passes since zero_grad() or the last step
        self._unclaimed: list[HeadWeights] = []  # of scale passes that came before their mean passes

    def begin(self, step: int) -> None:
        """What follows belongs to this step."""
        if step != self._step:
            self._step, self._added = step, 0

    def add(self, each: Pass) -> None:
        """One more forward pass."""
        self._added += 1
        self.passes.append(each if self.compact is None else self.compact(each, self._added))

    def head_weights(self) -> HeadWeights:
        """The Fisher weights of the coming pass of a Gaussian mean head, which its scale head tells."""
        return self._unclaimed.pop(0) if self._unclaimed else HeadWeights()

    def tell(self, weights: tuple[Tensor, ...]) -> None:
        """A pass of the scale head: the first pass of this mean head that waits, or the next one, has these weights."""
        for each in self.passes:
            if isinstance(each.fisher_weights, HeadWeights) and each.fisher_weights.value is None:
                each.fisher_weights.value = weights
                return
        self._unclaimed.append(HeadWeights(weights))

    def take(self) -> list[Pass]:
        """The passes that the coming step is to use."""
        self.passes = [p for p in self.passes if p.counts()]
        waiting = sum(1 for p in self.passes if isinstance(p.fisher_weights, HeadWeights) and not p.fisher_weights)
        if waiting or self._unclaimed:
            scales = len(self.passes) - waiting + len(self._unclaimed)
            raise MissingStatisticsError(
                f"its mean head ran {len(self.passes)} times and its scale head {scales} times since the last step; "
                f"run both heads equally often, or use no_capture() for the extra passes."
            )
        return self.passes

    def clear_gradients(self) -> None:
        """Forget the passes whose gradients are being cleared, and halves of passes of a Gaussian layer."""
        kept = [p for p in self.passes if p.backward is not None and not p.backward.ran]
        self.passes = [p for p in kept if not isinstance(p.fisher_weights, HeadWeights) or p.fisher_weights]
        self._unclaimed.clear()
        self._added = 0
        for each in self.passes:
            assert each.backward is not None
            each.backward.cleared = True

    def clear(self) -> None:
        """Forget everything."""
        self.passes = []
        self._unclaimed.clear()
        self.recomputed = False

    def nbytes(self) -> int:
        """Bytes that are staged for the coming step."""
        staged = [t for p in self.passes for t in p.tensors()] + [t for w in self._unclaimed for t in w.tensors()]
        return sum(t.numel() * t.element_size() for t in staged)
