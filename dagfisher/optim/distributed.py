"""Statistics of several processes become the statistics of all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..fisher import Rows


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


def mean_over_processes(values: list[list[float]], device: torch.device, group: dist.ProcessGroup) -> list[list[float]]:
    """The means over the processes of a table of numbers, the same on each of them."""
    table = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(table, group=group)
    means: list[list[float]] = table.div_(dist.get_world_size(group)).tolist()
    return means


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
