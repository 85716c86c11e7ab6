"""The ranges of the optimizer's settings."""

from __future__ import annotations

import math
from typing import Any

from .errors import SettingError
from .solvers import SOLVERS

UNDECLARED = ("sgd", "adam", "error")


def validate(group: dict[str, Any]) -> None:
    """Raise a sentence for the first setting that is out of range."""

    def require(condition: bool, sentence: str) -> None:
        if not condition:
            raise SettingError(sentence)

    def nonnegative(key: str) -> bool:
        return isinstance(group[key], (int, float)) and 0 <= group[key] < math.inf

    for key in ("lr", "weight_decay", "l1", "tolerance"):
        require(nonnegative(key), f"{key} must be a finite number of at least 0, not {group[key]!r}.")
    require(
        callable(group["damping"]) or nonnegative("damping"),
        f"damping must be a finite number of at least 0 or a callable of the step, not {group['damping']!r}.",
    )
    k = group["update_every"]
    require(
        callable(k) or (isinstance(k, (int, float)) and k >= 1),
        f"update_every must be at least 1 or a callable of the step, not {k!r}.",
    )
    solvers = ("auto", *SOLVERS)
    require(group["solver"] in solvers, f"solver must be one of {', '.join(solvers)}, not {group['solver']!r}.")
    require(nonnegative("momentum") and group["momentum"] < 1, "momentum must be in [0, 1).")
    require(not group["nesterov"] or group["momentum"] > 0, "nesterov needs momentum > 0.")
    betas = group["betas"]
    require(
        betas is None or (len(betas) == 2 and all(0 <= b < 1 for b in betas)), "betas must be two numbers in [0, 1)."
    )
    require(betas is None or not group["momentum"], "momentum and betas cannot both be given; choose one.")
    rules = UNDECLARED
    require(group["undeclared"] in rules, f"undeclared must be one of {', '.join(rules)}, not {group['undeclared']!r}.")
