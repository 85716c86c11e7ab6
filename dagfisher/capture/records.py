"""What forward passes leave behind for a step, and the recorder that keeps it for one layer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from .._torch import graph_task
from ..errors import MissingStatisticsError
from .pending import Derivative, Draw, HeadWeights, Pending


class Backward:
    """Whether a backward pass has gone through the output of a captured pass; a hook of its node in the graph.

    `watch` may be given to look at the gradient that arrives at the output.
    """

    __slots__ = ("__weakref__", "cleared", "paused", "ran", "task", "watch")

    def __init__(self, watch: Callable[[Sequence[Tensor | None]], None] | None = None) -> None:
        self.ran = False
        self.cleared = False  # zero_grad() came before it ran
        self.paused = False  # the backward pass that runs now is no part of any gradient
        self.task = -1  # which call of backward() it was
        self.watch = watch

    def __call__(self, inputs: Any, outputs: Sequence[Tensor | None]) -> None:
        if self.paused:
            return
        self.ran, self.task = True, graph_task()
        if self.watch is not None:
            self.watch(outputs)


@dataclass(eq=False)
class Pass:
    """One captured forward pass of one layer: copies of all that its statistics are made of."""

    parents: Tensor | None
    """As the module was given them; None for a layer without parents."""
    shape: torch.Size
    """Of the output."""
    samples: torch.Size
    """The axes of the output that are samples, without those that are positions of one sample."""
    fisher_weights: tuple[Tensor, ...] | Pending
    """q of each group of units, (n × units) or (n × 1); or what will know them."""
    sample_weights: Tensor
    """One weight per sample, not normalised."""
    weighted: bool = False
    """Whether the weights were given, rather than 1 for each sample."""
    backward: Backward | None = None
    """Whether its gradient has arrived; None if the pass has no graph."""
    draw: Draw | None = None
    """What `sample_fisher` needs of a stochastic layer's pass, in a model with deterministic layers."""
    mismatch: Tensor | None = None
    """How far the output is from the declared map, over what rounding allows; None if that was not looked at."""
    received: Received | None = None
    """The gradient that arrived at the output, if it is looked at."""
    statistics: Any = None
    """Made of the pass at once, where it is too large to keep; its parents and Fisher weights are gone then."""
    order: int = field(default_factory=count().__next__)
    """Grows from pass to pass, over all layers."""

    def tensors(self) -> list[Tensor]:
        """The tensors that are kept for the statistics."""
        known = self.fisher_weights.tensors() if isinstance(self.fisher_weights, Pending) else self.fisher_weights
        made = [] if self.statistics is None else self.statistics.tensors()
        return [t for t in (self.parents, self.sample_weights, *known, *made) if t is not None]


class Received:
    """What arrives at the output of a pass in backward passes: squares summed over units, and sums over rows."""

    def __init__(self, output_nr: int, arrange: Callable[[Tensor], Tensor]) -> None:
        self._output_nr, self._arrange = output_nr, arrange
        self.squares: Tensor | None = None
        """(n)."""
        self.sums: Tensor | None = None
        """(units)."""

    def __call__(self, outputs: Sequence[Tensor | None]) -> None:
        gradient = outputs[self._output_nr]
        if gradient is None:
            return
        rows = self._arrange(gradient.detach()).double()
        self.squares, self.sums = rows.square().sum(1), rows.sum(0)


class Recorder:
    """What one layer's forward passes have left since the last step of its optimizer.

    Order of life: `begin` a step; the optimizer sets `armed` if it refreshes; forward passes are `add`ed; `zero_grad`
    forgets those whose gradients it clears; the step `take`s the rest and then `clear`s.
    """

    def __init__(self) -> None:
        self.armed = False  # the coming step wants passes
        self.compact: Callable[[Pass, int], Pass] | None = None  # what the optimizer does at once to the n-th pass
        self.held: tuple[Tensor | None, Tensor | None] = (None, None)  # weight and bias that the optimizer trains
        self.follows = False  # the model has deterministic layers
        self.watches = False  # the gradient that arrives is to be looked at
        self.counts = False  # samples are counted, at every step
        self.samples = 0  # in all passes since zero_grad() or the last step
        self.ran = False  # the module was called, whether captured or not
        self.recomputed = False  # a pass ran during a backward pass
        self.passes: list[Pass] = []
        self._step = 0
        self._added = 0  # passes since zero_grad() or the last step
        self._cleared: list[tuple[weakref.ref[Backward], Pass]] = []  # passes whose gradients zero_grad() cleared
        self._unclaimed: list[HeadWeights] = []  # of scale passes that came before their mean passes

    def begin(self, step: int) -> None:
        """Count passes anew if this is another step than before."""
        if step != self._step:
            self._step, self._added = step, 0

    def add(self, each: Pass) -> None:
        """Keep one more forward pass, or its statistics where it is too large to keep."""
        self._added += 1
        self.passes.append(each if self.compact is None else self.compact(each, self._added))

    def head_weights(self) -> HeadWeights:
        """The Fisher weights of the coming pass of a Gaussian mean head, told by its scale head before or after it."""
        return self._unclaimed.pop(0) if self._unclaimed else HeadWeights()

    def tell(self, weights: tuple[Tensor, ...]) -> None:
        """Give these weights, from a pass of the scale head, to the first pass that waits, or to the next one."""
        for each in self.passes:
            if isinstance(each.fisher_weights, HeadWeights) and each.fisher_weights.value is None:
                each.fisher_weights.value = weights
                return
        self._unclaimed.append(HeadWeights(weights))

    def take(self) -> list[Pass]:
        """The passes that the coming step is to use: those whose gradients are in `.grad`, as far as can be known."""
        self._revive()
        reached = any(p.backward is not None and p.backward.ran for p in self.passes)
        # Once a backward pass has gone through some pass, a pass that none has gone through is not part of the loss.
        self.passes = [
            p for p in self.passes if p.backward is None or p.backward.ran or not (reached or p.backward.cleared)
        ]
        waiting = sum(1 for p in self.passes if isinstance(p.fisher_weights, HeadWeights) and not p.fisher_weights)
        if waiting or self._unclaimed:
            scales = len(self.passes) - waiting + len(self._unclaimed)
            raise MissingStatisticsError(
                f"its mean head ran {len(self.passes)} times and its scale head {scales} times since the last step; "
                f"run both heads equally often, or use no_capture() for the extra passes."
            )
        return self.passes

    def any(self) -> bool:
        """Whether there are passes for the coming step."""
        self._revive()
        return bool(self.passes)

    def clear_gradients(self) -> None:
        """Forget the passes whose gradients are being cleared, and passes of one Gaussian head without the other.

        A pass that a later backward pass goes through, because its graph was retained, comes back.
        """
        self._revive()
        kept = []
        for each in self.passes:
            half = isinstance(each.fisher_weights, HeadWeights) and not each.fisher_weights
            if each.backward is None or half:
                continue
            if each.backward.ran:
                each.backward.ran = False
                # The graph alone keeps the hook alive, so that the pass goes when its graph does.
                self._cleared.append((weakref.ref(each.backward, self._forget), each))
                each.backward = None
            else:
                each.backward.cleared = True
                kept.append(each)
        self.passes = kept
        self._unclaimed.clear()
        self._added, self.samples = 0, 0

    def _forget(self, gone: weakref.ref[Backward]) -> None:
        self._cleared = [(ref, each) for ref, each in self._cleared if ref is not gone]

    def _revive(self) -> None:
        """Take back the passes that a backward pass has gone through since their gradients were cleared."""
        waiting = []
        for ref, each in self._cleared:
            backward = ref()
            if backward is not None and backward.ran:
                each.backward = backward
                self.passes.append(each)
            elif backward is not None:
                waiting.append((ref, each))
        self._cleared = waiting

    def clear(self) -> None:
        """Forget everything."""
        self.passes = []
        self._cleared.clear()
        self._unclaimed.clear()
        self.recomputed = False
        self.samples = 0

    def hooks(self) -> list[Backward | Derivative]:
        """The hooks of all passes, of forgotten ones that may come back too, in the graphs of the model."""
        forgotten = [backward for ref, _ in self._cleared if (backward := ref()) is not None]
        own = [p.backward for p in self.passes if p.backward is not None]
        return [*own, *forgotten, *(p.fisher_weights for p in self.passes if isinstance(p.fisher_weights, Derivative))]

    def nbytes(self) -> int:
        """Bytes that are staged for the coming step."""
        staged = [t for p in self.passes for t in p.tensors()] + [t for w in self._unclaimed for t in w.tensors()]
        return sum(t.numel() * t.element_size() for t in staged)
