"""A declared layer as one optimizer trains it: its trained parameters, its recorder and its inverse Fisher."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..capture import Recorder, compute_dtype
from ..declaration import Declaration, require_own_parameters
from ..errors import (
    CheckpointError,
    DagFisherError,
    DeclarationError,
    MissingStatisticsError,
    SettingError,
    ShapeError,
)
from ..fisher import Grams, LayerFisher, Rows, Window, compact, damped_blocks, joined, normalised, statistics_of
from ..fisher.segments import Segment
from ..maps import from_matrix, to_matrix
from ..solvers import SOLVERS
from .distributed import share_rows

Restored = tuple[LayerFisher, int, list[Any], Window]
"""The inverse Fisher, the step it was made at, the layout it fits, and the past refreshes."""


class TrainedLayer:
    """One declared layer as one optimizer trains it.

    Order of life: `bind` to param groups and `listen`; then for each step `arm`, forward passes, and either `refresh`
    and `keep` or `reuse`.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.recorder = Recorder()
        self.fisher: LayerFisher | None = None
        self.refreshed: int | None = None
        self._layout: list[Any] | None = None
        self.window = Window()
        self._latest: list[Rows | Grams] = []

    def bind(self, group_of: dict[int, dict[str, Any]], names: dict[int, str]) -> None:
        """Note which of weight and bias are trained here, and in which groups."""
        weight, bias = self.declaration.parameters
        self._weight = weight if id(weight) in group_of else None
        self._bias = bias if id(bias) in group_of else None
        self.groups = [group_of[id(p)] for p in self.parameters]
        self.group = self.groups[0]
        self._sizes = self.declaration.sizes
        for p in self.parameters:
            owner = names.get(id(p), "").rpartition(".")[0]
            if owner:
                self.declaration.learn_name(owner)

    @property
    def deterministic(self) -> bool:
        """Whether its Fisher weights come from a backward pass."""
        return self.declaration.family.weights_from == "backward"

    def arm(self, wanted: bool, step: int, process_group: dist.ProcessGroup | None, follows: bool) -> None:
        """Let forward passes be captured, or not, until the next step; `follows`: for deterministic layers too."""
        self.recorder.begin(step)
        self.recorder.armed = wanted
        self.recorder.follows = follows
        # Other processes may have fewer rows, and keep them.
        solver = SOLVERS.get(self.group["solver"])
        needs_rows = process_group is not None or (solver is not None and solver.needs_rows)
        self.recorder.compact = partial(compact, self.declaration, step, needs_rows)

    def listen(self) -> None:
        """Become the one that the layer's forward passes feed."""
        self.declaration.recorder = self.recorder

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of this layer that the optimizer holds."""
        return [p for p in (self._weight, self._bias) if p is not None]

    @property
    def name(self) -> str:
        """The layer's qualified name, in quotes."""
        return self.declaration.name

    def _trained(self) -> tuple[Tensor | None, Tensor | None]:
        weight = self._weight if self._weight is not None and self._weight.requires_grad else None
        bias = self._bias if self._bias is not None and self._bias.requires_grad else None
        return weight, bias

    def layout(self) -> list[Any]:
        """What a prepared Fisher must fit: the trained ones of weight and bias, units, parents, family and dtype."""
        weight, bias = self._trained()
        units = sum(self._sizes)
        width = (0 if weight is None else weight.numel() // max(units, 1)) + (bias is not None)
        family, dtype = self.declaration.family.name, str(self._dtype())
        return [weight is not None, bias is not None, units, width, family, dtype]

    def _dtype(self) -> torch.dtype:
        parameter = self._weight if self._weight is not None else self._bias
        assert parameter is not None
        return compute_dtype(parameter)

    def due(self, step: int) -> bool:
        """Whether this step refreshes the Fisher."""
        if self.refreshed is None or self._layout != self.layout():
            return True
        try:
            return step - self.refreshed >= self._update_every(step)
        except SettingError as error:
            raise SettingError(f"layer {self.name}: {error}") from None

    def refreshes_within(self, steps: int, after: int) -> bool:
        """Whether one of so many steps after this one refreshes, if this one is taken."""
        last = after if self.due(after) else self.refreshed
        assert last is not None
        return any(step - last >= self._update_every(step) for step in range(after + 1, after + 1 + steps))

    def keep(self, fisher: LayerFisher, step: int) -> None:
        """Use this Fisher until the next refresh."""
        self.fisher, self.refreshed, self._layout = fisher, step, self.layout()
        self.window.push(self._latest, float(self.group["window_decay"]), self.group["window"] - 1)
        self._latest = []

    def _update_every(self, step: int) -> float:
        k = self.group["update_every"]
        value = k(step) if callable(k) else k
        number = _number(value)
        if not number >= 1:
            raise SettingError(f"update_every gave {value!r} at step {step}; it must be at least 1.")
        return number

    def _damping(self, step: int) -> float:
        alpha = self.group["damping"]
        value = alpha(step) if callable(alpha) else alpha
        number = _number(value)
        if not 0 <= number < math.inf:
            raise SettingError(f"damping gave {value!r} at step {step}; it must be a finite number of at least 0.")
        return number

    def gradient(self) -> Tensor | None:
        """The gradients of the trained parameters as one (units × parents) matrix; None if there are none."""
        self._require_parameters()
        weight, bias = self._trained()
        grads = [p.grad for p in (weight, bias) if p is not None]
        if all(g is None for g in grads):
            if grads and self.fisher is None and not self.recorder.passes:
                how = "run only in eval() or without gradients" if self.recorder.ran else "never run"
                raise MissingStatisticsError(
                    f"layer {self.name} has {how} since this optimizer was built, and has no gradient; use it in "
                    f"the loss, freeze its parameters, or leave them out of the optimizer."
                )
            return None
        dtype = self._dtype()
        parts = [None if p is None else (torch.zeros_like(p) if p.grad is None else p.grad) for p in (weight, bias)]
        weight_part, bias_part = (None if g is None else g.to(dtype) for g in parts)
        if weight_part is not None:
            weight_part = self.declaration.map.unit_major(self.declaration.module, weight_part)
        return to_matrix(weight_part, bias_part)

    def _require_parameters(self) -> None:
        """Raise if the module no longer has the parameters that the optimizer holds."""
        for name, held, own in zip(
            ("weight", "bias"), (self._weight, self._bias), self.declaration.parameters, strict=True
        ):
            if held is not None and own is not held:
                require_own_parameters(self.declaration)
                raise DeclarationError(
                    f"layer {self.name}: its {name} was replaced since this optimizer was built, which would go on "
                    f"training the old one; build the optimizer anew, or copy values into the old {name}."
                )

    def split(self, matrix: Tensor) -> dict[Tensor, Tensor]:
        """The matrix as vectors of the trained parameters."""
        weight, bias = self._trained()
        trained = [p for p in (weight, bias) if p is not None]
        shape = None if weight is None else self.declaration.map.unit_major(self.declaration.module, weight)
        views = from_matrix(matrix, shape, bias)
        if weight is not None:
            views[0] = self.declaration.map.weight_major(self.declaration.module, views[0])
        return dict(zip(trained, views, strict=True))

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
        found = statistics_of(self.declaration, passes)
        if process_group is not None:
            found = [share_rows(Rows.joined([part for part in found if isinstance(part, Rows)]), process_group)]
        if not any(part.sample_weights.shape[0] for part in found):
            raise MissingStatisticsError("its forward passes since the last step held no sample; give it a batch.")
        if self.group["window"] > 1:
            self._latest = normalised(found)
            found = [*self._latest, *self.window.statistics()]
        weight, bias = self._trained()
        return list(joined(found, self._sizes).segments(self._sizes, weight=weight is not None, bias=bias is not None))

    def refresh(
        self, gradient: Tensor, step: int, process_group: dist.ProcessGroup | None
    ) -> tuple[LayerFisher, Tensor]:
        """A fresh inverse Fisher from what was captured, and the natural gradient it gives; nothing is kept yet."""
        try:
            segments = self._segments(step, process_group)
            if [sum(s.units for s in segments), segments[0].parents_count] != list(gradient.shape):
                raise ShapeError("its gradient does not fit its captured parents; were its parameters replaced?")
            return LayerFisher.begin(
                segments,
                gradient,
                damping=self._damping(step),
                solver=self.group["solver"],
                tolerance=self.group["tolerance"],
                update_every=int(min(self._update_every(step), 10**6)),
            )
        except DagFisherError as error:
            raise type(error)(f"layer {self.name}: {error}") from None

    def reuse(self, gradient: Tensor) -> tuple[Tensor, float]:
        """The natural gradient by the Fisher of the last refresh, and the damping in it."""
        assert self.fisher is not None
        return self.fisher.natural(gradient), self.fisher.damping

    def blocks(self, step: int, process_group: dist.ProcessGroup | None) -> Tensor:
        """The damped blocks of the coming step."""
        if self.fisher is not None and not (self.due(step) and self.recorder.passes):
            return self.fisher.blocks()
        try:
            segments = self._segments(step, process_group)
        except DagFisherError as error:
            raise type(error)(f"layer {self.name}: {error}") from None
        return damped_blocks(segments, self._damping(step))

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
            "sizes": list(self.fisher.sizes),
            "solvers": [{"solver": s.name, **s.state()} for s in self.fisher.solvers],
            "window": self.window.state(),
        }

    def restored(self, state: dict[str, Any], step: int) -> Restored | None:
        """What `state` described, on this layer's device; `step` is the number of steps taken."""
        try:
            if state["solvers"] is None:
                return None
            layout, sizes = list(state["layout"]), tuple(state["sizes"])
            device = self.parameters[0].device
            solvers = []
            for saved in state["solvers"]:
                fields = dict(saved)
                solvers.append(SOLVERS[fields.pop("solver")](**fields).to(device))
            refreshed, damping = int(state["refreshed"]), float(state["damping"])
            fisher, window = LayerFisher(damping, sizes, solvers), Window()
            window.restore(state["window"], device)
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
        return fisher, refreshed, layout, window

    def _damaged(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"layer {self.name}: its saved state is damaged ({error!r}).")

    def restore(self, restored: Restored | None) -> None:
        """Continue from what a checkpoint held."""
        state = restored if restored is not None else (None, None, None, Window())
        self.fisher, self.refreshed, self._layout, self.window = state

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
