"""Statistics of several processes become the statistics of all of them, if these train the same model alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._processes import Processes
from ..errors import ProcessError
from ..fisher import Rows
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
            found[f"parameter {names.get(id(p), index)}"] = f"{tuple(p.shape)} {p.dtype}"
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


def share_rows(rows: Rows, group: dist.ProcessGroup) -> Rows:
    """The rows of every process, in the order of the ranks, on every process; their numbers may differ."""
    total = rows.total.clone()
    dist.all_reduce(total, group=group)
    return Rows(
        _gather(rows.parents, group),
        tuple(_gather(q, group) for q in rows.fisher_weights),
        _gather(rows.sample_weights.unsqueeze(1), group).squeeze(1),
        total,
        positions=True,
        classes=rows.classes,
    )


def _gather(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The rows of every process's tensor, in the order of the ranks."""
    world = dist.get_world_size(group)
    count = torch.tensor([tensor.shape[0]], device=tensor.device)
    counts = [torch.empty_like(count) for _ in range(world)]
    dist.all_gather(counts, count, group=group)
    sizes = [int(c) for c in counts]
    padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
