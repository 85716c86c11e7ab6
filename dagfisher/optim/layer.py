"""A declared layer as one optimizer trains it: its trained parameters, its recorder and its inverse Fisher."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..capture import leave_graphs
from ..capture.agreement import another_map
from ..declaration import Declaration
from ..errors import (
    CheckpointError,
    DagFisherError,
    MissingStatisticsError,
    SettingError,
    ShapeError,
    SingularBlockError,
)
from ..fisher import (
    Columns,
    Grams,
    LayerFisher,
    Rows,
    Window,
    compact,
    damped_blocks,
    joined,
    normalised,
    statistics_of,
)
from ..fisher.rows import Disagreement
from ..fisher.segments import Segment
from ..solvers import SOLVERS
from .damping import LARGEST, adapted, first_damping, predictions
from .distributed import share_rows
from .matrix import LayerMatrix
from .pace import Pace
from .settings import AUTO, USUAL, chosen

MOST_KEPT = 5
"""Refreshes in a row that may fail before a step raises; until then the Fisher before them is kept."""
RETRIES = (1.0, 10.0, 100.0)
"""A damping that is found by itself is tried with these factors where blocks cannot be inverted."""

Restored = tuple[LayerFisher, int, list[Any], Window, Pace, Tensor | None]
"""The inverse Fisher, the step it was made at, the layout it fits, the past refreshes, the pace, and the reference."""


class Refreshed(NamedTuple):
    """What a refresh gives."""

    fisher: LayerFisher
    """Fresh, or the one before if the blocks could not be inverted."""
    solved: Tensor
    """(αI + F_j)⁻¹ g_j, (units × d)."""
    failure: str | None
    """Why the Fisher before is kept; None if it is not."""
    ratio: float | None = None
    """The curvature that the fresh samples found, over what was predicted; None if nothing was compared."""


class TrainedLayer(LayerMatrix):
    """One declared layer as one optimizer trains it.

    Order of life: `bind` to param groups and `listen`; then for each step `arm`, forward passes, and either `refresh`
    and `keep` or `reuse`.
    """

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration)
        self.fisher: LayerFisher | None = None
        self.refreshed: int | None = None
        self._layout: list[Any] | None = None
        self.window = Window()
        self.failures = 0
        """Refreshes in a row whose blocks could not be inverted."""
        self.pace = Pace()
        self.reference: Tensor | None = None
        """The divergence of a whole step of its group at the last refresh."""
        self.ratio: float | None = None
        """The curvature that fresh samples found at the last refresh, over what was predicted."""
        self._latest: list[Rows | Grams] = []
        self._order = -1

    @property
    def deterministic(self) -> bool:
        """Whether its Fisher weights come from a backward pass."""
        return self.declaration.family.weights_from == "backward"

    def arm(self, wanted: bool, step: int, process_group: dist.ProcessGroup | None, follows: bool) -> None:
        """Let forward passes be captured, or not, until the next step.

        Args:
            wanted: whether the coming step refreshes.
            step: its number.
            process_group: of the processes whose rows are joined.
            follows: whether the model has deterministic layers, which need the place of each output in the graph.
        """
        self.recorder.begin(step)
        self.recorder.armed = wanted
        self.recorder.counts = self.group["loss_reduction"] == "sum"
        if not wanted:
            return
        self.recorder.follows = follows
        self.recorder.watches = self.refreshed is None
        # Other processes may have fewer rows, and keep them.
        solver = SOLVERS.get(self.group["solver"])
        needs_rows = process_group is not None or (solver is not None and solver.needs_rows)
        self.recorder.compact = partial(compact, self.declaration, step, needs_rows)

    def listen(self) -> None:
        """Let the layer's forward passes feed the recorder of this optimizer, and no other."""
        leave_graphs()
        self.declaration.recorder = self.recorder

    @property
    def order(self) -> int:
        """A number that grows in the order in which layers ran first since the last step, or at the last refresh."""
        return self.recorder.passes[0].order if self.recorder.passes else self._order

    def due(self, step: int) -> bool:
        """Whether this step refreshes the Fisher."""
        if self.refreshed is None or self._layout != self.layout():
            return True
        try:
            return step - self.refreshed >= self._update_every(step)
        except SettingError as error:
            raise SettingError(f"layer {self.name}: {error}") from None

    def keep(self, found: Refreshed, step: int, pace: Pace) -> None:
        """Use this Fisher until the next refresh."""
        self.pace, self.ratio = pace, found.ratio
        self.fisher, self.refreshed, self._layout = found.fisher, step, self.layout()
        self.failures = 0
        self._order = self.order
        self.window.push(self._latest, float(self.group["window_decay"]), int(self.group["window"]) - 1)
        self._latest = []

    def _update_every(self, step: int) -> float:
        k = chosen(self.group, "update_every")
        if k == AUTO:
            return float(self.pace.interval)
        value = k(step) if callable(k) else k
        number = _number(value)
        if not number >= 1:
            raise SettingError(f"update_every gave {value!r} at step {step}; it must be at least 1.")
        return number

    def _damping(self, step: int, segments: list[Segment], gradient: Tensor | None) -> tuple[float, float | None]:
        """α of a refresh, as it is set or as the samples of this refresh say, and the ratio that they found."""
        alpha = self.group["damping"]
        if alpha == AUTO:
            if self.fisher is None or self._layout != self.layout():
                return first_damping(segments), None
            if gradient is None:
                return self.fisher.damping, None
            # With a window the past refreshes are part of the segments; only the fresh ones have not been seen.
            fresh = self._cut(self._latest) if self._latest else segments
            found, predicted = torch.stack(predictions(self.fisher, fresh, gradient)).tolist()
            ratio = found / predicted if predicted > 0 else None
            return adapted(self.fisher.damping, found, predicted), ratio
        value = alpha(step) if callable(alpha) else alpha
        number = _number(value)
        if not 0 <= number < math.inf:
            raise SettingError(f"damping gave {value!r} at step {step}; it must be a finite number of at least 0.")
        return number, None

    def gradient(self) -> Tensor | None:
        found = super().gradient()
        if found is not None or self.fisher is not None:
            return found
        if any(p is not None for p in self._trained()) and not self.recorder.any():
            how = "run only in eval() or without gradients" if self.recorder.ran else "never run"
            if self._parameter is not None:
                how = "been part of no loss"
            raise MissingStatisticsError(
                f"layer {self.name} has {how} since this optimizer was built, and has no gradient; use it in "
                f"the loss, freeze its parameters, or leave them out of the optimizer."
            )
        return found

    def _segments(self, step: int, process_group: dist.ProcessGroup | None) -> list[Segment]:
        """The statistics of the coming step, cut into problems for solvers."""
        passes = self.recorder.take()
        if self.declaration.recorder is not self.recorder:
            raise MissingStatisticsError("a newer optimizer listens to this layer; use that one, or build this anew.")
        if not passes and self.recorder.recomputed:
            raise MissingStatisticsError(
                "its forward pass ran without gradients, and again during backward(), where its sample weights are "
                "not known; for activation checkpointing, call checkpoint(..., use_reentrant=False)."
            )
        if not passes:
            raise MissingStatisticsError(
                "it has a gradient, but none of its forward passes was captured since the last step or zero_grad(). "
                "Call the module itself (not a function on its weight), in training mode, with gradients enabled and "
                "outside no_capture(), after the optimizer was built."
            )
        found = statistics_of(self.declaration, passes, step)
        if process_group is not None:
            found = [share_rows(Rows.joined([part for part in found if isinstance(part, Rows)]), process_group)]
        if not any(part.sample_weights.shape[0] for part in found):
            raise MissingStatisticsError("its forward passes since the last step held no sample; give it a batch.")
        if self.group["window"] > 1:
            self._latest = normalised(found)
            found = [*self._latest, *self.window.statistics()]
        whole = joined(found, self._sizes)
        off = [each.mismatch for each in passes if each.mismatch is not None]
        try:
            whole.require_sound(torch.stack(off).amax() if off else None)
        except Disagreement:
            raise another_map(self.declaration) from None
        return self._cut([whole])

    def _cut(self, found: list[Rows | Grams]) -> list[Segment]:
        """The statistics as problems for solvers."""
        weight, bias = self._trained()
        columns = Columns(weight is not None, bias is not None, self._mask())
        return list(joined(found, self._sizes).segments(self._sizes, columns))

    def refresh(self, gradient: Tensor, step: int, process_group: dist.ProcessGroup | None) -> Refreshed:
        """A fresh inverse Fisher from what was captured, and what it makes of the gradient; nothing is kept yet."""
        try:
            segments = self._segments(step, process_group)
            if [sum(s.units for s in segments), segments[0].parents_count] != list(gradient.shape):
                raise ShapeError("its gradient does not fit its captured parents; were its parameters replaced?")
            damping, ratio = self._damping(step, segments, gradient)
            failure: SingularBlockError | None = None
            for factor in RETRIES if self.group["damping"] == AUTO else (1.0,):
                try:
                    fisher, solved = self._begin(segments, gradient, max(damping, min(factor * damping, LARGEST)), step)
                    return Refreshed(fisher, solved, None, ratio)
                except SingularBlockError as error:
                    failure = error
            fits = self.fisher is not None and self._layout == self.layout()
            if self.fisher is None or not fits or self.failures >= MOST_KEPT:
                assert failure is not None
                raise failure
            return Refreshed(self.fisher, self.fisher.solve(gradient), str(failure))
        except DagFisherError as error:
            raise self._named(error) from None

    def _begin(
        self, segments: list[Segment], gradient: Tensor, damping: float, step: int
    ) -> tuple[LayerFisher, Tensor]:
        automatic = chosen(self.group, "update_every") == AUTO
        uses = min(USUAL, 2 * self.pace.interval) if automatic else self._update_every(step)
        return LayerFisher.begin(
            segments,
            gradient,
            damping=damping,
            solver=self.group["solver"],
            tolerance=chosen(self.group, "tolerance"),
            update_every=int(min(uses, 10**6)),
        )

    def _named(self, error: DagFisherError) -> DagFisherError:
        """The error with the layer's name in front."""
        text = str(error)
        return error if text.startswith(f"layer {self.name}") else type(error)(f"layer {self.name}: {text}")

    def reuse(self, gradient: Tensor) -> tuple[Tensor, float]:
        """What the Fisher of the last refresh makes of the gradient, and the damping in it."""
        assert self.fisher is not None
        return self.fisher.solve(gradient), self.fisher.damping

    def blocks(self, step: int, process_group: dist.ProcessGroup | None) -> Tensor:
        """The damped blocks of the coming step."""
        known = self.recorder.any() or self._parameter is not None
        if self.fisher is not None and not (self.due(step) and known):
            return self.fisher.blocks()
        if not known:
            raise MissingStatisticsError(
                f"layer {self.name} has no blocks yet: no forward pass of it was captured. Run the model in training "
                f"mode, with gradients enabled, after the optimizer was built, and then ask for its blocks."
            )
        try:
            segments = self._segments(step, process_group)
            damping, _ = self._damping(step, segments, super().gradient())
        except DagFisherError as error:
            raise self._named(error) from None
        return damped_blocks(segments, damping)

    def nbytes(self) -> int:
        """Bytes kept for the Fisher, prepared and staged."""
        kept = self.window.nbytes() + (self.fisher.nbytes() if self.fisher is not None else 0)
        return kept + self.recorder.nbytes()

    def state(self) -> dict[str, Any]:
        """The prepared solvers, as plain tensors and numbers."""
        if self.fisher is None:
            return {"refreshed": self.refreshed, "solvers": None}
        return {
            "refreshed": self.refreshed,
            "layout": self._layout,
            "damping": self.fisher.damping,
            "pace": list(self.pace),
            "reference": self.reference,
            "sizes": list(self.fisher.sizes),
            "solvers": [{"solver": s.name, **s.state()} for s in self.fisher.solvers],
            "window": self.window.state(),
        }

    def restored(self, state: dict[str, Any], step: int) -> Restored | None:
        """The inverse Fisher that a `state` holds, on this layer's device, or None if it holds none.

        Args:
            state: of a layer like this one; anything else is a `CheckpointError`.
            step: the number of steps that the saved optimizer had taken.
        """
        try:
            if state["solvers"] is None:
                return None
            layout, sizes = list(state["layout"]), tuple(state["sizes"])
            if self.declaration.coupled > 1 and layout[4] == self.declaration.family.name:
                return None  # blocks without the coupling, which the next step makes anew
            device = self.parameters[0].device
            solvers = []
            for saved in state["solvers"]:
                fields = dict(saved)
                solvers.append(SOLVERS[fields.pop("solver")](**fields).to(device))
            refreshed, damping = int(state["refreshed"]), float(state["damping"])
            coupled = self.declaration.coupled > 1
            fisher, window = LayerFisher(damping, sizes, solvers, coupled), Window()
            window.restore(state["window"], device)
            pace, reference = Pace(*state.get("pace", Pace(USUAL))), state.get("reference")
            reference = None if reference is None else reference.to(device)
            if len(layout) != len(self.layout()) or not 0 <= refreshed < step or not 0 <= damping < math.inf:
                raise ValueError("a number out of its range")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(error) from None
        if sum(sizes) != sum(self._sizes):
            raise CheckpointError(f"layer {self.name} has {sum(self._sizes)} units, the checkpoint {sum(sizes)}.")
        if layout[:-1] != self.layout()[:-1]:
            raise CheckpointError(
                f"layer {self.name} trains {_described(self.layout())}, the checkpoint {_described(layout)}; "
                f"build the model, and freeze its parameters, as they were saved."
            )
        if layout == self.layout():
            try:
                fisher.require_fitting(torch.zeros(layout[2], layout[3], dtype=self._dtype(), device=device))
            except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                raise self._damaged(error) from None
        return fisher, refreshed, layout, window, pace, reference

    def _damaged(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"layer {self.name}: its saved state is damaged ({error!r}).")

    def restore(self, restored: Restored | None) -> None:
        """Continue from what `restored` gave."""
        state = restored if restored is not None else (None, None, None, Window(), Pace(), None)
        self.fisher, self.refreshed, self._layout, self.window, self.pace, self.reference = state

    @property
    def solver(self) -> str:
        """The solvers that the last refresh chose, one for each kind of unit; nothing before the first one."""
        return "" if self.fisher is None else "+".join(s.name for s in self.fisher.solvers)

    def __repr__(self) -> str:
        solver = self.solver or "not prepared"
        units = sum(self._sizes)
        kind = type(self.declaration.module).__name__
        return f"{self.name.strip(chr(39))}: {self.declaration.family.name} on {kind}, {units} units, {solver}"


def _number(value: Any) -> float:
    """What a schedule gave; NaN, which is in no range, for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _described(layout: list[Any]) -> str:
    weight, bias, units, width, family, _ = layout
    trained = " and ".join(name for name, given in (("weight", weight), ("bias", bias)) if given)
    return f"{trained or 'nothing'} of {units} {family} units with {width - bool(bias)} parents"
