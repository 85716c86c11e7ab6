"""Statistics of several processes become the statistics of all of them, if these train the same model alike."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._processes import Processes
from .._reading import read
from ..capture import compute_dtype
from ..declaration import Declaration
from ..errors import ProcessError
from ..fisher import Grams, Rows, choose, joined
from ..fisher.statistics import WORTH_MERGING
from ..solvers import SOLVERS, BlockShape
from .layer import TrainedLayer
from .matrix import LayerMatrix
from .settings import NAMES, plain


def require_alike(
    processes: Processes, groups: list[dict[str, Any]], names: dict[int, str], layers: Sequence[LayerMatrix]
) -> None:
    """Raise on every process unless all have the same torch, parameters, declared layers and settings.

    All processes must call it.
    """
    if processes.group is None:
        return
    found: list[dict[str, str]] = processes.gather_objects(described(groups, names, layers))
    for rank, each in enumerate(found[1:], 1):
        for what in {**found[0], **each}:
            here, there = found[0].get(what), each.get(what)
            if here != there:
                raise ProcessError(
                    f"the processes of the group differ: {what} is {here or 'missing'} in process 0 and "
                    f"{there or 'missing'} in process {rank}. Build the same model and the same optimizer in all of "
                    f"them, or give process_group=False to train each process alone."
                )


def described(groups: list[dict[str, Any]], names: dict[int, str], layers: Sequence[LayerMatrix]) -> dict[str, str]:
    """What must be the same in all processes, by what it is."""
    found = {"the version of torch": str(torch.__version__)}
    index = 0
    for number, group in enumerate(groups):
        for p in group["params"]:
            found[f"parameter {names.get(id(p), index)}"] = f"{tuple(p.shape)} {p.dtype} on {p.device.type}"
            index += 1
        for name in NAMES:
            found[f"{name} of param group {number}"] = _shown(group[name])
    for layer in layers:
        declaration = layer.declaration
        mask = "" if declaration.mask is None else f", a mask of {int(declaration.mask.sum())} entries"
        found[f"layer {layer.name}"] = (
            f"{declaration.family} units, {type(declaration.map).__name__} of {type(declaration.module).__name__}{mask}"
        )
    return found


def _shown(value: Any) -> str:
    """A setting as text that does not depend on the process."""
    if callable(value):
        return f"the callable {getattr(value, '__qualname__', type(value).__name__)}"
    return repr(plain(value))


class Told(NamedTuple):
    """What one process says of its statistics of one layer before it sends them."""

    grams: bool = False
    """Whether it has Gram matrices only."""
    rows: int = 0
    total: float = 0.0
    """The sum of the sample weights."""
    least: float = math.inf
    """The smallest sample weight."""
    mismatch: float = 0.0
    """How far outputs are from the declared map, over what rounding allows."""
    positions: bool = False
    groups: int = 0
    """Of parents, for a grouped convolution; 0: rows have one axis."""
    parents: int = 0
    outputs: int = 0
    """Of each unit in one sample."""
    seen: int = 0
    """Outputs of each unit in all samples."""
    shared: tuple[float, ...] = ()
    """For each group of units, whether all its units share one block."""


class Collected(NamedTuple):
    """The statistics of one layer in this process."""

    parts: list[Rows | Grams]
    """Of each captured pass; empty: the layer was not used here."""
    mismatch: Tensor | None = None
    """How far outputs are from the declared map, over what rounding allows; None if that was not looked at."""
    outputs: int = 0
    """Of each unit in one sample."""
    seen: int = 0
    """Outputs of each unit in all samples."""

    def whole(self, declaration: Declaration) -> Rows | Grams | None:
        """Of all passes."""
        return joined(self.parts, declaration.sizes) if self.parts else None

    def tell(self, declaration: Declaration) -> list[float | Tensor]:
        """The numbers of a `Told`."""
        found, groups = self.whole(declaration), len(declaration.sizes)
        if found is None:
            return [*map(float, Told()[:-1]), *[0.0] * groups]
        off = 0.0 if self.mismatch is None else self.mismatch
        counts = [float(self.outputs), float(self.seen)]
        least = found.sample_weights.amin() if len(found.sample_weights) else math.inf
        if isinstance(found, Rows):
            shape, shared = found.parents.shape, [float(q.shape[1] == 1) for q in found.fisher_weights]
            size = [float(shape[1]) if len(shape) == 3 else 0.0, float(shape[-1]), *counts]
            return [0.0, float(shape[0]), found.total, least, off, float(found.positions), *size, *shared]
        runs = found.blocks
        own = [0.0 if len(runs) == groups else float(len(runs) // groups), float(runs[0].parents_count - 1)]
        own += counts
        shared = [float(len(runs[i * len(runs) // groups].blocks) == 1) for i in range(groups)]
        return [1.0, 0.0, found.total, least, off, 1.0, *own, *shared]


def mean_samples(layers: Sequence[TrainedLayer], processes: Processes) -> dict[TrainedLayer, Tensor]:
    """How many samples, in the mean over the processes, the loss of each layer is a sum over, where it is one.

    The gradients are means over the processes. No accelerator makes the host wait.
    """
    summed = [layer for layer in layers if layer.group["loss_reduction"] == "sum"]
    if processes.size == 1 or not summed:
        return {}
    device = summed[0].parameters[0].device
    counts = [torch.full((), layer.recorder.samples, dtype=torch.float64, device=device) for layer in summed]
    processes.sum_(counts)
    return {
        layer: (count / processes.size).to(layer.parameters[0].device)
        for layer, count in zip(summed, counts, strict=True)
    }


def settings_at(groups: list[dict[str, Any]], step: int) -> list[list[str]]:
    """The settings of the param groups as text, with what schedules give at this step."""
    return [[_shown(value(step) if callable(value := group[name]) else value) for name in NAMES] for group in groups]


FILLED = 256
"""Numbers of the message of a refresh are filled up to a multiple of this, so that all can read it if layers differ."""


def consult(
    processes: Processes,
    layers: Sequence[TrainedLayer],
    gradients: Mapping[TrainedLayer, Tensor],
    collected: Mapping[TrainedLayer, Collected],
    due: Sequence[TrainedLayer],
    settings: list[list[str]],
    step: int,
    error: Exception | None,
) -> dict[TrainedLayer, list[Told]]:
    """What each process says of its statistics of the layers that all of them refresh; one message.

    An error of one process is raised in all of them, and so is what differs between them and must not.

    Args:
        processes: that train together; all of them must call this.
        layers: of the optimizer.
        gradients: of the layers that have one.
        collected: the statistics of the layers that are due and have a gradient.
        due: the layers that are due, with or without a gradient.
        settings: of the param groups, which are compared.
        step: of the optimizer.
        error: of this process.
    """
    device = layers[0].parameters[0].device
    known = [(layer.name, layer.declaration.sizes) for layer in layers]
    numbers: list[float | Tensor] = [float(error is not None), float(step), _checksum(known), _checksum(settings)]
    starts = []
    for layer in layers:
        starts.append(len(numbers))
        numbers.append(float(layer in due))
        own = None if error is not None else gradients.get(layer)
        numbers += [0.0, 0.0, 0.0] if own is None else [1.0, own.sum(), own.norm()]
        held = [p.detach().to(compute_dtype(p)) for p in layer.parameters]
        numbers += [torch.stack([p.sum() for p in held]).sum(), torch.stack([p.norm() for p in held]).norm()]
        statistics = None if error is not None else collected.get(layer)
        numbers += (statistics or Collected([])).tell(layer.declaration)
    ends = [*starts[1:], len(numbers)]
    numbers += [0.0] * (-len(numbers) % FILLED)
    told = processes.gather_numbers(_read_together(numbers, device), device)
    if any(each[0] for each in told):
        processes.agree(error)
    _require_same_place(told)
    found = {}
    for layer, start, end in zip(layers, starts, ends, strict=True):
        _require_same_layer(layer, [each[start : start + COMPARED] for each in told])
        if layer in due and layer in gradients:
            found[layer] = [_told(each[start + COMPARED : end]) for each in told]
    return found


COMPARED = 6
"""Numbers of each layer that must be the same in all processes: whether it is due, its gradient and its parameters."""


def _checksum(value: Any) -> float:
    return float(zlib.crc32(repr(value).encode()))


def _read_together(numbers: Sequence[float | Tensor], device: torch.device) -> list[float]:
    """All numbers on the host; those on the device are read at once."""
    waiting = [n.detach().to(device, torch.float64).reshape(()) for n in numbers if isinstance(n, Tensor)]
    answers = iter(read(torch.stack(waiting)) if waiting else [])
    return [next(answers) if isinstance(n, Tensor) else n for n in numbers]


def _told(numbers: list[float]) -> Told:
    grams, rows, total, least, mismatch, positions, groups, parents, outputs, seen, *shared = numbers
    counts = int(groups), int(parents), int(outputs), int(seen)
    return Told(bool(grams), int(rows), total, least, mismatch, bool(positions), *counts, (*shared,))


def _require_same_place(told: list[list[float]]) -> None:
    for rank, (_, step, layers, settings, *_) in enumerate(told):
        if step != told[0][1]:
            raise ProcessError(
                f"process {rank} has taken {step:.0f} steps and process 0 {told[0][1]:.0f}; load the same checkpoint "
                f"in all processes, and let all of them take every step. No parameter has moved."
            )
        if layers != told[0][2]:
            raise ProcessError(
                f"the declared layers in process {rank} are no longer those in process 0; declare the same layers in "
                f"all processes, before the optimizer is built. No parameter has moved."
            )
        if settings != told[0][3]:
            raise ProcessError(
                f"the settings of the param groups in process {rank} are no longer those in process 0, or their "
                f"schedules give other values; change them in all processes alike. No parameter has moved."
            )


def _require_same_layer(layer: TrainedLayer, told: list[list[float]]) -> None:
    """Raise unless all processes refresh a layer or none, have the same parameters, and the same gradient, or none."""
    first = told[0]
    for rank, each in enumerate(told):
        if each[0] != first[0]:
            raise ProcessError(
                f"layer {layer.name} is due for a refresh in one of process 0 and process {rank} only; freeze and "
                f"convert parameters in all processes alike. No parameter has moved."
            )
    having = [rank for rank, each in enumerate(told) if each[1]]
    if having and len(having) < len(told):
        lacking = [rank for rank in range(len(told)) if rank not in having]
        raise ProcessError(
            f"layer {layer.name} has a gradient in process {having[0]} and none in process {lacking[0]}; average the "
            f"gradients over all processes, as DistributedDataParallel(model, find_unused_parameters=True) does. No "
            f"parameter has moved."
        )
    for rank, numbers in enumerate(told):
        if _differ(numbers[2:4], first[2:4]):
            raise ProcessError(
                f"the gradients of layer {layer.name} differ between process 0 and process {rank}; average them over "
                f"all processes before the step, as DistributedDataParallel does. No parameter has moved."
            )
        if _differ(numbers[4:], first[4:]):
            raise ProcessError(
                f"the parameters of layer {layer.name} differ between process 0 and process {rank}; begin with the "
                f"same ones in all processes, as DistributedDataParallel does. No parameter has moved."
            )


def _differ(numbers: list[float], first: list[float]) -> bool:
    """Whether the sums and lengths of two tensors say that they are not the same to rounding."""
    (total, size), (first_total, length) = numbers, first
    return max(abs(total - first_total), abs(size - length)) > SAME * (abs(length) + abs(first_total))


SAME = 1e-4
"""Sums and lengths that differ by less, relative to their size, are of tensors that are the same to rounding."""


# Statistics


def joined_by(
    processes: Processes, found: Mapping[TrainedLayer, tuple[Collected, list[Told]]], uses: Mapping[TrainedLayer, int]
) -> dict[TrainedLayer, Collected]:
    """The statistics of all processes, on each of them: rows gathered, or Gram matrices summed, the fewer bytes.

    One message for each dtype and device of the rows, and one for the Gram matrices. Rows that a solver needs are
    gathered however many they are.

    Args:
        processes: that train together.
        found: of each layer what this process has, and what all said of theirs; there is a sample somewhere.
        uses: for how many steps the Fisher of each layer will be kept.
    """
    gathered: dict[TrainedLayer, list[Rows]] = {}
    summed: dict[TrainedLayer, Grams] = {}
    kinds: dict[tuple[torch.dtype, torch.device], list[TrainedLayer]] = {}
    for layer, (own, told) in found.items():
        whole = _agreed(told)
        statistics = own.whole(layer.declaration) or _nothing(layer, whole)
        if whole.grams or _prefers_grams(layer, whole, uses[layer]):
            sizes = layer.declaration.sizes
            summed[layer] = statistics.scaled(1.0) if isinstance(statistics, Grams) else statistics.to_grams(sizes)
        else:
            assert isinstance(statistics, Rows)
            gathered[layer] = [statistics]
            kinds.setdefault((statistics.parents.dtype, statistics.parents.device), []).append(layer)
    for members in kinds.values():
        own_parts = [t.reshape(-1) for layer in members for t in _tensors(gathered[layer][0])]
        widths = {layer: _width(gathered[layer][0]) for layer in members}
        counts = [
            sum(found[layer][1][rank].rows * widths[layer] for layer in members) for rank in range(processes.size)
        ]
        parts = processes.gather(torch.cat(own_parts), counts)
        for layer in members:
            like = gathered[layer][0]
            gathered[layer] = []
            for rank, said in enumerate(found[layer][1]):
                rows, parts[rank] = _cut_rows(like, said, parts[rank])
                gathered[layer].append(rows)
    processes.sum_([run.blocks for grams in summed.values() for run in grams.blocks])
    result: dict[TrainedLayer, Collected] = {}
    for layer, (_, told) in found.items():
        whole = _agreed(told)
        off = torch.tensor(whole.mismatch)
        if layer in summed:
            dtype = summed[layer].total
            least, total = dtype.new_tensor([whole.least]), dtype.new_tensor(whole.total)
            result[layer] = Collected([Grams(summed[layer].blocks, least, total)], off, whole.outputs, whole.seen)
        else:
            rows = Rows.joined(gathered[layer])
            total = rows.sample_weights.new_tensor(whole.total)
            rows = replace(rows, total=total, positions=whole.positions)
            result[layer] = Collected([rows], off, whole.outputs, whole.seen)
    return result


def _agreed(told: Sequence[Told]) -> Told:
    """What holds of the statistics of all processes together."""
    known = [each for each in told if each.rows or each.grams] or [told[0]]
    return Told(
        any(each.grams for each in told),
        sum(each.rows for each in told),
        sum(each.total for each in told),
        min(each.least for each in told),
        max(each.mismatch for each in told),
        any(each.positions for each in told),
        max(each.groups for each in known),
        max(each.parents for each in known),
        max(each.outputs for each in known),
        sum(each.seen for each in known),
        tuple(max(column) for column in zip(*(each.shared for each in known), strict=True)),
    )


def _nothing(layer: TrainedLayer, whole: Told) -> Rows:
    """The rows of a layer that was not used here, none, with the shapes that other processes have."""
    like = torch.empty(0, dtype=compute_dtype(layer.parameters[0]), device=layer.parameters[0].device)
    groups = [whole.groups] if whole.groups else []
    sizes = layer.declaration.sizes
    weights = tuple(like.new_empty(0, 1 if one else size) for one, size in zip(whole.shared, sizes, strict=True))
    return Rows(
        like.new_empty(0, *groups, whole.parents), weights, like, like.new_zeros(()), classes=layer.declaration.coupled
    )


def _tensors(rows: Rows) -> list[Tensor]:
    return [rows.parents, *rows.fisher_weights, rows.sample_weights]


def _width(rows: Rows) -> int:
    """Numbers of one row with all its weights."""
    return math.prod(rows.parents.shape[1:]) + sum(q.shape[1] for q in rows.fisher_weights) + 1


def _cut_rows(like: Rows, told: Told, flat: Tensor) -> tuple[Rows, Tensor]:
    """The rows of one process from the front of what it sent, and what is left."""
    found = []
    for tensor in _tensors(like):
        size = told.rows * math.prod(tensor.shape[1:])
        found.append(flat[:size].reshape(told.rows, *tensor.shape[1:]))
        flat = flat[size:]
    parents, *weights, sample = found
    return Rows(parents, tuple(weights), sample, like.total, told.positions, like.classes), flat


def _prefers_grams(layer: TrainedLayer, whole: Told, uses: int) -> bool:
    """Whether Gram matrices are fewer bytes than rows, for a solver that needs no rows."""
    declaration = layer.declaration
    if declaration.coupled > 1 or layer.group["window"] > 1:
        return False
    parents = whole.parents + 1
    merged = parents > WORTH_MERGING and not whole.positions  # it is not known how many rows are left
    blocks = [1 if one else size for one, size in zip(whole.shared, declaration.sizes, strict=True)]
    solver = SOLVERS.get(layer.group["solver"])
    if solver is None:
        device, kind = layer.parameters[0].device, "plain" if declaration.mask is None else "masked"
        shapes = [
            BlockShape(whole.rows, parents, size, count, uses, kind)  # type: ignore[arg-type]
            for size, count in zip(declaration.sizes, blocks, strict=True)
        ]
        names = {choose(shape, 1.0, device).name for shape in shapes}
        needs_rows = merged or any(SOLVERS[name].needs_rows for name in names)
    else:
        needs_rows = solver.needs_rows
    row = max(whole.groups, 1) * whole.parents + sum(blocks) + 1
    return not needs_rows and 2 * sum(blocks) * parents**2 < whole.rows * row
