"""What operations cost on a type of device, in multiply-adds of a large matrix product there."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rates:
    """The constants of the cost model for one type of device."""

    eigh: float
    """Per m³ of a symmetric eigenproblem."""
    small_inverse: float
    """Per r³ of one of many small Cholesky inverses."""
    stored: float
    """Per number of a stored inverse that is read once: memory, not arithmetic."""
    operation: float
    """Starting one operation, which decides for small layers."""
    message: float
    """The latency of one message between processes, and their waiting for each other."""
    sent: float
    """Per byte that a process receives from another."""


_CPU = Rates(eigh=45.0, small_inverse=30.0, stored=16.0, operation=5e5, message=5e7, sent=80.0)
"""Measured on two cores with AVX2 (`python benchmarks/solvers.py`)."""

_ACCELERATOR = Rates(eigh=400.0, small_inverse=60.0, stored=20.0, operation=5e7, message=1e8, sent=50.0)
"""Estimated, not measured, for a device of 10 TFLOP/s: about 10 µs to start an operation, slow eigenproblems, and 20
multiply-adds in the time of one read."""

_RATES = {"cpu": _CPU}


def rates(device: torch.device) -> Rates:
    """The constants of this device's type; those of an accelerator for every type that is not the CPU."""
    return _RATES.get(device.type, _ACCELERATOR)
