"""Param groups as the optimizer keeps them, and the names of their parameters."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from torch import Tensor, nn

from ..declaration import name_layers
from ..errors import ParameterTypeError, SettingError
from .settings import NAMES


def readable_groups(params: Any, names: dict[int, str]) -> Any:
    """Param groups as torch takes them, with misspelt settings refused; `names` learns the names that are known.

    What torch refuses in words of its own (a bare tensor, a set, names for some parameters only) is left to it.
    """
    if isinstance(params, nn.Module):
        raise SettingError("params must be parameters, not a module; give model.parameters().")
    if isinstance(params, Tensor):
        return params
    _learn_names(params, names)
    entries = list(params)
    if not entries:
        return []
    if len({isinstance(entry, dict) for entry in entries}) > 1:
        raise SettingError("params must be parameters, or dicts of them with settings, not both.")
    return [_readable(g, names) for g in (entries if isinstance(entries[0], dict) else [{"params": entries}])]


def _readable(group: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    if "params" not in group:
        raise SettingError(f"a param group needs the key 'params'; this one has {', '.join(map(repr, group))}.")
    for key in group:
        # Other keys may be a scheduler's or the user's own.
        meant = difflib.get_close_matches(str(key).lower(), NAMES, 1, 0.85)
        if meant and key != meant[0]:
            raise SettingError(f"a param group has no setting {key!r}; did you mean {meant[0]!r}?")
    members = group["params"]
    _learn_names(members, names)
    if isinstance(members, set):
        return dict(group)
    members = [members] if isinstance(members, Tensor) else list(members)
    named = dict(zip(map(id, members), group.get("param_names", ()), strict=False))
    for member in members:
        named_here = isinstance(member, tuple) and len(member) == 2
        name, parameter = member if named_here else (named.get(id(member)), member)
        if not isinstance(parameter, Tensor):
            raise ParameterTypeError(f"params must be tensors, not a {type(parameter).__name__}.")
        if name is not None:
            names[id(parameter)] = name
    return {**group, "params": members}


def _learn_names(params: Any, names: dict[int, str]) -> None:
    """The generator of ``model.parameters()`` knows the model, and so the qualified names of what it gives."""
    if not inspect.isgenerator(params):
        return
    known = inspect.getgeneratorlocals(params)
    _learn_names(known.get(".0"), names)  # (p for p in model.parameters() if ...)
    model = known.get("self")
    if isinstance(model, nn.Module):
        name_layers(model)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), name)
