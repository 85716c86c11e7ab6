"""A refresh, in stages over all layers, so that an accelerator is read a few times for all and not for each layer.

1. `gather`: the statistics of every layer, from what its forward passes left. Nothing is read. Processes that train
   together then join theirs (`distributed`), and past refreshes of a window are added.
2. `cut`: statistics that no Fisher can be made of are refused, and the others become problems for solvers. Read once,
   and once more if rows seem to be equal.
3. `damp`: the damping of every layer. Read once, if it is found and not given.
4. `solve`: solvers are prepared and applied. Read once, and more often only if blocks cannot be inverted as they are or
   conjugate gradients converge slowly.

The layers of a stage are independent of each other, and the units of a layer in the last one are, too. So processes
that train together share the units in the last two stages (`spread`), and all of them end with the same numbers. An
error names its layer; whatever it is, no layer has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._processes import Processes
from .._reading import Asking, answered, joint
from ..capture.agreement import another_map
from ..capture.records import Pass
from ..errors import DagFisherError, MissingStatisticsError, SettingError, ShapeError, SingularBlockError
from ..fisher import Grams, LayerFisher, Rows, damped_blocks, joined, normalised, statistics_of
from ..fisher.rows import Disagreement
from ..fisher.segments import Segment
from ..parameter import ParameterDeclaration
from .damping import LARGEST, Compared, adapted, first_damping, floor_of, noise_of, predictions
from .distributed import Collected, consult, joined_by, mean_samples, settings_at
from .layer import MOST_KEPT, Refreshed, TrainedLayer, number_of
from .settings import AUTO, USUAL, chosen
from .spread import Wanted, prepare

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
    seen: int
    """Outputs of each unit in all samples of this refresh."""


class Cut(NamedTuple):
    """The statistics of one layer as problems for solvers."""

    segments: list[Segment]
    fresh: list[Segment]
    """Of this refresh alone; without a window they are the segments."""
    seen: int
    """Outputs of each unit in all samples of this refresh."""


class Damped(NamedTuple):
    """α of a layer, and the curvature that fresh samples found over what was predicted; None if nothing was."""

    damping: float
    ratio: float | None


def gather(
    layers: Sequence[TrainedLayer], groups: list[dict[str, Any]], step: int, processes: Processes
) -> tuple[dict[TrainedLayer, Tensor], dict[TrainedLayer, Collected]]:
    """The gradients of the layers that have one, (units × d), and the statistics of those among them that are due.

    Of processes that train together all get the statistics of all; an error of one is an error in all. Only where
    nothing is due, so that nothing is sent, the process raises its error alone.

    Args:
        layers: of the optimizer.
        groups: its param groups.
        step: of the optimizer.
        processes: that train together.
    """
    samples = mean_samples(layers, processes)
    due = [layer for layer in layers if layer.due(step)]
    gradients: dict[TrainedLayer, Tensor] = {}
    collected: dict[TrainedLayer, Collected] = {}
    settings: list[list[str]] = []
    error: Exception | None = None
    try:
        gradients = {layer: g for layer in layers if (g := layer.gradient(samples.get(layer))) is not None}
        collected = {layer: _collect(layer, step, processes) for layer in due if layer in gradients}
        settings = settings_at(groups, step) if processes.size > 1 and due else []
    except Exception as raised:  # raised again, in all processes
        if processes.size == 1 or not due:
            raise
        error = raised
    if processes.size == 1 or not due:
        return gradients, collected
    told = consult(processes, layers, gradients, collected, due, settings, step, error)
    for layer, each in told.items():
        if not any(own.rows or own.grams for own in each):
            raise layer.named(MissingStatisticsError(_NOT_CAPTURED))
    found = {layer: (collected[layer], each) for layer, each in told.items()}
    return gradients, joined_by(processes, found, {layer: _uses(layer, step) for layer in found})


def refresh(
    collected: Mapping[TrainedLayer, Collected], given: Mapping[TrainedLayer, Tensor], step: int, processes: Processes
) -> list[Refreshed]:
    """Fresh inverse Fishers of layers from what was captured, and what they make of gradients; nothing is kept yet.

    Args:
        collected: the statistics of the layers that are due, of all processes that train together.
        given: the gradients of the layers, (units × d) each.
        step: of the optimizer.
        processes: that train together.
    """
    layers, gradients = list(collected), [given[layer] for layer in collected]
    gathered = [_gathered(layer, own) for layer, own in collected.items()]
    problems = cut(layers, gathered)
    dampings = damp(layers, problems, gradients, step, processes)
    found = solve(layers, problems, dampings, gradients, step, processes)
    return [each._replace(latest=tuple(own.latest)) for each, own in zip(found, gathered, strict=True)]


def cut(layers: Sequence[TrainedLayer], gathered: Sequence[Gathered]) -> list[Cut]:
    """The problems of every layer, made of sound statistics."""
    sound = [_named(layer, _require_sound(layer, own)) for layer, own in zip(layers, gathered, strict=True)]
    problems = [_named(layer, _cut(layer, own)) for layer, own in zip(layers, gathered, strict=True)]
    tasks: list[Asking[Any]] = [*sound, *problems]
    return answered(joint(tasks))[len(layers) :]


def damp(
    layers: Sequence[TrainedLayer],
    problems: Sequence[Cut],
    gradients: Sequence[Tensor | None],
    step: int,
    processes: Processes,
) -> list[Damped]:
    """The damping of every layer: as it is set, or as the samples of this refresh say."""
    compared = {}
    for layer, own, gradient in zip(layers, problems, gradients, strict=True):
        _require_shape(layer, own, gradient)
        before = layer.fitting()
        if layer.group["damping"] == AUTO and before is not None and gradient is not None:
            compared[layer] = Compared(before, own.fresh, gradient)
    predicted = dict(zip(compared, predictions(list(compared.values()), processes), strict=True))
    each = zip(layers, problems, strict=True)
    return answered(joint([_named(layer, _damp(layer, own, predicted.get(layer), step)) for layer, own in each]))


def solve(
    layers: Sequence[TrainedLayer],
    problems: Sequence[Cut],
    dampings: Sequence[Damped],
    gradients: Sequence[Tensor],
    step: int,
    processes: Processes,
) -> list[Refreshed]:
    """The inverse Fisher of every layer, and what it makes of the layer's gradient."""
    if processes.size > 1:
        return _shared(layers, problems, dampings, gradients, step, processes)
    each = zip(layers, problems, dampings, gradients, strict=True)
    return answered(joint([_named(layer, _solve(layer, own, damped, g, step)) for layer, own, damped, g in each]))


def blocks(layer: TrainedLayer, step: int) -> Tensor:
    """The damped blocks of a layer at the coming step, (units × d × d); those of this process's samples."""
    known = layer.recorder.any() or isinstance(layer.declaration, ParameterDeclaration)
    if layer.fisher is not None and not (layer.due(step) and known):
        return layer.fisher.blocks()
    if not known:
        raise MissingStatisticsError(
            f"layer {layer.name} has no blocks yet: no forward pass of it was captured. Run the model in training "
            f"mode, with gradients enabled, after the optimizer was built, and then ask for its blocks."
        )
    alone = Processes(False)
    problems = cut([layer], [_gathered(layer, _collect(layer, step, alone))])
    ((damping, _),) = damp([layer], problems, [layer.gradient()], step, alone)
    return damped_blocks(problems[0].segments, damping)


# One layer


def _named(layer: TrainedLayer, task: Asking[Result]) -> Asking[Result]:
    """The task, whose errors begin with the layer's name."""
    try:
        return (yield from task)
    except DagFisherError as error:
        raise layer.named(error) from None


_NOT_CAPTURED = (
    "it has a gradient, but none of its forward passes was captured since the last step or zero_grad(). "
    "Call the module itself (not a function on its weight), in training mode, with gradients enabled and "
    "outside no_capture(), after the optimizer was built."
)


def _collect(layer: TrainedLayer, step: int, processes: Processes) -> Collected:
    """The statistics of a layer in this process."""
    try:
        return _collected(layer, step, processes)
    except DagFisherError as error:
        raise layer.named(error) from None


def _collected(layer: TrainedLayer, step: int, processes: Processes) -> Collected:
    recorder, declaration = layer.recorder, layer.declaration
    passes = recorder.take()
    if declaration.recorder is not recorder:
        raise MissingStatisticsError("a newer optimizer listens to this layer; use that one, or build this anew.")
    if not passes and recorder.recomputed:
        raise MissingStatisticsError(
            "its forward pass ran without gradients, and again during backward(), where its sample weights are "
            "not known; for activation checkpointing, call checkpoint(..., use_reentrant=False)."
        )
    if not passes and processes.size == 1:
        raise MissingStatisticsError(_NOT_CAPTURED)
    found = statistics_of(declaration, passes, step, processes.size)
    if processes.size == 1 and not any(part.sample_weights.shape[0] for part in found):
        raise MissingStatisticsError("its forward passes since the last step held no sample; give it a batch.")
    off = [each.mismatch for each in passes if each.mismatch is not None]
    outputs = max((_outputs(each, declaration.units) for each in passes), default=0)
    seen = sum(each.shape.numel() for each in passes) // max(declaration.units, 1)
    return Collected(found, torch.stack(off).amax() if off else None, outputs, seen)


def _outputs(captured: Pass, units: int) -> int:
    """The outputs of each unit in one sample: the positions of a convolution, otherwise 1."""
    return max(math.prod(captured.shape[len(captured.samples) :]) // max(units, 1), 1)


def _gathered(layer: TrainedLayer, collected: Collected) -> Gathered:
    found, latest = collected.parts, []
    layer.outputs = collected.outputs
    if layer.group["window"] > 1:
        latest = normalised(found)
        found = [*latest, *layer.window.statistics()]
    return Gathered(joined(found, layer.declaration.sizes), latest, collected.mismatch, collected.seen)


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
    return Cut(found[0], found[-1], gathered.seen)


def _require_shape(layer: TrainedLayer, problems: Cut, gradient: Tensor | None) -> None:
    segments = problems.segments
    if gradient is not None and [sum(s.units for s in segments), segments[0].parents_count] != list(gradient.shape):
        raise layer.named(ShapeError("its gradient does not fit its captured parents; were its parameters replaced?"))


def _damp(layer: TrainedLayer, problems: Cut, predicted: Tensor | None, step: int) -> Asking[Damped]:
    alpha = layer.group["damping"]
    if alpha == AUTO:
        fisher = layer.fitting()
        if fisher is None:
            return Damped((yield from first_damping(problems.segments)), None)
        if predicted is None:
            return Damped(fisher.damping, None)
        found, expected, trace = yield predicted
        units, parents, seen = sum(fisher.sizes), problems.fresh[0].parents_count, problems.seen
        noise = noise_of(units, parents, seen, trace, fisher.damping)
        floor = floor_of(parents, seen, expected, noise, stochastic=not layer.recorder.follows)
        return Damped(adapted(fisher.damping, found, expected, floor), found / expected if expected > 0 else None)
    value = alpha(step) if callable(alpha) else alpha
    number = number_of(value)
    if not 0 <= number < math.inf:
        raise SettingError(f"damping gave {value!r} at step {step}; it must be a finite number of at least 0.")
    return Damped(number, None)


def _uses(layer: TrainedLayer, step: int) -> int:
    """For how many steps the Fisher of this refresh will be used, as far as is known."""
    automatic = chosen(layer.group, "update_every") == AUTO
    uses = min(USUAL, 2 * layer.pace.interval) if automatic else layer.update_every(step)
    return int(min(uses, 10**6))


def _attempts(layer: TrainedLayer, damped: Damped) -> list[float]:
    """The dampings that are tried, one after another, until the blocks can be inverted."""
    factors = RETRIES if layer.group["damping"] == AUTO else (1.0,)
    return [max(damped.damping, min(factor * damped.damping, LARGEST)) for factor in factors]


def _wanted(layer: TrainedLayer, problems: Cut, damping: float, gradient: Tensor, step: int) -> Wanted:
    group = layer.group
    uses, tolerance = _uses(layer, step), float(chosen(group, "tolerance"))
    return Wanted(problems.segments, gradient, damping, group["solver"], tolerance, uses)


def _solve(layer: TrainedLayer, problems: Cut, damped: Damped, gradient: Tensor, step: int) -> Asking[Refreshed]:
    failure = None
    for damping in _attempts(layer, damped):
        try:
            wanted = _wanted(layer, problems, damping, gradient, step)
            fisher, solved = yield from LayerFisher.preparing(**wanted._asdict())
            return Refreshed(fisher, solved, None, damped.ratio)
        except SingularBlockError as error:
            failure = error
    assert failure is not None
    return _kept(layer, gradient, failure)


def _kept(layer: TrainedLayer, gradient: Tensor, failure: SingularBlockError) -> Refreshed:
    """The Fisher before, if it may be kept once more."""
    before = layer.fitting()
    if before is None or layer.failures >= MOST_KEPT:
        raise failure
    return Refreshed(before, before.solve(gradient), str(failure))


def _shared(
    layers: Sequence[TrainedLayer],
    problems: Sequence[Cut],
    dampings: Sequence[Damped],
    gradients: Sequence[Tensor],
    step: int,
    processes: Processes,
) -> list[Refreshed]:
    """As `_solve`, for all layers, by processes that share the units; a layer that fails is tried again by all."""
    found: dict[int, Refreshed] = {}
    failures: dict[int, SingularBlockError] = {}
    for attempt in range(len(RETRIES)):
        tried: list[int] = []
        wanted = []
        for i, (layer, own, damped, gradient) in enumerate(zip(layers, problems, dampings, gradients, strict=True)):
            values = _attempts(layer, damped)
            if i not in found and attempt < len(values):
                tried.append(i)
                wanted.append(_wanted(layer, own, values[attempt], gradient, step))
        if not tried:
            break
        try:
            made = prepare(wanted, processes)
        except DagFisherError as error:
            raise layers[tried[0]].named(error) if len(layers) == 1 else error from None
        for i, each in zip(tried, made, strict=True):
            if isinstance(each, SingularBlockError):
                failures[i] = each
            else:
                found[i] = Refreshed(*each, None, dampings[i].ratio)
    result = []
    for i, (layer, gradient) in enumerate(zip(layers, gradients, strict=True)):
        try:
            result.append(found[i] if i in found else _kept(layer, gradient, failures[i]))
        except DagFisherError as error:
            raise layer.named(error) from None
    return result
