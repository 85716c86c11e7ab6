"""What a saved optimizer holds, and what it must hold before an optimizer continues from it.

Under ``"dagfisher"`` are the steps taken and the states of all layers. `torch.distributed.checkpoint` knows only
``"state"`` and ``"param_groups"``: for it, each parameter's own entry in ``"state"`` has a `Carried` with the state of
the layer that the parameter carries.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import CheckpointError
from .settings import plain, validate

OWN = "dagfisher"
"""The key of what torch knows nothing about."""
_MOMENTS = ({"momentum_buffer"}, {"step", "exp_avg", "exp_avg_sq"})
"""What an acceleration keeps of a parameter."""


class Saved(NamedTuple):
    """A state dict, read."""

    step: int
    layers: list[Any] | None
    """The states of the layers in their order; None if they are to be found in `carried`."""
    carried: dict[Any, Any]
    """The states of layers by the parameters that carry them."""
    moments: dict[Any, Any]
    """What is left of the states of the parameters."""
    groups: list[dict[str, Any]]


class Carried(str):
    """What a parameter carries through `torch.distributed.checkpoint`: the steps taken, and a layer's state or None.

    It must stay whole. Dicts, lists and tuples would be taken apart, and each tensor looked for in the optimizer that
    is to be loaded, which cannot know the shapes: they depend on the batches. A str passes in memory. A file has a set
    of nested tuples, which stays whole as well and needs nothing of this package to be read with ``weights_only=True``.
    """

    step: int
    layer: Any

    def __new__(cls, step: int, layer: Any) -> Carried:
        carried = super().__new__(cls, f"{step} steps, {'no layer' if layer is None else 'the state of a layer'}")
        carried.step, carried.layer = step, layer
        return carried

    def __reduce__(self) -> tuple[Any, ...]:
        return set, ([_frozen((self.step, self.layer))],)

    def __deepcopy__(self, memo: dict[int, Any]) -> Carried:
        return Carried(self.step, copy.deepcopy(self.layer, memo))

    @staticmethod
    def opened(given: Any) -> tuple[Any, Any]:
        """The steps and the layer in one of these, whether or not it went through a file."""
        if isinstance(given, Carried):
            return given.step, given.layer
        (pair,) = given
        step, layer = _thawed(pair)
        return step, layer


def _frozen(part: Any) -> Any:
    """Nested dicts, lists and tuples as tuples that begin with their kind."""
    if isinstance(part, Mapping):
        return ("dict", *((key, _frozen(each)) for key, each in part.items()))
    if isinstance(part, (list, tuple)):
        return ("list" if isinstance(part, list) else "tuple", *map(_frozen, part))
    return part


def _thawed(part: Any) -> Any:
    if not isinstance(part, tuple):
        return part
    kind, *parts = part
    if kind == "dict":
        return {key: _thawed(each) for key, each in parts}
    return [*map(_thawed, parts)] if kind == "list" else tuple(map(_thawed, parts))


def add_own_part(
    state: dict[str, Any], step: int, layers: list[Any], carriers: Sequence[int], *, distributed: bool
) -> None:
    """Put the states of the layers into a state dict of torch, and leave out what cannot be saved.

    Args:
        state: the state dict, changed in place.
        step: the steps taken.
        layers: the state of each layer.
        carriers: for each layer, the place among all parameters of the one that carries it.
        distributed: whether the state dict is for `torch.distributed.checkpoint`.
    """
    for group in state["param_groups"]:
        for key, value in list(group.items()):
            if callable(value):
                del group[key]
            elif not isinstance(value, Tensor):
                group[key] = type(value)(map(plain, value)) if isinstance(value, (tuple, list)) else plain(value)
    if not distributed:
        state[OWN] = {"step": step, "layers": layers}
        return
    saved = [index for group in state["param_groups"] for index in group["params"]]
    carried = {saved[place]: layer for place, layer in zip(carriers, layers, strict=True)}
    own = {index: {**state["state"].pop(index, {}), OWN: Carried(step, carried.get(index))} for index in saved}
    state["state"] = {**own, **state["state"]}


def read(state_dict: Any) -> Saved:
    """The parts of a state dict."""
    try:
        groups, entries = [dict(group) for group in state_dict["param_groups"]], state_dict.get("state")
        if not isinstance(entries, Mapping):
            raise CheckpointError(
                f"the checkpoint does not fit this optimizer: its state is a {type(entries).__name__}."
            )
        carried, moments, steps = {}, {}, set()
        for index, kept in entries.items():
            if isinstance(index, str) and index.isdigit() and int(index) in entries:
                continue
            # What dcp.load({"optimizer": optimizer}) reads for parameter 0, but for tensors, it leaves under "0".
            entry = {**kept, **entries.get(str(index), {})}
            moments[index] = {k: v for k, v in entry.items() if k != OWN}
            if OWN in entry:
                taken, carried[index] = Carried.opened(entry[OWN])
                steps.add(int(taken))
        own = state_dict.get(OWN)
        layers = None if own is None else list(own["layers"])
        step = min(steps) if own is None else int(own["step"])
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise CheckpointError("this is not a state_dict of DAGNaturalGradient.") from None
    if step < 0 or (own is None and len(steps) > 1):
        taken = " and ".join(map(str, sorted(steps))) if own is None else step
        raise CheckpointError(f"the checkpoint is damaged: it was saved after {taken} steps.")
    return Saved(step, layers, carried, moments, groups)


def states_of_layers(saved: Saved, layers: Sequence[Any], parameters: list[Tensor]) -> list[Any]:
    """The saved state of each layer of an optimizer with these parameters."""
    found = saved.layers
    if found is None:
        indices = (index for group in saved.groups for index in group["params"])
        held = {id(p): saved.carried.get(index) for index, p in zip(indices, parameters, strict=False)}
        found = []
        for layer in layers:
            own = [held[id(p)] for p in layer.parameters if held.get(id(p)) is not None]
            if own or not any(p.requires_grad for p in layer.parameters):
                # torch.distributed.checkpoint leaves out parameters that are frozen.
                found.append(own[0] if own else {"refreshed": None, "solvers": None})
    count = len(found) if saved.layers is not None else sum(state is not None for state in saved.carried.values())
    if len(found) != len(layers) or count > len(layers):
        raise CheckpointError(
            f"the checkpoint has {count} declared layers and this optimizer {len(layers)}; declare the same layers "
            f"before loading."
        )
    return found


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
