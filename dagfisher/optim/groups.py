"""Param groups as the optimizer keeps them, and the names of their parameters."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ..declaration import name_layers
from ..errors import SettingError
from .settings import NAMES


def plain_groups(params: Iterable[Any], names: dict[int, str]) -> list[dict[str, Any]]:
    """Param groups with plain tensors; the names of parameters, where they are known, are put into `names`."""
    if isinstance(params, nn.Module):
        raise SettingError("params must be parameters, not a module; give model.parameters().")
    _learn_names(params, names)
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
            meant = difflib.get_close_matches(str(key).lower(), NAMES, 1, 0.85)
            if meant and key != meant[0]:
                raise SettingError(f"a param group has no setting {key!r}; did you mean {meant[0]!r}?")
        members = group["params"]
        _learn_names(members, names)
        members = [members] if isinstance(members, Tensor) else list(members)
        for i, member in enumerate(members):
            if isinstance(member, tuple):
                name, members[i] = member
                names[id(members[i])] = name
            if not isinstance(members[i], Tensor):
                raise SettingError(f"params must be tensors, not a {type(members[i]).__name__}.")
        plain.append({**group, "params": members})
    return plain


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
