"""The optimizer as the formula has it: one number for the damping, a fresh Fisher at every step, nothing shortened."""

from collections.abc import Iterable
from typing import Any

from dagfisher import DAGNaturalGradient

EXACT: dict[str, Any] = {"lr": 0.01, "damping": 0.1, "update_every": 1, "tolerance": 0.02, "trust_region": None}
EXACT |= {"momentum": 0.0, "undeclared": "sgd"}
"""What a test of the formula must know, whatever the defaults are."""


def exact(params: Iterable[Any], lr: float = EXACT["lr"], **settings: Any) -> DAGNaturalGradient:
    """An optimizer whose step is −lr·(1+α)(αI + F_j)⁻¹ g_j with these settings, unless told otherwise."""
    return DAGNaturalGradient(params, **{**EXACT, "lr": lr, **settings})
