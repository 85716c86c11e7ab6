"""The rows of metrics.csv: one evaluation of a machine each, written and read."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import replacing
from ..errors import SettingError

METRICS = "metrics.csv"
_MAY_BE_NONE = (
    "valid_standard_error",
    "test_standard_error",
    "kl",
    "l1",
    "l2",
    "entropy",
    "lr",
    "damping",
    "divergence",
    "factor",
)


@dataclass(frozen=True)
class Row:
    """One evaluation, a line of metrics.csv; log-likelihoods are importance-sampled means in nats."""

    data: str
    """The dataset and its binarisation."""
    epoch: float
    """Epochs done, a fraction within an epoch."""
    steps: int
    seconds: float
    """Spent on training alone."""
    train_log_likelihood: float
    """From the S samples of each step since the row before, while the machine was learning."""
    valid_log_likelihood: float
    valid_standard_error: float | None
    """None if there is one example."""
    test_log_likelihood: float
    test_standard_error: float | None
    effective_samples: float
    """The mean over the test examples, out of eval_samples."""
    kl: float | None = None
    """Exact KL(data ‖ machine), where the distribution of the data is known and the machine is tiny."""
    l1: float | None = None
    """Σ|w| of the weights, if they are penalised so."""
    l2: float | None = None
    """½Σw² of the weights, if they are penalised so."""
    entropy: float | None = None
    """The mean entropy of the units given their parents in the last minibatch, if it is rewarded."""
    lr: float | None = None
    """The learning rate of the coming step."""
    damping: float | None = None
    """α, the geometric mean over the layers; None for plain algorithms, and so is what follows."""
    divergence: float | None = None
    """The Kullback-Leibler divergence of the last step in nats, to second order, of the network that moved further."""
    factor: float | None = None
    """What a trust region shortened the last step to, of the network that it shortened more; 1: not at all."""


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Replace the metrics.csv of a folder."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(Row))
    writer.writerows(dataclasses.astuple(row) for row in rows)
    with replacing(folder / METRICS) as file:
        file.write(text.getvalue().encode())


def read_rows(folder: Path) -> list[Row]:
    """The rows of the run in a folder, without its checkpoint or its data; none if it has no metrics.csv yet."""
    path = folder / METRICS
    if not path.exists():
        return []
    kinds: dict[str, Callable[[str], Any]] = {"data": str, "steps": int}
    optional = [field.name for field in dataclasses.fields(Row) if "None" in str(field.type)]
    kinds.update(dict.fromkeys(optional, lambda text: float(text) if text else None))
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [Row(**{k: kinds.get(k, float)(v) for k, v in line.items()}) for line in csv.DictReader(file)]
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{path} cannot be read as metrics of a run ({error}).") from None
