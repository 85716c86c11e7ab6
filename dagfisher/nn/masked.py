"""Layers in which each unit has parents of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ..families import Conditional, Gaussian
from .layers import StochasticLayer, with_scale


class MaskedLinear(nn.Linear):
    """A linear map in which unit j sees only the parents with ``mask[j]``; not declared as anything.

    Args:
        mask: (units × parents), true or 1 where a parent is allowed.
        bias: whether the units have biases.
        device, dtype: of the parameters.
    """

    mask: Tensor

    def __init__(self, mask: Tensor, bias: bool = True, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(mask.shape[1], mask.shape[0], bias, device=device, dtype=dtype)
        self.register_buffer("mask", mask.detach().clone().bool().to(device))

    def forward(self, parents: Tensor) -> Tensor:
        """The predictor."""
        return F.linear(parents, self.mask * self.weight, self.bias)


class MaskedBernoulliLinear(MaskedLinear, StochasticLayer):
    """Binary units, each with the parents that its row of the mask allows."""

    def __init__(self, mask: Tensor, bias: bool = True, *, states: tuple[float, float] = (0, 1), **where: Any) -> None:
        super().__init__(mask, bias, **where)
        self._declare("bernoulli", states=states, mask=self.mask)


class MaskedPoissonLinear(MaskedLinear, StochasticLayer):
    """Counts, each with the parents that its row of the mask allows."""

    def __init__(self, mask: Tensor, bias: bool = True, **where: Any) -> None:
        super().__init__(mask, bias, **where)
        self._declare("poisson", mask=self.mask)


class MaskedGaussianLinear(MaskedLinear, StochasticLayer):
    """Normal units; mean and scale of a unit have the same parents, those that its row of the mask allows.

    Args:
        mask: (units × parents); with a fixed `std` there is one row of the weight for each unit, otherwise two.
        bias: whether the units have biases.
        scale, std, min_std: as of :class:`GaussianLinear`.
        where: ``device`` and ``dtype``.
    """

    def __init__(
        self,
        mask: Tensor,
        bias: bool = True,
        *,
        scale: str = "log_std",
        std: float | None = None,
        min_std: float = 0.0,
        **where: Any,
    ) -> None:
        super().__init__(mask if std is not None else torch.cat([mask, mask]), bias, **where)
        self._declare("gaussian", scale=scale, std=std, min_std=min_std, mask=self.mask)


class MaskedCategoricalLinear(MaskedLinear, StochasticLayer):
    """One-hot variables whose logits each have parents of their own; blocks are per logit, the diagonal π(1−π)."""

    def __init__(self, mask: Tensor, bias: bool = True, *, classes: int | None = None, **where: Any) -> None:
        super().__init__(mask, bias, **where)
        self._declare("categorical", classes=classes, coupled=False, mask=self.mask)


class FullGaussian(MaskedLinear, StochasticLayer):
    """A multivariate normal distribution in autoregressive form: x_j given x_1 … x_{j−1} is normal.

    Its mean is linear in the units before it, and its σ_j is a parameter. Any mean and any regular covariance matrix
    can be written so, and the Fisher matrix in these parameters is exactly block diagonal. Its parents are its own
    states: ``log_prob(x)`` is the log-density of x.

    Args:
        units: the dimension.
        where: ``device`` and ``dtype``.
    """

    log_std: nn.Parameter

    def __init__(self, units: int, **where: Any) -> None:
        super().__init__(torch.ones(units, units).tril(-1), **where)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self._declare("gaussian", scale="constant", mask=self.mask)

    def distribution(self, parents: Any) -> Conditional:
        """The normal distributions of all units given the units before them, (… × units)."""
        return Conditional(Gaussian("log_std"), with_scale(self(parents), self.log_std))

    def log_prob(self, child: Tensor, parents: Any = None) -> Tensor:
        """The log-density of each sample, (…)."""
        return super().log_prob(child, child if parents is None else parents)

    @torch.no_grad()
    def sample(self, parents: Any, generator: Generator | None = None) -> Tensor:
        """So many draws, (samples × units): `parents` is their number."""
        noise = torch.empty(int(parents), len(self.bias), dtype=self.bias.dtype, device=self.bias.device)
        scaled = noise.normal_(generator=generator) * torch.exp(self.log_std)
        return _solved(self._unmixing(), (scaled + self.bias).T).T

    def _unmixing(self) -> Tensor:
        """I − M∘W, which turns x into what is new in each unit."""
        return torch.eye(len(self.bias), dtype=self.bias.dtype, device=self.bias.device) - self.mask * self.weight

    @property
    def mean(self) -> Tensor:
        """μ, (units)."""
        return _solved(self._unmixing(), self.bias.unsqueeze(1)).squeeze(1)

    @property
    def covariance(self) -> Tensor:
        """Σ, (units × units)."""
        scale = torch.diag(torch.exp(self.log_std))
        root = _solved(self._unmixing(), scale)
        return root @ root.T


def _solved(lower: Tensor, columns: Tensor) -> Tensor:
    """The inverse of a lower triangular matrix times the columns."""
    found: Tensor = torch.linalg.solve_triangular(lower, columns, upper=False)
    return found
