"""Statistics of several processes become the statistics of all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .records import Record


def share_records(
    records: list[Record], precisions: list[Tensor], group: dist.ProcessGroup
) -> tuple[list[Record], list[Tensor]]:
    """Every process's records, joined, on every process; the number of samples may differ between processes."""
    rows = _gather(torch.cat([r.rows for r in records]), group)
    sample = _gather(torch.cat([r.sample_weights for r in records]).unsqueeze(1), group).squeeze(1)
    total = torch.stack([r.sample_weights.sum() if r.total is None else r.total for r in records]).sum()
    dist.all_reduce(total, group=group)
    if records[0].fisher_weights is None:
        return [Record(rows, None, sample, total)], [_gather(torch.cat(precisions), group)]
    groups = zip(*[r.fisher_weights for r in records if r.fisher_weights is not None], strict=True)
    return [Record(rows, tuple(_gather(torch.cat(q), group) for q in groups), sample, total)], []


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
