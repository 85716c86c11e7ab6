"""What a run that goes on comes to, as plain numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

from dagfisher.helmholtz import Run

EPOCHS = 4
"""Epochs in all; the saved run has done two."""


def continued(run: Run) -> dict[str, Any]:
    """Train to the end; all rows without their seconds, the parameters, and the dampings."""
    assert run.train()
    rows = [{k: v for k, v in dataclasses.asdict(row).items() if k != "seconds"} for row in run.rows]
    parameters = {name: p.detach().double().flatten().tolist() for name, p in run.machine.named_parameters()}
    return {
        "rows": rows,
        "parameters": parameters,
        "dampings": [group["damping"] for group in run.trainer.optimizer.param_groups],
    }
