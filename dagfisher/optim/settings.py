"""Every setting of the optimizer, said once: its default, its range and what it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from .._settings import LARGEST_RATE, Convert, setting, settings_of
from ..errors import SettingError
from ..solvers import solver_names

NumberOrSchedule = float | str | Callable[[int], float]
"""A number, a callable of the step, or "auto"."""

AUTO = "auto"
"""What a setting is if nobody gives it: it then depends on the damping."""

UNDECLARED = ("auto", "sgd", "adam", "error")
SECOND_MOMENTS = ("element", "unit", "layer")


REFUSED = {
    "fused": "there is no fused kernel for its steps",
    "capturable": "a refresh reads numbers from the device, which a CUDA graph cannot record",
    "differentiable": "its steps leave no graph to differentiate",
}
"""What optimizers of torch.optim can be told and this one cannot, with the reason."""


def plain(value: Any) -> Any:
    """The Python number in a NumPy scalar or a tensor of one element; any other value as it is."""
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
        return value.item()
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        return value.item()
    return value


def _is_number(value: Any, low: float = 0.0, below: float = math.inf) -> bool:
    number = plain(value)
    return isinstance(number, (int, float)) and low <= number < below


def _that(words: str | Callable[[], str], holds: Callable[[Any], bool], *, shown: bool = True) -> Convert:
    """A check that raises "<name> <words>, not <value>." unless it holds."""

    def check(name: str, value: Any) -> Any:
        if not holds(value):
            text = words() if callable(words) else words
            raise SettingError(f"{name} {text}, not {value!r}." if shown else f"{name} {text}.")
        return value

    return check


_size = _that("must be a finite number of at least 0", _is_number)


def _rate(name: str, value: Any) -> Any:
    _size(name, value)
    return _that(f"must be below {LARGEST_RATE:g}", lambda v: plain(v) < LARGEST_RATE)(name, value)


def _are_betas(value: Any) -> bool:
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return value is None or (pair and all(_is_number(beta, below=1) for beta in value))


_flag = _that("must be True or False", lambda v: v is None or isinstance(plain(v), bool))

_solver = _that(
    lambda: f"must be one of {', '.join(['auto', *solver_names()])}", lambda v: v in ("auto", *solver_names())
)


USUAL = 50
"""The steps that a Fisher is kept, once a training is under way."""

BY_ITSELF: dict[str, Any] = {
    "momentum": 0.8,
    "trust_region": AUTO,
    "tolerance": 0.3,
    "update_every": AUTO,
    "undeclared": "adam",
}
"""What "auto" means where the damping is found: the optimizer looks after the length of its steps."""
BY_FORMULA: dict[str, Any] = {
    "momentum": 0.0,
    "trust_region": None,
    "tolerance": 0.02,
    "update_every": 1,
    "undeclared": "sgd",
}
"""What "auto" means where a damping is given: a step is −lr(1 + α)(αI + F)⁻¹g, and nothing else."""
UNDECLARED_SHARE = 0.01
"""Where the damping is found, the share of the rate that Adam has on parameters which nobody declared."""


def chosen(group: Mapping[str, Any], name: str) -> Any:
    """The value of a setting of a param group, where "auto" is what goes with its damping."""
    value = group[name]
    if isinstance(value, str) and value == AUTO and name in BY_ITSELF:
        found = group["damping"] == AUTO if isinstance(group["damping"], str) else False
        value = (BY_ITSELF if found else BY_FORMULA)[name]
        if name == "momentum" and group["betas"] is not None:
            value = 0.0
    return value


def _or_auto(check: Convert) -> Convert:
    """The same check, which lets "auto" pass."""
    return lambda name, value: value if isinstance(value, str) and value == AUTO else check(name, value)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What `DAGNaturalGradient` can be told, for all parameters or for a param group."""

    lr: float = setting(0.2, _rate, "the learning rate")
    damping: NumberOrSchedule = setting(
        AUTO,
        _or_auto(
            _that(
                "must be a finite number of at least 0, a callable of the step, or 'auto'",
                lambda v: callable(v) or _is_number(v),
            )
        ),
        "α, added to the Fisher blocks. auto: each layer finds its own at every refresh, by how well its last Fisher "
        "predicts the fresh samples. Or a number, or a callable of the step, read at every refresh; 0 is possible "
        "where every block is regular and the solver is dense",
    )
    update_every: NumberOrSchedule = setting(
        AUTO,
        _or_auto(
            _that(
                "must be at least 1, a callable of the step, or 'auto'",
                lambda v: callable(v) or _is_number(v, 1, math.inf),
            )
        ),
        "K, the steps that a Fisher is kept: a number or a callable of the step. auto: 1 at first, then twice as many "
        f"each time, up to {USUAL}, and fewer again where the Fisher changes fast; with a given damping 1",
    )
    solver: str = setting(
        "auto",
        _solver,
        "how the blocks are solved: auto (the least expected cost, see choose_solver), dense, woodbury, conjugate, "
        "diagonal (an approximation), or one of your own",
    )
    momentum: float | str = setting(
        AUTO,
        _or_auto(_that("must be in [0, 1)", lambda v: _is_number(v, below=1), shown=False)),
        f"of the natural gradient, as in torch.optim.SGD (auto: {BY_ITSELF['momentum']}; with a given damping, or with "
        "betas, 0)",
    )
    nesterov: bool = setting(False, lambda name, value: value, "look ahead along the momentum, as in torch.optim.SGD")
    betas: tuple[float, float] | None = setting(
        None,
        _that("must be two numbers in [0, 1)", _are_betas, shown=False),
        "Adam's moments of the natural gradient, for example (0.9, 0.999)",
    )
    second_moment: str = setting(
        "element",
        _that(f"must be one of {', '.join(SECOND_MOMENTS)}", lambda v: v in SECOND_MOMENTS),
        "what the second of Adam's moments averages. element: the square of each number of the natural gradient x. "
        "unit or layer: gᵀx, the squared length of x in the Fisher metric, of each unit or of the whole layer. "
        "Parameters that nobody declared have one for each element",
    )
    weight_decay: float = setting(0.0, _size, "decoupled weight decay, added after the inverse Fisher")
    l1: float = setting(0.0, _size, "decoupled L1 penalty, added after the inverse Fisher")
    tolerance: float | str = setting(
        AUTO,
        _or_auto(_size),
        "the relative residual ‖g − (αI + F)x‖/‖g‖ of a layer that the conjugate solver may leave when it refreshes; "
        "the number of iterations found then is kept for the steps that reuse "
        f"(auto: {BY_ITSELF['tolerance']}; with a given damping {BY_FORMULA['tolerance']})",
    )
    trust_region: float | str | None = setting(
        AUTO,
        _or_auto(
            _that("must be a finite number above 0 or None", lambda v: v is None or (_is_number(v) and plain(v) > 0))
        ),
        "ε, in nats, the most that ½vᵀ(αI + F)v of a natural gradient v may be over the layers of a param group, or "
        "None: a longer one is shortened, so that the divergence of a step −lr·v, without momentum, is at most lr²·ε "
        "to second order. "
        "auto: by the number of random variables; with a given damping none",
    )
    window: int = setting(
        1,
        _that("must be a whole number of at least 1", lambda v: isinstance(plain(v), int) and plain(v) >= 1),
        "the refreshes that a Fisher is estimated from, the current one among them",
    )
    window_decay: float = setting(
        0.5,
        _that("must be in (0, 1]", lambda v: _is_number(v) and 0 < plain(v) <= 1),
        "how much each of those refreshes counts, compared with the next",
    )
    loss_reduction: str = setting(
        "mean",
        _that("must be mean or sum", lambda v: v in ("mean", "sum")),
        "whether the loss is the mean or the sum over the samples; the gradients of declared layers are divided by the "
        "number of samples if it is the sum",
    )
    undeclared: str = setting(
        AUTO,
        _that(f"must be one of {', '.join(UNDECLARED)}", lambda v: v in UNDECLARED),
        "what moves parameters of modules that nobody declared: sgd or adam at the same rate, or error. auto: adam at "
        f"{UNDECLARED_SHARE:g} of the rate; with a given damping sgd",
    )
    maximize: bool = setting(
        False, _flag, "climb along the natural gradient instead of descending, as in torch.optim.SGD"
    )
    foreach: bool | None = setting(
        None, _flag, "taken for the sake of code that gives it to any optimizer; the steps are the same"
    )


DEFAULTS = OptimizerSettings()
SHARED = (
    *("damping", "update_every", "solver", "tolerance", "trust_region", "window", "window_decay", "loss_reduction"),
    "second_moment",
)
"""Settings of a layer and its Fisher, which its weight and bias must agree on."""
_ENTRIES = settings_of(OptimizerSettings)
NAMES = tuple(entry.name for entry in _ENTRIES)


PLAIN = (int, float, str, bool, type(None))
"""Types of values that cannot change; what was checked once need not be checked at every step."""


@lru_cache(maxsize=4096)
def _checked(number: int, value: Any, kind: str) -> Any:
    """The value of a setting, by its number, if it can be. The type is there because 1 equals True."""
    entry = _ENTRIES[number]
    entry.convert(entry.name, value)
    return value


def validate(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a param group as Python numbers, "auto" replaced; raises a sentence for the first that cannot be.

    A damping, and with it an interval of refreshes and a trust region, that is "auto" stays so.
    """
    refuse(group)
    settings = {}
    for number, entry in enumerate(_ENTRIES):
        value = group[entry.name]
        if type(value) in PLAIN:
            settings[entry.name] = _checked(number, value, type(value).__name__)
            continue
        if isinstance(value, Tensor) and value.numel() != 1:
            raise SettingError(f"Tensor {entry.name} must be 1-element, not of shape {tuple(value.shape)}.")
        entry.convert(entry.name, value)
        settings[entry.name] = plain(value)
    settings.update({name: chosen(settings, name) for name in BY_ITSELF})
    if settings["nesterov"] and not settings["momentum"] > 0:
        raise SettingError("nesterov needs momentum > 0.")
    if settings["betas"] is not None:
        if settings["momentum"]:
            raise SettingError("momentum and betas cannot both be given; choose one.")
        settings["betas"] = tuple(plain(beta) for beta in settings["betas"])
    elif settings["second_moment"] != DEFAULTS.second_moment:
        raise SettingError("second_moment is one of Adam's moments; give betas as well, for example (0.9, 0.999).")
    return settings


def refuse(flags: Mapping[str, Any]) -> None:
    """Raise if a flag of torch.optim that has no meaning here is set."""
    for name, reason in REFUSED.items():
        if flags.get(name):
            raise SettingError(f"{name}=True is not supported by DAGNaturalGradient: {reason}; leave it out.")


def described() -> str:
    """The settings as entries of an Args section."""
    return "\n        ".join(f"{entry.name}: {entry.help}." for entry in _ENTRIES)
