"""Helmholtz machines trained by each kind of algorithm, for the golden cases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dagfisher import datasets
from dagfisher.helmholtz import L1, L2, Entropy, HelmholtzMachine, Schedule, Trainer
from dagfisher.nn import BernoulliConv2d, BernoulliConvTranspose2d, BernoulliLinear, Prior

F64 = torch.float64
STEPS = 12


def _started(machine: HelmholtzMachine, dtype: torch.dtype, spread: float = 0.5) -> HelmholtzMachine:
    """The machine with uniform weights between −spread and spread, which every CPU makes alike."""
    machine.to(dtype)
    draws = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.copy_((2 * torch.rand(parameter.shape, generator=draws, dtype=dtype) - 1) * spread)
    return machine


def dense(dtype: torch.dtype = F64, families: Any = "bernoulli", states: tuple[float, float] = (-1, 1)) -> Any:
    machine = HelmholtzMachine([9, 6, 3], states=states, families=families)
    return _started(machine, dtype, 0.1 if families == "gaussian" else 0.5)


def convolutional(dtype: torch.dtype = F64) -> HelmholtzMachine:
    """Two channels of 2×2 units on 3×3 pixels, and three units on them."""
    shared: dict[str, Any] = {"kernel_size": 2, "states": (-1, 1)}
    bottom = (BernoulliConvTranspose2d(2, 1, **shared), BernoulliConv2d(1, 2, **shared))
    top = (BernoulliLinear(3, 8, states=(-1, 1)), BernoulliLinear(8, 3, states=(-1, 1)))
    return _started(HelmholtzMachine([bottom, top], prior=Prior(3, states=(-1, 1)), shape=(1, 3, 3)), dtype)


RATES = {"nws": 0.05, "nrws": 0.1, "dnrws": 0.05, "nbihm": 0.1}
"""The default rates of the first version."""


def run(algorithm: str, make: Callable[[], Any] = dense, *, epochs: int = 0, **settings: Any) -> dict[str, Tensor]:
    """Parameters after some steps, or epochs, with the estimates on the way and the likelihoods at the end."""
    data, machine = datasets.load("three-by-three"), make()
    if algorithm.startswith(("n", "dn")):
        then = {"damping": 0.2, "update_every": 100, "tolerance": 0.02, "trust_region": None, "lr": RATES[algorithm]}
        settings = {**then, **settings}
    trainer = Trainer(machine, algorithm, samples=4, seed=3, **{"schedules": {}, **settings})
    estimates: list[Tensor] = []
    if epochs:
        trainer.fit(data, epochs, batch_size=180, on_step=lambda value: estimates.append(value.detach().clone()))
    else:
        batches = data.batches(20, seed=1, epoch=0)
        estimates.extend(trainer.step(next(batches)).detach().clone() for _ in range(STEPS))
    found = {name: parameter.detach().clone() for name, parameter in machine.named_parameters()}
    found["estimates"] = torch.stack(estimates)
    x = data.evaluation("test")
    found["log-likelihoods"] = machine.log_likelihood(x, 20, generator=torch.Generator().manual_seed(1))
    return found


_REGULARISERS = (L1(1e-3), L2(2e-3), Entropy(0.05, 6))
_FIXED: dict[str, Any] = {"damping": 0.2, "update_every": 4}

MACHINES: dict[str, Callable[[], dict[str, Tensor]]] = {
    **{name: partial(run, name) for name in ("ws", "rws", "bihm", "reinforce")},
    **{name: partial(run, name, update_every=4) for name in ("nws", "nrws", "dnrws", "nbihm")},
    **{
        f"nrws, {solver}": partial(run, "nrws", solver=solver, **_FIXED)
        for solver in ("dense", "woodbury", "conjugate", "diagonal")
    },
    "nrws, every step": partial(run, "nrws", update_every=1),
    "nrws, nesterov": partial(run, "nrws", momentum=0.9, nesterov=True, lr=0.01, **_FIXED),
    "nrws, adam": partial(run, "nrws", betas=(0.9, 0.99), lr=0.02, **_FIXED),
    # At a rate of 0.1 this bounds the divergence of a step by 0.02.
    "nrws, trust": partial(run, "nrws", lr=0.1, trust_region=0.02 / 0.1**2, window=3, damping=0.1, update_every=2),
    "nrws, dream": partial(run, "nrws", fisher="dream", update_every=3),
    # Version 0.1 counted K in steps, of which a minibatch has three here: 4/3 minibatches are 4 steps.
    "nrws, sleep-well": partial(run, "nrws", sleep_steps=3, sleep_scale=2.0, update_every=4 / 3, baseline=False),
    "nrws, regularised": partial(run, "nrws", regularisers=_REGULARISERS, update_every=3),
    "nrws, epochs": partial(
        run,
        "nrws",
        epochs=2,
        update_every=6,
        schedules={"lr": Schedule("warm-up:1+linear:0:0.5"), "samples": Schedule("step:1:2")},
    ),
    "nbihm, epochs": partial(run, "nbihm", epochs=1, damping=0.3, schedules={"damping": Schedule("cosine:0.5")}),
    "nrws, gaussian": partial(
        run, "nrws", partial(dense, families=("gaussian", "bernoulli", "bernoulli")), lr=0.005, damping=10.0
    ),
    "nbihm, all gaussian": partial(run, "nbihm", partial(dense, families="gaussian"), lr=0.002, damping=1.0),
    "nrws, zero-one": partial(run, "nrws", partial(dense, states=(0, 1)), **_FIXED),
    "nrws, convolutional": partial(run, "nrws", convolutional, update_every=4),
    "reinforce, convolutional": partial(run, "reinforce", convolutional),
    "rws, adam": partial(run, "rws", optimizer=lambda groups: torch.optim.Adam(groups, lr=0.02)),
    "nrws in float32": partial(run, "nrws", partial(dense, torch.float32), update_every=4),
    "rws in float32": partial(run, "rws", partial(dense, torch.float32)),
}
