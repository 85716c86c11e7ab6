"""A declared layer as one optimizer trains it: its trained parameters, its recorder and its inverse Fisher."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..capture import leave_graphs
from ..declaration import Declaration
from ..errors import CheckpointError, DagFisherError, MissingStatisticsError, SettingError
from ..fisher import Columns, Grams, LayerFisher, Rows, Window, compact
from ..solvers import SOLVERS
from .matrix import LayerMatrix
from .pace import Pace
from .settings import AUTO, USUAL, chosen

MOST_KEPT = 5
"""Refreshes in a row that may fail before a step raises; until then the Fisher before them is kept."""

Restored = tuple[LayerFisher, int, list[Any], Window, Pace, Tensor | None, int]
"""The inverse Fisher, the step it was made at, the layout it fits, the past refreshes, the pace, the reference, and the
outputs."""


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
    latest: tuple[Rows | Grams, ...] = ()
    """The statistics that a window keeps."""


class TrainedLayer(LayerMatrix):
    """One declared layer as one optimizer trains it.

    Order of life: `bind` to param groups and `listen`; then for each step `arm`, forward passes, and either a `refresh`
    with those of other layers and `keep`, or a use of what was `kept`.
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
        self.outputs = 1
        """The outputs of each unit in one sample, as its last captured pass had them; more than 1 for a convolution."""
        self._order = -1

    @property
    def finds_damping(self) -> bool:
        """Whether each refresh finds the damping, rather than being given it."""
        return isinstance(self.group["damping"], str)

    @property
    def variables(self) -> int:
        """The outputs of all units in one sample."""
        return self.declaration.units * self.outputs

    @property
    def deterministic(self) -> bool:
        """Whether its Fisher weights come from a backward pass."""
        return self.declaration.family.weights_from == "backward"

    def arm(self, wanted: bool, step: int, processes: int, follows: bool) -> None:
        """Let forward passes be captured, or not, until the next step.

        Args:
            wanted: whether the coming step refreshes.
            step: its number.
            processes: how many join their statistics.
            follows: whether the model has deterministic layers, which need the place of each output in the graph.
        """
        self.recorder.begin(step)
        self.recorder.armed = wanted
        self.recorder.counts = self.group["loss_reduction"] == "sum"
        if not wanted:
            return
        self.recorder.follows = follows
        self.recorder.watches = self.refreshed is None
        solver = SOLVERS.get(self.group["solver"])
        needs_rows = solver is not None and solver.needs_rows
        self.recorder.compact = partial(compact, self.declaration, step, needs_rows, processes)

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
            return step - self.refreshed >= self.update_every(step)
        except SettingError as error:
            raise SettingError(f"layer {self.name}: {error}") from None

    def keep(self, found: Refreshed, step: int, pace: Pace) -> None:
        """Use this Fisher until the next refresh."""
        self.pace, self.ratio = pace, found.ratio
        self.fisher, self.refreshed, self._layout = found.fisher, step, self.layout()
        self.failures = 0
        self._order = self.order
        self.window.push(list(found.latest), float(self.group["window_decay"]), int(self.group["window"]) - 1)

    def update_every(self, step: int) -> float:
        """K at this step."""
        k = chosen(self.group, "update_every")
        if k == AUTO:
            return float(self.pace.interval)
        value = k(step) if callable(k) else k
        number = number_of(value)
        if not number >= 1:
            raise SettingError(f"update_every gave {value!r} at step {step}; it must be at least 1.")
        return number

    def require_used(self) -> None:
        """Raise if the layer has no gradient, and never had a part in a loss."""
        if self.fisher is None and any(p is not None for p in self._trained()) and not self.recorder.any():
            how = "run only in eval() or without gradients" if self.recorder.ran else "never run"
            if self._parameter is not None:
                how = "been part of no loss"
            raise MissingStatisticsError(
                f"layer {self.name} has {how} since this optimizer was built, and has no gradient; use it in "
                f"the loss, freeze its parameters, or leave them out of the optimizer."
            )

    def columns(self) -> Columns:
        """What of the rows of parents is trained."""
        weight, bias = self._trained()
        return Columns(weight is not None, bias is not None, self._mask())

    def fitting(self) -> LayerFisher | None:
        """The Fisher of the last refresh, if it fits the layer as it is now."""
        return self.fisher if self._layout == self.layout() else None

    def named(self, error: DagFisherError) -> DagFisherError:
        """The error with the layer's name in front."""
        text = str(error)
        return error if text.startswith(f"layer {self.name}") else type(error)(f"layer {self.name}: {text}")

    def kept(self) -> LayerFisher:
        """The Fisher of the last refresh, which a step that reuses has."""
        assert self.fisher is not None
        return self.fisher

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
            "outputs": self.outputs,
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
            pace, reference = Pace(*state.get("pace", Pace(USUAL))[:1]), state.get("reference")
            reference = None if reference is None else reference.to(device)
            outputs = int(state.get("outputs", 1))
            if len(layout) != len(self.layout()) or not 0 <= refreshed < step or not 0 <= damping < math.inf:
                raise ValueError("a number out of its range")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(error) from None
        if sum(sizes) != self.layout()[2]:
            raise CheckpointError(f"layer {self.name} has {self.layout()[2]} units, the checkpoint {sum(sizes)}.")
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
        return fisher, refreshed, layout, window, pace, reference, outputs

    def _damaged(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"layer {self.name}: its saved state is damaged ({error!r}).")

    def restore(self, restored: Restored | None) -> None:
        """Continue from what `restored` gave."""
        state = restored if restored is not None else (None, None, None, Window(), Pace(), None, 1)
        self.fisher, self.refreshed, self._layout, self.window, self.pace, self.reference, self.outputs = state

    @property
    def solver(self) -> str:
        """The solvers that the last refresh chose, one for each kind of unit; nothing before the first one."""
        return "" if self.fisher is None else "+".join(s.name for s in self.fisher.solvers)

    def __repr__(self) -> str:
        solver = self.solver or "not prepared"
        units = sum(self.declaration.sizes)
        kind = type(self.declaration.module).__name__
        return f"{self.name.strip(chr(39))}: {self.declaration.family.name} on {kind}, {units} units, {solver}"


def number_of(value: Any) -> float:
    """What a schedule gave; NaN, which is in no range, for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _described(layout: list[Any]) -> str:
    weight, bias, units, width, family, _ = layout
    trained = " and ".join(name for name, given in (("weight", weight), ("bias", bias)) if given)
    return f"{trained or 'nothing'} of {units} {family} units with {width - bool(bias)} parents"
