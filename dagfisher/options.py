"""The optimizer's settings and their ranges, and the param groups that hold them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ._settings import LARGEST_RATE
from .errors import SettingError
from .solvers import SOLVERS

UNDECLARED = ("sgd", "adam", "error")


def plain_groups(params: Iterable[Any], names: dict[int, str], settings: Iterable[str]) -> list[dict[str, Any]]:
    """Param groups with plain tensors; the names of named parameters are put into `names`, for messages."""
    if isinstance(params, nn.Module):
        raise SettingError("params must be parameters, not a module; give model.parameters().")
    entries: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    if not entries:
        return []
    if len({isinstance(entry, dict) for entry in entries}) > 1:
        raise SettingError("params must be parameters, or dicts of them with settings, not both.")
    plain = []
    for group in entries if isinstance(entries[0], dict) else [{"params": entries}]:
        if "params" not in group:
            raise SettingError(f"a param group needs the key 'params'; this one has {', '.join(map(repr, group))}.")
        for key in group:
            # Other keys may be a scheduler's or the user's own.
            meant = difflib.get_close_matches(str(key).lower(), list(settings), 1, 0.85)
            if meant and key != meant[0]:
                raise SettingError(f"a param group has no setting {key!r}; did you mean {meant[0]!r}?")
        members = group["params"]
        members = [members] if isinstance(members, Tensor) else list(members)
        for i, member in enumerate(members):
            if isinstance(member, tuple):
                name, members[i] = member
                names[id(members[i])] = name
            if not isinstance(members[i], Tensor):
                raise SettingError(f"params must be tensors, not a {type(members[i]).__name__}.")
        plain.append({**group, "params": members})
    return plain


def validate(group: dict[str, Any]) -> None:
    """Raise a sentence for the first setting that is out of range."""

    def require(condition: bool, sentence: str) -> None:
        if not condition:
            raise SettingError(sentence)

    def number(value: Any) -> bool:
        return isinstance(value, (int, float))

    def nonnegative(key: str) -> bool:
        return number(group[key]) and 0 <= group[key] < math.inf

    for key in ("lr", "weight_decay", "l1", "tolerance"):
        require(nonnegative(key), f"{key} must be a finite number of at least 0, not {group[key]!r}.")
    require(group["lr"] < LARGEST_RATE, f"lr must be below {LARGEST_RATE:g}, not {group['lr']!r}.")
    require(
        callable(group["damping"]) or nonnegative("damping"),
        f"damping must be a finite number of at least 0 or a callable of the step, not {group['damping']!r}.",
    )
    k = group["update_every"]
    require(
        callable(k) or (number(k) and k >= 1),
        f"update_every must be at least 1 or a callable of the step, not {k!r}.",
    )
    solvers = ("auto", *SOLVERS)
    require(group["solver"] in solvers, f"solver must be one of {', '.join(solvers)}, not {group['solver']!r}.")
    require(nonnegative("momentum") and group["momentum"] < 1, "momentum must be in [0, 1).")
    require(not group["nesterov"] or group["momentum"] > 0, "nesterov needs momentum > 0.")
    betas = group["betas"]
    require(
        betas is None
        or (isinstance(betas, (tuple, list)) and len(betas) == 2 and all(number(b) and 0 <= b < 1 for b in betas)),
        "betas must be two numbers in [0, 1).",
    )
    require(betas is None or not group["momentum"], "momentum and betas cannot both be given; choose one.")
    require(
        group["trust_region"] is None or (nonnegative("trust_region") and group["trust_region"] > 0),
        f"trust_region must be a finite number above 0 or None, not {group['trust_region']!r}.",
    )
    size, decay = group["window"], group["window_decay"]
    require(isinstance(size, int) and size >= 1, f"window must be a whole number of at least 1, not {size!r}.")
    require(number(decay) and 0 < decay <= 1, f"window_decay must be in (0, 1], not {decay!r}.")
    rules = UNDECLARED
    require(group["undeclared"] in rules, f"undeclared must be one of {', '.join(rules)}, not {group['undeclared']!r}.")
