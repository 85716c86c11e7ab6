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
