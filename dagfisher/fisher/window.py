"""A moving Fisher: the statistics of past refreshes stay for a while, with weights that decay."""

from __future__ import annotations

from typing import Any

import torch

from .statistics import Grams, Rows, restored


class Window:
    """The statistics of the last refreshes of a layer; the weights of each refresh sum to decay^age."""

    def __init__(self) -> None:
        self.past: list[list[Rows | Grams]] = []

    def statistics(self) -> list[Rows | Grams]:
        """The statistics of all refreshes that are kept."""
        return [part for refresh in self.past for part in refresh]

    def push(self, latest: list[Rows | Grams], decay: float, size: int) -> None:
        """Add one more refresh, multiply all weights by the decay, and forget what is older than `size` refreshes.

        Args:
            latest: statistics whose sample weights sum to 1.
            decay: how much a refresh counts, compared with the next.
            size: refreshes to keep.
        """
        self.past = [[part.scaled(decay) for part in refresh] for refresh in [latest, *self.past][:size]]

    def nbytes(self) -> int:
        """Bytes that the window keeps."""
        return sum(t.numel() * t.element_size() for part in self.statistics() for t in part.tensors())

    def state(self) -> list[list[dict[str, Any]]]:
        """Plain tensors and numbers."""
        return [[part.state() for part in refresh] for refresh in self.past]

    def restore(self, state: list[list[dict[str, Any]]], device: torch.device) -> None:
        """Continue with the refreshes that a `state` holds, on this device."""
        self.past = [[restored(saved, device) for saved in refresh] for refresh in state]


def normalised(parts: list[Rows | Grams]) -> list[Rows | Grams]:
    """The same statistics with sample weights that sum to 1 over all parts."""
    scale = 1 / torch.stack([part.total for part in parts]).sum()
    return [part.scaled(scale) for part in parts]
