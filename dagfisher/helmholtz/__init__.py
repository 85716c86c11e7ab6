"""Helmholtz machines and the whole family of wake-sleep algorithms."""

from .algorithms import ALGORITHMS, Algorithm
from .evaluate import Estimate, estimate
from .machine import HelmholtzMachine
from .regularisers import L1, L2, Entropy
from .runs import Row, Run
from .schedules import Schedule
from .settings import Settings
from .train import Trainer

__all__ = [
    "ALGORITHMS",
    "L1",
    "L2",
    "Algorithm",
    "Entropy",
    "Estimate",
    "HelmholtzMachine",
    "Row",
    "Run",
    "Schedule",
    "Settings",
    "Trainer",
    "estimate",
]
