"""What a notebook shows of trainers and runs: HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from .._text import counted, table, with_error
from ..optim import DAGNaturalGradient
from ..summary import summary
from .metrics import Row
from .pictures import display

MOST_ROWS = 10
"""A run with more rows is shown with its first one and the last of them."""


def trainer_html(
    algorithm: str, machine: nn.Module, optimizer: Any, steps: int, samples: int, values: Mapping[str, float]
) -> str:
    """The algorithm, how far it is, what the optimizer does, and the layers of the machine."""
    parts = [f"{display(algorithm)} after {counted(steps, 'step')}", f"{counted(samples, 'sample')} for each example"]
    parts += [f"{name} {value:.3g}" for name, value in values.items()]
    layers = summary(machine, optimizer if isinstance(optimizer, DAGNaturalGradient) else None)
    return f"<p><b>Trainer</b>: {html.escape(', '.join(parts))}</p>{layers._repr_html_()}"


def run_html(folder: str, algorithm: str, data: str, epochs: tuple[float, int], rows: Sequence[Row]) -> str:
    """Where a run is, how far it is, and its latest rows."""
    done, total = epochs
    title = f"{folder}: {display(algorithm)} on {data}, {done:.4g} of {counted(total, 'epoch')}"
    shown = rows if len(rows) <= MOST_ROWS else [rows[0], *rows[1 - MOST_ROWS :]]
    lines = []
    for row in shown:
        test = with_error(row.test_log_likelihood, row.test_standard_error)
        line = [f"{row.epoch:.4g}", f"{row.seconds:.1f}", f"{row.train_log_likelihood:.2f}"]
        lines.append([*line, f"{row.valid_log_likelihood:.2f}", test])
    header = ["epoch", "seconds", "train log-likelihood", "valid", "test"]
    return f"<p><b>Run</b> {html.escape(title)}</p>{table(header, lines, left=0)._repr_html_()}"
