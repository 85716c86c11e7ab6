"""What a saved optimizer must hold before an optimizer continues from it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .settings import validate

_MOMENTS = ({"momentum_buffer"}, {"step", "exp_avg", "exp_avg_sq"})
"""What an acceleration keeps of a parameter."""


def read(state_dict: Any) -> tuple[int, list[Any], list[dict[str, Any]]]:
    """The steps taken, the states of the layers, and the param groups of a `state_dict`."""
    try:
        own, groups = state_dict["dagfisher"], [dict(group) for group in state_dict["param_groups"]]
        step, layers = int(own["step"]), list(own["layers"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise CheckpointError("this is not a state_dict of DAGNaturalGradient.") from None
    if step < 0:
        raise CheckpointError(f"the checkpoint is damaged: it was saved after {step} steps.")
    return step, layers, groups


def require_fitting(
    state: dict[Any, Any], groups: list[dict[str, Any]], parameters: list[Tensor], names: dict[int, str]
) -> None:
    """Raise unless the saved settings are in range and the saved moments are those of these parameters."""
    for group in groups:
        validate(group)
    saved = [index for group in groups for index in group["params"]]
    for index, p in zip(saved, parameters, strict=False):
        name = names.get(id(p), f"number {index}")
        moments = state.get(index, {})
        if moments and not any(set(moments) >= kept for kept in _MOMENTS):
            raise ValueError(f"the moments of parameter {name} are not complete: {', '.join(map(str, moments))}.")
        for key, value in moments.items():
            if isinstance(value, Tensor) and value.shape != p.shape:
                raise ValueError(f"{key} of parameter {name} is {tuple(value.shape)}, not {tuple(p.shape)}.")
            sound = _sound_moment(value) if isinstance(value, Tensor) else _sound_count(value)
            if not sound or isinstance(value, Tensor) == (key == "step"):
                raise ValueError(f"{key} of parameter {name} is damaged: it holds what no step can have left there.")


def _sound_moment(value: Tensor) -> bool:
    return value.is_meta or bool(value.isfinite().all())


def _sound_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < math.inf
