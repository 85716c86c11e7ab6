"""Algorithms: what each makes of a step's samples, how it starts, and the settings that suit it.

An `Algorithm` is made of small functions, so that one of your own needs nothing but itself: give it to `Trainer`, or
`register_algorithm` it and use its name wherever a name is taken, on the command line too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from .._settings import LARGEST_RATE
from ..errors import SettingError
from ..optim import OptimizerSettings
from .baselines import leave_one_out, natural_baseline, optimal_baseline
from .evaluate import Estimate
from .machine import HelmholtzMachine
from .sampling import Wake


@dataclass(frozen=True)
class Step:
    """What is known when the coefficients of the recognition network are chosen."""

    wake: Wake
    """S samples of q(h|x) for each of B examples, with log p(x, h) and log q(h|x)."""
    weights: Tensor
    """Of the generative update, (S, B), which sum to 1."""
    baseline: bool
    """Whether the user wants a baseline subtracted, where the algorithm leaves the choice."""
    number: int
    """Steps done before this one."""


Weights = Callable[[Wake], Tensor]
"""From the wake samples to their weights in the generative update, (S, B), which sum to 1 over all samples."""
Coefficients = Callable[[Step], Tensor]
"""From what a step knows to the coefficients of log q(h|x) of the wake samples, (S, B), of any sign.

q ascends Σ coefficients · log q(h|x); so a mean over the examples has a factor 1/B in it.
"""
Initialise = Callable[[HelmholtzMachine, Generator | None], None]
"""Gives a new machine the parameters that training starts from."""


@dataclass(frozen=True)
class Figure:
    """A figure that `dagfisher evaluate` reports beside the log-likelihood."""

    key: str
    """Its name in JSON."""
    label: str
    """Its name in print, at most 18 characters."""
    value: Callable[[Estimate], Tensor]
    """From the samples' estimate to a value for each example, (n,), whose mean is reported."""
    note: str = ""
    """What to know when reading it."""


def glorot(machine: HelmholtzMachine, generator: Generator | None) -> None:
    """Start with Glorot-normal weights and biases of −1."""
    machine.reset_parameters(generator=generator)


def near_zero(machine: HelmholtzMachine, generator: Generator | None) -> None:
    """Start with weights near 0, as bidirectional machines need, and biases of −1."""
    machine.reset_parameters(bihm=True, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """How both networks learn from a minibatch, and the settings that suit it.

    A step goes like this. S samples of q(h|x) are drawn for each example. p ascends Σ weights · log p(x, h). q ascends
    (1 − dreams) · Σ coefficients · log q(h|x) + dreams · the mean of log q(h|x) over samples (x, h) of p. The optimizer
    is plain, or `DAGNaturalGradient` if there is a solver.

    Args:
        name: in lower case; what checkpoints and run folders remember.
        summary: one line for ``dagfisher algorithms``.
        weights: a function of the :class:`Wake` samples that gives their weights in p's update, (S, B), sum 1.
        recognition: a function of the :class:`Step` that gives the coefficients of log q(h|x) of the wake samples,
            (S, B), of any sign; None if only dreams teach q.
        dreams: the share of dreams in q's update, from 0 (it never sleeps) to 1 (without `recognition`).
        initialise: a function of a new machine and a generator that sets its parameters; runs call it, a `Trainer`
            takes the machine as it is.
        least_samples: fewer samples S than this are refused.
        figures: what ``dagfisher evaluate`` reports beside the log-likelihood.
        lr: the default learning rate; of a natural algorithm that of the optimizer if it is not given.
        batch_size: examples in a minibatch by default.
        samples: draws of q(h|x) per example by default.
        solver: of `DAGNaturalGradient`; None for plain gradients.
        update_every: steps that a Fisher is kept, with a solver; None: the optimizer's own rule.
    """

    name: str
    summary: str
    weights: Weights
    recognition: Coefficients | None = None
    dreams: float = 0.0
    initialise: Initialise = glorot
    least_samples: int = 1
    figures: tuple[Figure, ...] = ()
    lr: float = OptimizerSettings.lr
    batch_size: int = 32
    samples: int = 10
    solver: str | None = None
    update_every: int | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.lower() or self.name != self.name.strip():
            raise SettingError(f"an algorithm needs a name in lower case, not {self.name!r}.")
        if not 0 <= self.dreams <= 1:
            raise SettingError(f"{self.name}: dreams must be a share from 0 to 1, not {self.dreams!r}.")
        if (self.recognition is None) != (self.dreams == 1):
            raise SettingError(
                f"{self.name}: q learns from dreams alone (dreams=1, no recognition) or from wake samples too "
                f"(recognition, and dreams below 1); give one of these."
            )
        if self.least_samples < 1 or not 0 <= self.lr < LARGEST_RATE:
            raise SettingError(f"{self.name}: least_samples must be at least 1 and lr at least 0.")

    @property
    def sleeps(self) -> bool:
        """Whether dreams teach the recognition network."""
        return self.dreams > 0


def uniform_weights(wake: Wake) -> Tensor:
    """Equal weights, (S, B): the evidence bound of single samples."""
    return torch.full_like(wake.log_p, 1 / wake.log_p.numel())


def importance_weights(wake: Wake) -> Tensor:
    """Weights in proportion to p/q, (S, B): the gradient of log p(x) as S samples estimate it."""
    return _normalised(wake.log_ratio)


def root_weights(wake: Wake) -> Tensor:
    """Weights in proportion to √(p/q), (S, B): the gradient of log p*(x) of a bidirectional machine."""
    return _normalised(0.5 * wake.log_ratio)


def _normalised(log_weights: Tensor) -> Tensor:
    """exp(log_weights), (S, B), normalised for each of B examples and divided by B."""
    weights = torch.softmax(log_weights, dim=0).div_(log_weights.shape[1])
    # Weights too small to change any sum become denormal numbers in products, which halve the speed of a CPU.
    return torch.threshold_(weights, torch.finfo(weights.dtype).eps ** 2, 0.0)


def same_weights(step: Step) -> Tensor:
    """The weights of the generative update, (S, B), less their mean if a baseline is wanted."""
    return step.weights - 1 / step.weights.numel() if step.baseline else step.weights


P_STAR = Figure(
    key="log_p_star_plus_2_log_z",
    label="log p* + 2 log Z",
    value=lambda estimate: estimate.log_p_star,
    note="Z, at most 1, is not estimated",
)

_WS = Algorithm(
    name="ws",
    summary="wake-sleep: p from samples of q, q from dreams",
    weights=uniform_weights,
    dreams=1.0,
    lr=0.05,
)
_RWS = Algorithm(
    name="rws",
    summary="reweighted wake-sleep: importance weights; q from dreams and weighted samples",
    weights=importance_weights,
    recognition=same_weights,
    dreams=0.5,
    lr=0.2,
)
_BIHM = Algorithm(
    name="bihm",
    summary="bidirectional: weights √(p/q) for both networks, no dreams",
    weights=root_weights,
    recognition=same_weights,
    initialise=near_zero,
    figures=(P_STAR,),
    lr=0.1,
)
_REINFORCE = Algorithm(
    name="reinforce",
    summary="evidence bound; q by REINFORCE with a leave-one-out baseline",
    weights=uniform_weights,
    recognition=leave_one_out,
    least_samples=2,
    lr=0.02,
)

ALGORITHMS: dict[str, Algorithm] = {}
"""The algorithms by name."""


def register_algorithm(algorithm: Algorithm, *, replace: bool = False) -> Algorithm:
    """Make an algorithm known by its name, to `Trainer`, `Settings` and the command line; gives it back.

    Args:
        algorithm: with a name that no other algorithm has.
        replace: take the place of an algorithm of that name.
    """
    if ALGORITHMS.get(algorithm.name, algorithm) != algorithm and not replace:
        raise SettingError(f"there is an algorithm {algorithm.name!r} already; give yours another name.")
    ALGORITHMS[algorithm.name] = algorithm
    return algorithm


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of that name, upper or lower case."""
    if name.lower() not in ALGORITHMS:
        raise SettingError(f"unknown algorithm {name!r}; choose one of {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name.lower()]


PIXELS_OF_RATES = 14 * 14
"""Of the images for which the rates of plain algorithms were chosen."""


def rate_for(algorithm: Algorithm, pixels: int) -> float:
    """The learning rate of an algorithm on images of so many pixels, if nobody gives one.

    The gradients of plain algorithms grow with the number of pixels, and with a rate that is right for 14×14 of them
    machines on 28×28 hardly learn. So the rate is lower in proportion. Natural gradients need no such rule.
    """
    larger = 1.0 if algorithm.solver is not None else max(1.0, pixels / PIXELS_OF_RATES)
    return algorithm.lr / larger


_NATURAL: dict[str, Any] = {"lr": OptimizerSettings.lr, "solver": "auto", "batch_size": 200, "samples": 5}
"""Larger minibatches with fewer samples each: the price of a natural step does not grow with them."""

for _algorithm in (
    _WS,
    _RWS,
    _BIHM,
    _REINFORCE,
    dataclasses.replace(_WS, name="nws", summary="natural wake-sleep", **_NATURAL),
    dataclasses.replace(_RWS, name="nrws", summary="natural reweighted wake-sleep", **_NATURAL),
    dataclasses.replace(
        _RWS,
        name="dnrws",
        summary="natural reweighted wake-sleep with diagonal Fisher blocks",
        **{**_NATURAL, "solver": "diagonal"},
    ),
    dataclasses.replace(_BIHM, name="nbihm", summary="natural bidirectional machine", **_NATURAL),
    dataclasses.replace(
        _REINFORCE,
        name="reinforce-optimal",
        summary="evidence bound; q by REINFORCE with the baseline of least variance",
        recognition=optimal_baseline,
    ),
    dataclasses.replace(_REINFORCE, name="nreinforce", summary="natural REINFORCE", **_NATURAL),
    dataclasses.replace(
        _REINFORCE,
        name="nreinforce-optimal",
        summary="natural REINFORCE with the baseline of least variance in the Fisher metric",
        recognition=natural_baseline,
        **_NATURAL,
    ),
):
    register_algorithm(_algorithm)
