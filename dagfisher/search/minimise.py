"""The search itself: draw a generation, evaluate it, step, and start again where nothing changes any more."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from ..capture import no_capture
from ..errors import DagFisherWarning, NonFiniteError, SettingError, ShapeError, SingularBlockError
from ..optim import DAGNaturalGradient
from .networks import SearchNetwork
from .utilities import Utilities, rank_utilities

GROWTH = 2
"""Each restart has so many times the samples of the one before."""


@dataclass(frozen=True)
class Generation:
    """What a search knows after a generation."""

    evaluations: int
    """So far, over all restarts."""
    restart: int
    """How often the search has started again."""
    population: int
    """Samples of this generation."""
    best: float
    """The least value so far."""
    mean: float
    """The mean value of this generation; an estimate of E[f]."""


@dataclass
class SearchResult:
    """What a search found."""

    x: Tensor
    """The best state, (dimensions)."""
    value: float
    """f there."""
    evaluations: int
    restarts: int
    reason: str
    """Why it ended: "target", "evaluations", "at rest", "stopped" or "broken down"."""
    history: list[Generation] = field(repr=False)
    """Every generation."""


def minimise(
    f: Callable[[Tensor], Any],
    network: SearchNetwork,
    *,
    evaluations: int,
    population: int | None = None,
    target: float = -math.inf,
    utilities: Utilities = rank_utilities,
    restarts: int = 0,
    tolerance: float = 1e-11,
    fisher_samples: int | None = None,
    generator: Generator | None = None,
    on_generation: Callable[[Generation], object] | None = None,
    **settings: Any,
) -> SearchResult:
    """Search for the least value of f by natural gradients of E[f] under a network, which is trained in place.

    Args:
        f: from states (n × dimensions) to n values, as a tensor or anything that `torch.as_tensor` takes. What is not
            finite counts as worst.
        network: `independent`, `chain`, `fully_visible`, `GaussianNetwork`, or one of your own.
        evaluations: of f, after which the search ends.
        population: samples of a generation; by default 4 + 3 log(dimensions). Each restart has twice as many.
        target: the search ends at a value that is at most this.
        utilities: from values to weights of the samples; `rank_utilities`, `value_utilities` or your own.
        restarts: how often to start again from the first distribution after the search has come to rest, that is when
            the best values of the last generations, and all of the last one, are within `tolerance`; or after it has
            broken down, that is when no step can be computed any more, as where f falls without end.
        tolerance: in units of f.
        fisher_samples: draws of the network for its Fisher, which cost no evaluation; by default ten for each
            dimension, at least 200. A Gaussian network needs none.
        generator: of the draws.
        on_generation: called after every generation; the search ends if it returns True.
        settings: of `DAGNaturalGradient`, for example ``momentum``; the network's own come first.

    Returns:
        The best state, its value, and the history of the search.
    """
    width = network.sample(1, generator).shape[1]
    size = 4 + int(3 * math.log(width)) if population is None else population
    if size < 2 or evaluations < 1 or restarts < 0:
        raise SettingError("population must be at least 2, evaluations at least 1 and restarts at least 0.")
    search = _Search(f, network, utilities, generator, fisher_samples or max(200, 10 * width), settings)
    for restart in range(restarts + 1):
        if restart:
            network.reset()
        reason = search.run(size, restart, evaluations, target, tolerance, on_generation)
        size *= GROWTH
        if reason not in ("at rest", "broken down"):
            break
    assert search.x is not None
    return SearchResult(search.x, search.value, search.spent, restart, reason, search.history)


class _Search:
    """The best state so far and what it took, over all restarts."""

    def __init__(
        self,
        f: Callable[[Tensor], Any],
        network: SearchNetwork,
        utilities: Utilities,
        generator: Generator | None,
        fisher_samples: int,
        settings: dict[str, Any],
    ) -> None:
        self.f, self.network, self.utilities, self.generator = f, network, utilities, generator
        self.fisher_samples, self.settings = fisher_samples, settings
        self.x: Tensor | None = None
        self.value = math.inf
        self.spent = 0
        self.history: list[Generation] = []

    def run(
        self,
        population: int,
        restart: int,
        evaluations: int,
        target: float,
        tolerance: float,
        on_generation: Callable[[Generation], object] | None,
    ) -> str:
        """Search with generations of this size from where the network is; why it ended."""
        opt = DAGNaturalGradient(self.network.groups(population), **{"damping": 0.05, **self.settings})
        bests: deque[float] = deque(maxlen=10 + 30 * self.network.sample(1, self.generator).shape[1] // population)
        while True:
            x = self.network.sample(population, self.generator)
            values = self._evaluate(x)
            self.spent += population
            least = int(values.argmin())
            if self.x is None or float(values[least]) < self.value:
                self.x, self.value = x[least].clone(), float(values[least])
            now = Generation(self.spent, restart, population, self.value, float(values.mean()))
            self.history.append(now)
            bests.append(float(values[least]))
            if on_generation is not None and on_generation(now) is True:
                return "stopped"
            if self.value <= target:
                return "target"
            if self.spent >= evaluations:
                return "evaluations"
            whole = len(bests) == bests.maxlen
            if whole and max(*bests, float(values.max())) - min(bests) <= tolerance:
                return "at rest"
            utilities = self.utilities(values)
            if bool(utilities.any()):  # equal values tell nothing
                try:
                    self._step(opt, x, utilities)
                except (NonFiniteError, SingularBlockError) as error:
                    warnings.warn(f"the search has broken down: {error}", DagFisherWarning, stacklevel=3)
                    return "broken down"

    def _evaluate(self, x: Tensor) -> Tensor:
        values = torch.as_tensor(self.f(x), dtype=torch.float64).detach().to(x.device)
        if values.shape != x.shape[:1]:
            raise ShapeError(f"f gave values of shape {tuple(values.shape)} for {len(x)} states; give one for each.")
        return torch.where(torch.isfinite(values), values, torch.full_like(values, math.inf))

    def _step(self, opt: DAGNaturalGradient, x: Tensor, utilities: Tensor) -> None:
        opt.zero_grad()
        with no_capture():
            loss = -self.network.objective(x, utilities)
        self.network.log_prob(self.network.points(self.fisher_samples, self.generator))
        torch.autograd.backward(loss)
        opt.step()
        self.network.settle(x, utilities)
