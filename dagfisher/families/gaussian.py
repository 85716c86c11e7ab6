"""Normal units: one layer with two halves, or two heads, of which one knows the Fisher weights of the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .._draws import noise
from ..errors import DeclarationError
from .base import Family, Units, WeightsFrom, register_family

LOG_2PI = math.log(2 * math.pi)


_SCALES = {"log_std": 1.0, "log_var": 0.5}
"""For each parametrisation: log σ, where σ has no lower bound, as a multiple of the predictor."""


def _log_std(scale: Tensor, kind: str, min_std: float) -> Tensor:
    """log σ from the predictor s of the scale: σ = ε + eˢ for log_std, σ² = ε² + eˢ for log_var."""
    factor = _SCALES[kind]
    if not min_std:
        return factor * scale
    least = math.log(min_std) / factor
    return factor * (least + F.softplus(scale - least, threshold=40))


def _slope(scale: Tensor, kind: str, min_std: float) -> Tensor | float:
    """The derivative of log σ about the predictor of the scale."""
    factor = _SCALES[kind]
    return factor * torch.sigmoid(scale - math.log(min_std) / factor) if min_std else factor


def gaussian_precision(scale: Tensor, kind: str, min_std: float = 0.0) -> Tensor:
    """1/σ², the Fisher weight of a Gaussian mean, from the predictor of the scale."""
    return torch.exp(-2 * _log_std(scale, kind, min_std))


def _scale_weight(scale: Tensor, kind: str, min_std: float) -> Tensor:
    """The Fisher weight of the scale's predictor, 2 (∂ log σ/∂s)²; without a bound one number for all units."""
    slope = _slope(scale, kind, min_std)
    if isinstance(slope, Tensor):
        return 2 * slope.square()
    return scale.new_full((*scale.shape[:-1], 1), 2 * slope**2)


@dataclass(frozen=True)
class Gaussian(Family):
    """A normal unit; the predictor is [mean, scale] in two halves, or the mean alone when `std` is fixed.

    q of the mean is 1/σ², q of log σ is 2, q of log σ² is 1/2, and mean and scale do not couple. With `min_std` = ε,
    σ = ε + exp(scale), or σ² = ε² + exp(scale): never less than ε, and differentiable everywhere.
    """

    scale: str = "log_std"
    """What the second half of the predictor is: "log_std", log σ, or "log_var", log σ²."""
    std: float | None = None
    """σ of every unit if it is fixed; the predictor is then the mean alone."""
    min_std: float = 0.0
    """ε, which no σ falls below."""
    name = "gaussian"

    def __post_init__(self) -> None:
        if self.scale not in _SCALES:
            raise DeclarationError(f"scale must be 'log_std' or 'log_var', not {self.scale!r}.")
        if self.std is not None and not 0 < self.std < math.inf:
            raise DeclarationError(f"std must be a positive finite number, not {self.std!r}.")
        if not 0 <= self.min_std < math.inf:
            raise DeclarationError(f"min_std must be a finite number of at least 0, not {self.min_std!r}.")

    def split(self, outputs: int) -> tuple[int, ...]:
        if self.std is not None:
            return (outputs,)
        if outputs % 2:
            raise DeclarationError(
                f"a Gaussian layer gives [mean, {self.scale}] in two halves, but it has {outputs} outputs; "
                f"give it an even number, a fixed std, or declare two heads with declare_gaussian."
            )
        return (outputs // 2, outputs // 2)

    def moments(self, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log σ of each unit, (… × units) each."""
        if self.std is not None:
            return predictor, torch.full_like(predictor, math.log(self.std))
        mean, scale = predictor.chunk(2, dim=-1)
        return mean, _log_std(scale, self.scale, self.min_std)

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        if self.std is not None:
            return (predictor.new_full((*predictor.shape[:-1], 1), self.std**-2),)
        scale = predictor.chunk(2, dim=-1)[1]
        return (
            gaussian_precision(scale, self.scale, self.min_std),
            _scale_weight(scale, self.scale, self.min_std),
        )

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        mean, log_std = self.moments(predictor)
        return -0.5 * ((value - mean) * torch.exp(-log_std)).square() - log_std - 0.5 * LOG_2PI

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        mean, log_std = self.moments(predictor)
        standardised = (value - mean) * torch.exp(-log_std)
        about_mean = standardised * torch.exp(-log_std)
        if self.std is not None:
            return about_mean
        slope = _slope(predictor.chunk(2, dim=-1)[1], self.scale, self.min_std)
        return torch.cat([about_mean, slope * (standardised.square() - 1)], dim=-1)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        mean, log_std = self.moments(predictor.detach())
        return mean + torch.exp(log_std) * noise("normal", mean, generator)

    def mean(self, predictor: Tensor) -> Tensor:
        return self.moments(predictor)[0]

    def entropy(self, predictor: Tensor) -> Tensor:
        return self.moments(predictor)[1] + 0.5 * (1 + LOG_2PI)

    def second_moment(self, predictor: Tensor) -> Tensor:
        """E[h hᵀ] of the units, averaged over the samples: μμᵀ + diag(σ²), in closed form.

        It is half of the Fisher block about log σ of every unit whose parents these units are, without a draw of them.

        Args:
            predictor: (n × outputs).

        Returns:
            (units × units).
        """
        mean, log_std = self.moments(predictor)
        return mean.T @ mean / len(mean) + torch.diag(torch.exp(2 * log_std).mean(0))

    def entropy_score(self, predictor: Tensor) -> Tensor:
        if self.std is not None:
            return torch.zeros_like(predictor)
        mean, scale = predictor.chunk(2, dim=-1)
        slope = _slope(scale, self.scale, self.min_std)
        return torch.cat([torch.zeros_like(mean), torch.ones_like(scale) * slope], dim=-1)


@dataclass(frozen=True)
class GaussianScale(Units):
    """The scale head of a Gaussian layer with two heads: q is a constant, one block serves every unit.

    Its predictor also tells the Fisher weights of the mean head, 1/σ².
    """

    scale: str = "log_std"
    """What its predictor is: "log_std", log σ, or "log_var", log σ²."""
    name = "gaussian scale"

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        """q of the scale, (n × 1)."""
        return (_scale_weight(predictor, self.scale, 0.0),)

    def mean_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        """q of the mean head, 1/σ², (n × units)."""
        return (gaussian_precision(predictor, self.scale),)

    def sampled_scores(self, predictor: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """The scores about the mean and about the predictor of the scale, of a value drawn from the distribution."""
        noise = torch.empty_like(predictor).normal_(generator=generator)
        about_mean = noise * torch.exp(-_log_std(predictor, self.scale, 0.0))
        return about_mean, _SCALES[self.scale] * (noise.square() - 1)


@dataclass(frozen=True)
class GaussianMean(Units):
    """The mean head of a Gaussian layer with two heads: its q = 1/σ² comes from the scale head's predictor."""

    name = "gaussian mean"
    weights_from: ClassVar[WeightsFrom] = "scale head"


@dataclass(frozen=True)
class GaussianConstant(Units):
    """A normal unit whose mean is the predictor and whose σ is a parameter that no parent moves."""

    tied: bool = False
    """Whether all units of the layer have one σ."""
    name = "gaussian"
    weights_from: ClassVar[WeightsFrom] = "scale parameter"

    def mean_weights(self, log_std: Tensor, samples: int) -> tuple[Tensor, ...]:
        """q of the mean, 1/σ², (n × units), or (n × 1) if all units have one σ, from the parameter log σ."""
        return (torch.exp(-2 * log_std.reshape(1, -1)).expand(samples, -1),)

    def sampled_scores(self, predictor: Tensor, log_std: Tensor, generator: Generator | None) -> Tensor:
        """The scores about the mean of a value drawn from the distribution, shaped like the predictor."""
        return torch.empty_like(predictor).normal_(generator=generator) * torch.exp(-log_std.to(predictor))


@dataclass(frozen=True)
class GaussianLogStd(Family):
    """The parameter log σ of normal units whose mean is known: q is 2 for each unit that it belongs to."""

    name = "gaussian log_std"

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        return (predictor.new_full((*predictor.shape[:-1], 1), 2.0),)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        """log p of the difference from the mean."""
        return -0.5 * (value * torch.exp(-predictor)).square() - predictor - 0.5 * LOG_2PI

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        return torch.exp(predictor.detach()) * torch.empty_like(predictor).normal_(generator=generator)

    def mean(self, predictor: Tensor) -> Tensor:
        return torch.zeros_like(predictor)

    def entropy(self, predictor: Tensor) -> Tensor:
        return predictor + 0.5 * (1 + LOG_2PI)


register_family("gaussian", Gaussian)
