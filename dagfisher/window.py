"""A moving Fisher: rows of past refreshes stay for a while, with weights that decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .records import Gram, Record


class Window:
    """What the last refreshes of a layer captured; each has weights that sum to decay^age."""

    def __init__(self) -> None:
        self.past: list[list[Record]] = []

    def records(self) -> list[Record]:
        """All of it."""
        return [record for refresh in self.past for record in refresh]

    def push(self, latest: list[Record], decay: float, size: int) -> None:
        """One more refresh, whose weights sum to 1; what is older counts less, and the oldest goes."""
        self.past = [[_scaled(r, decay) for r in refresh] for refresh in [latest, *self.past][:size]]

    def nbytes(self) -> int:
        """Bytes that the window keeps."""
        return sum(t.numel() * t.element_size() for record in self.records() for t in tensors(record))

    def state(self) -> list[list[dict[str, Any]]]:
        """Plain tensors and numbers."""
        return [[_plain(record) for record in refresh] for refresh in self.past]

    def restore(self, state: list[list[dict[str, Any]]], device: torch.device) -> None:
        """Stand where `state` was taken."""
        self.past = [[_record(saved, device) for saved in refresh] for refresh in state]


def normalised(records: list[Record]) -> list[Record]:
    """The same records with sample weights that sum to 1 over all of them."""
    totals = [r.sample_weights.sum() if r.total is None else r.total for r in records]
    scale = 1 / torch.stack(totals).sum()
    return [_scaled(r, scale)._replace(backward=None, followed=None) for r in records]


def tensors(record: Record) -> list[Tensor]:
    """The tensors of a record."""
    found = [record.rows, record.sample_weights, *(record.fisher_weights or ())]
    return found + [gram.blocks for gram in record.grams or ()]


def _scaled(record: Record, scale: float | Tensor) -> Record:
    grams = record.grams and tuple(Gram(gram.blocks * scale, gram.units) for gram in record.grams)
    total = None if record.total is None else record.total * scale
    return record._replace(sample_weights=record.sample_weights * scale, total=total, grams=grams)


def _plain(record: Record) -> dict[str, Any]:
    return {
        "rows": record.rows,
        "fisher_weights": list(record.fisher_weights or ()),
        "sample_weights": record.sample_weights,
        "total": record.total,
        "grams": None if record.grams is None else [[gram.blocks, gram.units] for gram in record.grams],
    }


def _record(saved: dict[str, Any], device: torch.device) -> Record:
    grams = saved["grams"] and tuple(Gram(blocks.to(device), int(units)) for blocks, units in saved["grams"])
    return Record(
        saved["rows"].to(device),
        tuple(q.to(device) for q in saved["fisher_weights"]),
        saved["sample_weights"].to(device),
        None if saved["total"] is None else saved["total"].to(device),
        grams,
    )
