"""Helmholtz machines and the whole family of wake-sleep algorithms."""

from .algorithms import ALGORITHMS, Algorithm
from .evaluate import Estimate, estimate
from .machine import HelmholtzMachine
from .runs import Row, Run
from .settings import Settings
from .train import Trainer

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Estimate",
    "HelmholtzMachine",
    "Row",
    "Run",
    "Settings",
    "Trainer",
    "estimate",
]
