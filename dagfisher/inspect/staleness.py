"""How fast a Fisher matrix that is reused goes out of date: what tells how long to keep one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import SettingError
from ..optim import DAGNaturalGradient
from ..plots import INK, MARKERS, blank, depth_colours, tidy
from .cosines import cosine

NEVER = 10**9
AGES = (0, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Staleness:
    """The angles between reused and fresh natural gradients, in degrees."""

    ages: tuple[int, ...]
    """Steps since the refresh. At 0 only the minibatch differs, so that this angle is the noise of minibatches."""
    layers: dict[str, tuple[float, ...]]
    """For each layer one angle for each age."""
    whole: tuple[float, ...]
    """Of all layers together."""

    def figure(self) -> Any:
        """A matplotlib figure: the angles of the layers against the steps since the refresh."""
        figure = blank(8, 4.2)
        axes = figure.subplots()
        for i, ((name, angles), colour) in enumerate(
            zip(self.layers.items(), depth_colours(len(self.layers)), strict=True)
        ):
            axes.plot(self.ages, angles, label=name, color=colour, marker=MARKERS[i % len(MARKERS)])
        axes.plot(self.ages, self.whole, label="all layers", color=INK, linewidth=2.5)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks(self.ages, [str(age) for age in self.ages])
        axes.set_ylim(0, None)
        axes.set_xlabel("steps since the refresh (0: another minibatch, same parameters)", color=INK)
        axes.set_ylabel("angle to a fresh natural gradient (degrees)", color=INK)
        tidy(axes)
        figure.legend(loc="outside right center", frameon=False)
        return figure


def staleness(opt: DAGNaturalGradient, closure: Callable[[], Any], ages: Sequence[int] = AGES) -> Staleness:
    """The angles between natural gradients of a Fisher matrix that is kept and of fresh ones, while training goes on.

    Refreshes once, trains on with that Fisher matrix, and at each of the ages also makes a fresh one from the same
    minibatch. Then the parameters, the optimizer and torch's random numbers are set back; buffers of the model, such
    as those of batch normalisation, and whatever the closure itself keeps are not.

    Args:
        opt: its learning rate and other settings are used as they are.
        closure: computes the loss of a new minibatch, calls ``backward()`` and gives the loss.
        ages: numbers of steps since the refresh, rising, at which to measure.
    """
    ages = tuple(ages)
    if not ages or any(not isinstance(age, int) or age < 0 for age in ages) or list(ages) != sorted(set(ages)):
        raise SettingError(f"ages must be rising whole numbers of at least 0, not {ages}.")
    parameters = [p for group in opt.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    gradients = [p.grad for p in parameters]
    state = copy.deepcopy(opt.state_dict())
    settings = [(group["lr"], group["update_every"]) for group in opt.param_groups]
    try:
        with torch.random.fork_rng():
            return _measured(opt, closure, ages)
    finally:
        opt.load_state_dict(state)
        for group, (rate, every) in zip(opt.param_groups, settings, strict=True):
            group["lr"], group["update_every"] = rate, every
        opt.zero_grad()
        with torch.no_grad():
            for p, value, gradient in zip(parameters, before, gradients, strict=True):
                p.copy_(value)
                p.grad = gradient


def _measured(opt: DAGNaturalGradient, closure: Callable[[], Any], ages: tuple[int, ...]) -> Staleness:
    rates = [group["lr"] for group in opt.param_groups]

    def passed(every: int) -> None:
        for group in opt.param_groups:
            group["update_every"] = every
        opt.zero_grad()
        with torch.enable_grad():
            closure()

    passed(1)
    for group in opt.param_groups:
        group["lr"] = 0.0
    opt.step()  # refreshes, and moves nothing
    for group, rate in zip(opt.param_groups, rates, strict=True):
        group["lr"] = rate
    layers = {name: layer.parameters for name, layer in opt.named_layers().items()}
    angles: dict[str, list[float]] = {name: [] for name in layers}
    whole = []
    for age in range(ages[-1] + 1):
        passed(1 if age in ages else NEVER)
        fresh = opt.natural_gradient() if age in ages else {}
        for group in opt.param_groups:
            group["update_every"] = NEVER
        if fresh:
            kept = opt.natural_gradient()
            for name, own in layers.items():
                angles[name].append(_angle(cosine(kept, fresh, [p for p in own if p in fresh])))
            every = [p for own in layers.values() for p in own if p in fresh]
            whole.append(_angle(cosine(kept, fresh, every)))
        opt.step()
    return Staleness(ages, {name: tuple(values) for name, values in angles.items()}, tuple(whole))


def _angle(value: float) -> float:
    return math.degrees(math.acos(value))
