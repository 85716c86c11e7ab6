"""A normal distribution that searches: full-covariance natural evolution strategies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from ..errors import SettingError, ShapeError
from ..nn import FullGaussian
from .networks import SearchNetwork
from .utilities import rank_utilities

SHAPE_RATE, LARGEST_SHAPE_RATE = 3.0, 0.5
"""The rate of the covariance in units of CMA-ES's rank-μ rate, and the most that it may be."""


class Rates(NamedTuple):
    """The rates of a search in d dimensions; but for `shape`, which has a baseline, they are those of CMA-ES."""

    shape: float
    """Of the covariance."""
    path: float
    """Of the evolution path: how soon it forgets."""
    scale_path: float
    """The same of the path that controls the scale."""
    rank_one: float
    """Of the covariance towards the path."""
    scale_damping: float
    """How slowly the scale follows the length of its path."""

    @classmethod
    def of(cls, d: int, population: int) -> Rates:
        """For d dimensions and so many samples in a generation."""
        weights = rank_utilities(torch.arange(population, dtype=torch.float64)) + 1 / population
        mu = 1 / float(weights.square().sum())
        scale_path, rank_one = (mu + 2) / (d + mu + 5), 2 / ((d + 1.3) ** 2 + mu)
        shape = min(SHAPE_RATE * 2 * (mu - 2 + 1 / mu) / ((d + 2) ** 2 + mu), LARGEST_SHAPE_RATE)
        return cls(
            shape=max(shape, rank_one / 10),  # it is 0 for two samples, of which one is chosen
            path=(4 + mu / d) / (d + 4 + 2 * mu / d),
            scale_path=scale_path,
            rank_one=rank_one,
            scale_damping=1 + 2 * max(0.0, math.sqrt((mu - 1) / (d + 1)) - 1) + scale_path,
        )


class GaussianNetwork(SearchNetwork):
    """A normal distribution with a full covariance matrix, in autoregressive form.

    x_j given x_1 … x_{j−1} is normal with a mean that is linear in them, so that the Fisher has one block for each
    unit. It is averaged over 2d points that have exactly the mean and the covariance of the distribution: there is no
    sampling error in it. States are counted from the mean and in units of the overall scale: that uncouples the mean
    from the covariance, which has a rate of its own, and keeps the blocks regular however small the scale is. Two
    devices of CMA-ES are written in these terms: the evolution path is one more sample of the objective, on both sides
    of the mean, and the length of another one controls the overall scale.

    Args:
        mean: of the start, (dimensions).
        std: of the start, one number or (dimensions).
        cumulation: whether to use the paths; without them, steps are natural gradients and nothing else.
    """

    centre: Tensor
    unit: Tensor
    path: Tensor
    scale_path: Tensor

    def __init__(self, mean: Tensor | Sequence[float], std: float | Tensor = 1.0, *, cumulation: bool = True) -> None:
        super().__init__()
        start = torch.as_tensor(mean, dtype=torch.float64).detach().clone()
        if start.dim() != 1 or not len(start):
            raise ShapeError(f"the mean must be a vector, not of shape {tuple(start.shape)}.")
        spread = torch.as_tensor(std, dtype=torch.float64).detach().expand_as(start).clone()
        if not bool((spread > 0).all()):
            raise SettingError("std must be above 0.")
        self.layer = FullGaussian(len(start), dtype=torch.float64)
        self.cumulation = cumulation
        self._start, self._spread = start, spread
        for name in ("centre", "path", "scale_path"):
            self.register_buffer(name, torch.zeros_like(start))
        self.register_buffer("unit", torch.ones((), dtype=start.dtype))
        self.steps = 0
        """Since the start."""
        self._rates = Rates.of(len(start), 2)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        for value in (self.layer.weight, self.layer.bias, self.path, self.scale_path):
            value.zero_()
        self.layer.log_std.copy_(self._spread.log())
        self.centre.copy_(self._start)
        self.unit.fill_(1)
        self._rescale()
        self.steps = 0

    @property
    def mean(self) -> Tensor:
        """(dimensions)."""
        return self.centre + self.unit * self.layer.mean.detach()

    @property
    def covariance(self) -> Tensor:
        """(dimensions × dimensions)."""
        return self.unit**2 * self.layer.covariance.detach()

    @torch.no_grad()
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        return self.centre + self.unit * self.layer.sample(n, generator)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.layer.log_prob((x - self.centre) / self.unit) - len(self.centre) * self.unit.log()

    @torch.no_grad()
    def points(self, n: int, generator: Generator | None = None) -> Tensor:
        """2d states: the mean ± √d times the columns of a root of the covariance; n is not looked at."""
        root = (
            math.sqrt(len(self.centre))
            * self.unit
            * torch.linalg.solve_triangular(self._unmixing(), torch.diag(self.layer.log_std.exp()), upper=False)
        )
        return torch.cat([self.mean + root.T, self.mean - root.T])

    def groups(self, population: int) -> list[dict[str, Any]]:
        self._rates = Rates.of(len(self.centre), population)
        exact = {"damping": 0.0, "solver": "dense"}
        shape = [self.layer.weight, self.layer.log_std]
        return [{"params": [self.layer.bias], "lr": 1.0, **exact}, {"params": shape, "lr": self._rates.shape, **exact}]

    def objective(self, x: Tensor, utilities: Tensor) -> Tensor:
        """Σ utilities · log p(x), and the path on both sides of the mean, where it does not move the mean."""
        samples = super().objective(x, utilities)
        if not self.cumulation or not self.steps:
            return samples
        both = torch.stack([self.centre + self.unit * self.path, self.centre - self.unit * self.path])
        return samples + self._rates.rank_one / self._rates.shape * self.log_prob(both).mean()

    @torch.no_grad()
    def settle(self, x: Tensor, utilities: Tensor) -> None:
        """Count states from the new mean, and follow the paths."""
        moved = self.layer.mean
        self.centre.add_(self.unit * moved)
        self.layer.bias.zero_()
        self.steps += 1
        if self.cumulation:
            self._follow(moved / utilities.square().sum().sqrt())
        self._rescale()

    def _follow(self, step: Tensor) -> None:
        """Add a step, which has the covariance of a sample if nothing was selected, to the paths; adapt the scale."""
        rates, d = self._rates, len(step)
        whitened = self._unmixing() @ step * torch.exp(-self.layer.log_std)
        expected = math.sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d**2))
        self.scale_path.mul_(1 - rates.scale_path)
        self.scale_path.add_(whitened, alpha=math.sqrt(rates.scale_path * (2 - rates.scale_path)))
        length = float(self.scale_path.norm()) / expected
        # While the scale is still growing fast, the path would stretch the covariance along it too.
        known = math.sqrt(1 - (1 - rates.scale_path) ** (2 * self.steps))
        self.path.mul_(1 - rates.path)
        if length / known < 1.4 + 2 / (d + 1):
            self.path.add_(step, alpha=math.sqrt(rates.path * (2 - rates.path)))
        self.layer.log_std.add_(rates.scale_path / rates.scale_damping * (length - 1))

    def _rescale(self) -> None:
        """Choose the unit of length so that the geometric mean of the units' σ is 1."""
        shift = self.layer.log_std.mean()
        self.layer.log_std.sub_(shift)
        self.path.mul_(torch.exp(-shift))
        self.unit.mul_(torch.exp(shift))

    def _unmixing(self) -> Tensor:
        """What turns x − mean into what is new in each unit."""
        identity = torch.eye(len(self.centre), dtype=self.centre.dtype, device=self.centre.device)
        return identity - self.layer.mask * self.layer.weight
