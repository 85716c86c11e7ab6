"""The golden cases: models × solvers × settings, each a function that trains and gives what came of it.

`CASES` maps a name to a function that gives tensors by name. `projected` makes of each tensor a few numbers that
depend on all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient

from .machines import MACHINES
from .models import VAE, Belief, Convolutions, Large, Mixed, Problem, Regression

F32, F64 = torch.float32, torch.float64
THEN: dict[str, Any] = {"update_every": 1, "tolerance": 0.02, "trust_region": None}
"""Settings that a case does not give, as their defaults were."""
EXACT = 1e-12
"""The tolerance of the conjugate solver in small models: with more, any two versions may solve otherwise."""
KEPT = 6
"""Values of a tensor that are kept as they are; one with no more of them is kept whole."""

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.1, "damping": 0.2},
    "nesterov": {
        "lr": 0.02,
        "damping": 0.2,
        "update_every": 4,
        "momentum": 0.9,
        "nesterov": True,
        "undeclared": "adam",
    },
    "adam": {"lr": 0.02, "damping": 0.3, "betas": (0.9, 0.99), "weight_decay": 0.02, "l1": 0.003, "update_every": 2},
    "trust": {"lr": 0.3, "damping": 0.1, "trust_region": 0.02, "window": 3, "window_decay": 0.6, "update_every": 2},
    "schedules": {
        "lr": 0.05,
        "damping": lambda step: 0.1 + 0.4 / (1 + step),
        "update_every": lambda step: 1 + step // 5,
        "momentum": 0.5,
        "weight_decay": 0.01,
        "undeclared": "adam",
    },
    "tight": {"lr": 0.1, "damping": 0.05, "update_every": 2, "tolerance": 1e-7},
}
_SOME = ("plain", "nesterov", "trust")
SOLVERS: dict[str, tuple[str, ...]] = {
    "auto": tuple(name for name in SETTINGS if name != "tight"),
    "conjugate": tuple(SETTINGS),
    "dense": _SOME,
    "woodbury": _SOME,
    "diagonal": _SOME,
}
"""The settings that each solver is tried with; the tolerance is one of conjugate's alone."""


def trained(make: Callable[[], Problem], steps: int, setting: str, **more: Any) -> dict[str, Tensor]:
    """Parameters after so many steps, the losses on the way, and the last natural gradients or blocks."""
    settings = {**THEN, **SETTINGS[setting], **more}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)  # rows that stand for all are drawn by it
        problem = make()
        damping = settings["damping"]
        scaled = (lambda step: damping(step) * problem.stiffness) if callable(damping) else damping * problem.stiffness
        settings.update(lr=settings["lr"] * problem.rate, damping=scaled)
        optimizer = DAGNaturalGradient(problem.params(settings), **settings)
        _bound_steps(optimizer)
        losses, found = [], {}
        named = list(problem.model.named_parameters())
        for step in range(steps):
            optimizer.zero_grad()
            losses.append(problem.backward(optimizer, step))
            if step == steps - 1:
                if setting in ("plain", "trust"):
                    natural = optimizer.natural_gradient()
                    found = {f"natural gradient of {name}": natural[p] for name, p in named if p in natural}
                if setting == "plain":
                    name, parameter = next(item for item in named if item[0].split(".")[0] not in ("trunk", "norm"))
                    found[f"blocks of {name}"] = optimizer.fisher_blocks(parameter)
            optimizer.step()
        found.update({name: p.detach().clone() for name, p in named})
        found["losses"] = torch.stack(losses)
    return found


def _bound_steps(optimizer: DAGNaturalGradient) -> None:
    """Give every group the trust region with which its steps, at rates up to 1, have the bound that it was given.

    The bound was on the step −lr·v; now it is on v.
    """
    for group in optimizer.param_groups:
        if group["trust_region"] is not None:
            group["trust_region"] /= group["lr"] ** 2


def _all() -> dict[str, Callable[[], dict[str, Tensor]]]:
    small: dict[str, Callable[..., Problem]] = {
        "belief": Belief,
        "vae": VAE,
        "convolutions": Convolutions,
        "regression": Regression,
        "mixed": Mixed,
    }
    cases: dict[str, Callable[[], dict[str, Tensor]]] = {}
    for model, make in small.items():
        for solver, names in SOLVERS.items():
            for setting in names:
                more = {"tolerance": EXACT} if solver == "conjugate" and setting != "tight" else {}
                cases[f"{model}, {solver}, {setting}"] = partial(trained, make, 20, setting, solver=solver, **more)
    for setting in ("plain", "nesterov", "trust"):
        cases[f"empirical vae, auto, {setting}"] = partial(trained, partial(VAE, kind="empirical"), 20, setting)
    cases["mixed, dense, undamped"] = partial(trained, Mixed, 20, "plain", damping=0.0, solver="dense")

    wide = partial(Belief, sizes=(160, 120, 10), batch=40)
    for solver in ("auto", "conjugate"):
        for setting in ("plain", "nesterov", "tight"):
            cases[f"wide belief, {solver}, {setting}"] = partial(trained, wide, 5, setting, solver=solver)
    for kind, solver, setting in (
        ("bernoulli", "auto", "trust"),
        ("bernoulli", "diagonal", "plain"),
        ("grouped", "dense", "plain"),
        ("grouped", "diagonal", "trust"),
        ("transposed", "auto", "trust"),
    ):
        large, steps = partial(Large, kind=kind), 2 if setting == "plain" else 3
        cases[f"large {kind}, {solver}, {setting}"] = partial(trained, large, steps, setting, solver=solver)

    for model, make in {**small, "wide belief": wide}.items():
        for solver, setting in (("auto", "nesterov"), ("conjugate", "trust")):
            single, more = partial(make, dtype=F32), {"tolerance": 1e-6} if model != "wide belief" else {}
            case = partial(trained, single, 8, setting, solver=solver, **more)
            cases[f"{model} in float32, {solver}, {setting}"] = case
    return {**cases, **{f"machine, {name}": run for name, run in MACHINES.items()}}


CASES = _all()


def projected(tensors: dict[str, Tensor]) -> dict[str, list[float]]:
    """A few values of each tensor, at places that depend on its size alone, and the sum and the norm of all."""
    found: dict[str, list[float]] = {}
    for name, tensor in tensors.items():
        flat = tensor.double().flatten()
        if len(flat) <= KEPT:
            found[name] = flat.tolist()
            continue
        if not name.startswith("natural gradient"):
            found[name] = [float(flat[i * (len(flat) - 1) // (KEPT - 1)]) for i in range(KEPT)]
        found[f"{name}: sum, norm"] = [math.fsum(flat.tolist()), math.sqrt(math.fsum(flat.square().tolist()))]
    return found
