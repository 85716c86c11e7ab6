"""A refresh, in stages over all layers, so that an accelerator is read a few times for all and not for each layer.

1. `gather`: the statistics of every layer, from what its forward passes left. Nothing is read. Processes that train
   together join their statistics here.
2. `cut`: statistics that no Fisher can be made of are refused, and the others become problems for solvers. Read once,
   and once more if rows seem to be equal.
3. `damp`: the damping of every layer. Read once, if it is found and not given.
4. `solve`: solvers are prepared and applied. Read once, and more often only if blocks cannot be inverted as they are or
   conjugate gradients converge slowly.

The layers of a stage are independent of each other, and the units of a layer in the last one are, too. An error names
its layer; whatever it is, no layer has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .._reading import Asking, answered, joint
from ..capture.agreement import another_map
from ..errors import DagFisherError, MissingStatisticsError, SettingError, ShapeError, SingularBlockError
from ..fisher import Grams, LayerFisher, Rows, damped_blocks, joined, normalised, statistics_of
from ..fisher.rows import Disagreement
from ..fisher.segments import Segment
from ..parameter import ParameterDeclaration
from .damping import LARGEST, adapted, first_damping, predictions
from .distributed import share_rows
from .layer import MOST_KEPT, Refreshed, TrainedLayer, number_of
from .settings import AUTO, USUAL, chosen

RETRIES = (1.0, 10.0, 100.0)
"""A damping that is found by itself is tried with these factors where blocks cannot be inverted."""

Result = TypeVar("Result")


class Gathered(NamedTuple):
    """What the Fisher of one layer is made of."""

    whole: Rows | Grams
    """All of it, past refreshes of a window included."""
    latest: list[Rows | Grams]
    """Of this refresh alone, sample weights that sum to 1, if there is a window; otherwise empty."""
    mismatch: Tensor | None
    """How far outputs are from the declared map, over what rounding allows; None if that was not looked at."""


class Cut(NamedTuple):
    """The statistics of one layer as problems for solvers."""

    segments: list[Segment]
    fresh: list[Segment]
    """Of this refresh alone; without a window they are the segments."""


class Damped(NamedTuple):
    """α of a layer, and the curvature that fresh samples found over what was predicted; None if nothing was."""

    damping: float
    ratio: float | None


def refresh(
    layers: Sequence[TrainedLayer],
    gradients: Sequence[Tensor],
    step: int,
    process_group: dist.ProcessGroup | None,
) -> list[Refreshed]:
    """Fresh inverse Fishers of layers from what was captured, and what they make of gradients; nothing is kept yet.

    Args:
        layers: that are due.
        gradients: of the layers, (units × d) each.
        step: of the optimizer.
        process_group: of the processes whose statistics are joined.
    """
    gathered = gather(layers, step, process_group)
    problems = cut(layers, gathered)
    dampings = damp(layers, problems, gradients, step)
    found = solve(layers, problems, dampings, gradients, step)
    return [each._replace(latest=tuple(own.latest)) for each, own in zip(found, gathered, strict=True)]


def gather(layers: Sequence[TrainedLayer], step: int, process_group: dist.ProcessGroup | None) -> list[Gathered]:
    """The statistics of every layer."""
    found = []
    for layer in layers:
        try:
            found.append(_gather(layer, step, process_group))
        except DagFisherError as error:
            raise layer.named(error) from None
    return found


def cut(layers: Sequence[TrainedLayer], gathered: Sequence[Gathered]) -> list[Cut]:
    """The problems of every layer, made of sound statistics."""
    sound = [_named(layer, _require_sound(layer, own)) for layer, own in zip(layers, gathered, strict=True)]
    problems = [_named(layer, _cut(layer, own)) for layer, own in zip(layers, gathered, strict=True)]
    tasks: list[Asking[Any]] = [*sound, *problems]
    return answered(joint(tasks))[len(layers) :]


def damp(
    layers: Sequence[TrainedLayer], problems: Sequence[Cut], gradients: Sequence[Tensor | None], step: int
) -> list[Damped]:
    """The damping of every layer: as it is set, or as the samples of this refresh say."""
    each = zip(layers, problems, gradients, strict=True)
    return answered(joint([_named(layer, _damp(layer, own, gradient, step)) for layer, own, gradient in each]))


def solve(
    layers: Sequence[TrainedLayer],
    problems: Sequence[Cut],
    dampings: Sequence[Damped],
    gradients: Sequence[Tensor],
    step: int,
) -> list[Refreshed]:
    """The inverse Fisher of every layer, and what it makes of the layer's gradient."""
    each = zip(layers, problems, dampings, gradients, strict=True)
    return answered(joint([_named(layer, _solve(layer, own, damped, g, step)) for layer, own, damped, g in each]))


def blocks(layer: TrainedLayer, step: int, process_group: dist.ProcessGroup | None) -> Tensor:
    """The damped blocks of a layer at the coming step, (units × d × d)."""
    known = layer.recorder.any() or isinstance(layer.declaration, ParameterDeclaration)
    if layer.fisher is not None and not (layer.due(step) and known):
        return layer.fisher.blocks()
    if not known:
        raise MissingStatisticsError(
            f"layer {layer.name} has no blocks yet: no forward pass of it was captured. Run the model in training "
            f"mode, with gradients enabled, after the optimizer was built, and then ask for its blocks."
        )
    problems = cut([layer], gather([layer], step, process_group))
    ((damping, _),) = damp([layer], problems, [layer.gradient()], step)
    return damped_blocks(problems[0].segments, damping)


# One layer


def _named(layer: TrainedLayer, task: Asking[Result]) -> Asking[Result]:
    """The task, whose errors begin with the layer's name."""
    try:
        return (yield from task)
    except DagFisherError as error:
        raise layer.named(error) from None


def _gather(layer: TrainedLayer, step: int, process_group: dist.ProcessGroup | None) -> Gathered:
    recorder, declaration = layer.recorder, layer.declaration
    passes = recorder.take()
    if declaration.recorder is not recorder:
        raise MissingStatisticsError("a newer optimizer listens to this layer; use that one, or build this anew.")
    if not passes and recorder.recomputed:
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
    found = statistics_of(declaration, passes, step)
    if process_group is not None:
        found = [share_rows(Rows.joined([part for part in found if isinstance(part, Rows)]), process_group)]
    if not any(part.sample_weights.shape[0] for part in found):
        raise MissingStatisticsError("its forward passes since the last step held no sample; give it a batch.")
    latest: list[Rows | Grams] = []
    if layer.group["window"] > 1:
        latest = normalised(found)
        found = [*latest, *layer.window.statistics()]
    off = [each.mismatch for each in passes if each.mismatch is not None]
    return Gathered(joined(found, declaration.sizes), latest, torch.stack(off).amax() if off else None)


def _require_sound(layer: TrainedLayer, gathered: Gathered) -> Asking[None]:
    try:
        yield from gathered.whole.require_sound(gathered.mismatch)
    except Disagreement:
        raise another_map(layer.declaration) from None


def _cut(layer: TrainedLayer, gathered: Gathered) -> Asking[Cut]:
    sizes, columns = layer.declaration.sizes, layer.columns()
    tasks = [gathered.whole.segments(sizes, columns)]
    if gathered.latest:  # past refreshes are part of the whole; only the fresh samples have not been seen
        tasks.append(joined(gathered.latest, sizes).segments(sizes, columns))
    found = [list(segments) for segments in (yield from joint(tasks))]
    return Cut(found[0], found[-1])


def _damp(layer: TrainedLayer, problems: Cut, gradient: Tensor | None, step: int) -> Asking[Damped]:
    segments = problems.segments
    if gradient is not None and [sum(s.units for s in segments), segments[0].parents_count] != list(gradient.shape):
        raise ShapeError("its gradient does not fit its captured parents; were its parameters replaced?")
    alpha = layer.group["damping"]
    if alpha == AUTO:
        fisher = layer.fitting()
        if fisher is None:
            return Damped((yield from first_damping(segments)), None)
        if gradient is None:
            return Damped(fisher.damping, None)
        found, predicted = yield torch.stack(predictions(fisher, problems.fresh, gradient))
        return Damped(adapted(fisher.damping, found, predicted), found / predicted if predicted > 0 else None)
    value = alpha(step) if callable(alpha) else alpha
    number = number_of(value)
    if not 0 <= number < math.inf:
        raise SettingError(f"damping gave {value!r} at step {step}; it must be a finite number of at least 0.")
    return Damped(number, None)


def _solve(layer: TrainedLayer, problems: Cut, damped: Damped, gradient: Tensor, step: int) -> Asking[Refreshed]:
    group, failure = layer.group, None
    automatic = chosen(group, "update_every") == AUTO
    uses = min(USUAL, 2 * layer.pace.interval) if automatic else layer.update_every(step)
    for factor in RETRIES if group["damping"] == AUTO else (1.0,):
        try:
            fisher, solved = yield from LayerFisher.preparing(
                problems.segments,
                gradient,
                damping=max(damped.damping, min(factor * damped.damping, LARGEST)),
                solver=group["solver"],
                tolerance=chosen(group, "tolerance"),
                update_every=int(min(uses, 10**6)),
            )
            return Refreshed(fisher, solved, None, damped.ratio)
        except SingularBlockError as error:
            failure = error
    before = layer.fitting()
    if before is None or layer.failures >= MOST_KEPT:
        assert failure is not None
        raise failure
    return Refreshed(before, before.solve(gradient), str(failure))
