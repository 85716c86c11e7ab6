"""Distributions of a unit given its linear predictor: Fisher weight, log-probability, sample, mean, entropy.

A family knows no modules. A predictor has the units on its last axis; the Fisher weight q is the Fisher
information of a unit's distribution about its own predictor (section "q for each family" of the theory page).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .errors import DeclarationError

LOG_2PI = math.log(2 * math.pi)


@runtime_checkable
class Family(Protocol):
    """What a layer needs to know of the distribution of its units."""

    @property
    def name(self) -> str:
        """The family's name, as `declare` takes it."""

    def split(self, outputs: int) -> tuple[int, ...]:
        """How many outputs of a layer belong to each group of units with Fisher weights of their own."""

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        """q of each group of `split`, (n × units), or (n × 1) where all units of the group share one block."""

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        """log p(value | predictor), one number per unit."""

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        """∂ log p(value | predictor) / ∂ predictor, shaped like the predictor."""

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        """One draw per unit, without a gradient."""

    def mean(self, predictor: Tensor) -> Tensor:
        """The expectation of each unit."""

    def entropy(self, predictor: Tensor) -> Tensor:
        """The entropy of each unit, in nats."""

    def entropy_score(self, predictor: Tensor) -> Tensor:
        """∂ (sum of the entropies) / ∂ predictor, shaped like the predictor."""


@dataclass(frozen=True)
class Bernoulli:
    """A unit with two states; the predictor is the logit of the upper one: q = ρ(1−ρ) for any two states."""

    states: tuple[float, float] = (0.0, 1.0)
    name = "bernoulli"

    def __post_init__(self) -> None:
        if self.states not in ((0, 1), (-1, 1)):
            raise DeclarationError(f"Bernoulli states must be (0, 1) or (-1, 1), not {self.states}.")

    def split(self, outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        # ρ(1−ρ) from the smaller of ρ and 1−ρ, which does not cancel for large a of either sign.
        smaller = torch.sigmoid(-predictor.abs())
        return (smaller * (1 - smaller),)

    @property
    def _signed(self) -> bool:
        return self.states[0] < 0

    def to_bits(self, value: Tensor) -> Tensor:
        """The states as 0 and 1."""
        return (value + 1) / 2 if self._signed else value

    def from_bits(self, bits: Tensor) -> Tensor:
        """0 and 1 as the states."""
        return bits * 2 - 1 if self._signed else bits

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        if self._signed:
            return -F.softplus(-(value * predictor), threshold=40)
        return value * predictor - F.softplus(predictor, threshold=40)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        if self._signed:
            return torch.add(0.5 - torch.sigmoid(predictor), value, alpha=0.5)
        return value - torch.sigmoid(predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        # Comparing uniform noise is twice as fast as torch.bernoulli on a CPU.
        noise = torch.empty(predictor.shape, dtype=predictor.dtype, device=predictor.device)
        noise.uniform_(generator=generator)
        bits = torch.lt(noise, torch.sigmoid(predictor.detach()), out=noise)
        return bits.mul_(2).sub_(1) if self._signed else bits

    def mean(self, predictor: Tensor) -> Tensor:
        return self.from_bits(torch.sigmoid(predictor))

    def entropy(self, predictor: Tensor) -> Tensor:
        return F.softplus(predictor, threshold=40) - predictor * torch.sigmoid(predictor)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        return -predictor * self.fisher_weights(predictor)[0]


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
class Gaussian:
    """A normal unit; the predictor is [mean, scale] in two halves, or the mean alone when `std` is fixed.

    q of the mean is 1/σ², q of log σ is 2, q of log σ² is 1/2, and mean and scale do not couple. With `min_std` = ε,
    σ = ε + exp(scale), or σ² = ε² + exp(scale): never less than ε, and differentiable everywhere.
    """

    scale: str = "log_std"
    std: float | None = None
    min_std: float = 0.0
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
        """Mean and log σ."""
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
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + torch.exp(log_std) * noise

    def mean(self, predictor: Tensor) -> Tensor:
        return self.moments(predictor)[0]

    def entropy(self, predictor: Tensor) -> Tensor:
        return self.moments(predictor)[1] + 0.5 * (1 + LOG_2PI)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        if self.std is not None:
            return torch.zeros_like(predictor)
        mean, scale = predictor.chunk(2, dim=-1)
        slope = _slope(scale, self.scale, self.min_std)
        return torch.cat([torch.zeros_like(mean), torch.ones_like(scale) * slope], dim=-1)


@dataclass(frozen=True)
class GaussianScale:
    """The scale head of a Gaussian layer with two heads: q is a constant, one block serves every unit."""

    scale: str = "log_std"
    name = "gaussian scale"

    def split(self, outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        return (_scale_weight(predictor, self.scale, 0.0),)


@dataclass(frozen=True)
class GaussianMean:
    """The mean head of a Gaussian layer with two heads: its q = 1/σ² comes from the scale head's predictor."""

    name = "gaussian mean"

    def split(self, outputs: int) -> tuple[int, ...]:
        return (outputs,)


def gaussian_sample(scale: Tensor, kind: str, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """The scores about the mean and about the predictor of the scale, of a value drawn from the normal distribution."""
    noise = torch.empty_like(scale).normal_(generator=generator)
    return noise * torch.exp(-_log_std(scale, kind, 0.0)), _SCALES[kind] * (noise.square() - 1)


@dataclass(frozen=True)
class Deterministic:
    """A unit without a distribution of its own, inside an encoder or decoder; see :mod:`dagfisher.deterministic`."""

    fisher: str = "sampled"
    """"sampled" from the model by `DAGNaturalGradient.sample_fisher`, or "empirical"."""
    reduction: str = "mean"
    """Of the loss over the samples, "mean" or "sum"; the empirical Fisher depends on it."""
    name = "deterministic"

    def __post_init__(self) -> None:
        if self.fisher not in ("sampled", "empirical"):
            raise DeclarationError(f"fisher must be 'sampled' or 'empirical', not {self.fisher!r}.")
        if self.reduction not in ("mean", "sum"):
            raise DeclarationError(f"reduction must be 'mean' or 'sum', not {self.reduction!r}.")

    def split(self, outputs: int) -> tuple[int, ...]:
        return (outputs,)


@dataclass(frozen=True)
class Poisson:
    """A count; the predictor is the log rate: q = λ."""

    name = "poisson"

    def split(self, outputs: int) -> tuple[int, ...]:
        return (outputs,)

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        return (torch.exp(predictor),)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        return value * predictor - torch.exp(predictor) - torch.lgamma(value + 1)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        return value - torch.exp(predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        return torch.poisson(torch.exp(predictor.detach()), generator=generator)

    def mean(self, predictor: Tensor) -> Tensor:
        return torch.exp(predictor)

    def entropy(self, predictor: Tensor) -> Tensor:
        """E[−log p]: the sum over counts for rates up to 100, the expansion in 1/λ above (error below 1e-8)."""
        log_rate = predictor.clamp(max=math.log(100.0))
        counts = torch.arange(250, device=predictor.device, dtype=predictor.dtype)
        log_p = self.log_prob(counts, log_rate.unsqueeze(-1))
        small = -(torch.exp(log_p) * log_p).sum(-1)
        inverse = torch.exp(-predictor.clamp(min=math.log(100.0)))
        large = 0.5 * (1 + LOG_2PI + predictor) - inverse / 12 - inverse**2 / 24 - 19 * inverse**3 / 360
        return torch.where(predictor > math.log(100.0), large, small)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        """λ E[log((k + 1)/λ)], the derivative about log λ; the derivative of the expansion above λ = 100."""
        log_rate = predictor.clamp(max=math.log(100.0))
        counts = torch.arange(250, device=predictor.device, dtype=predictor.dtype)
        p = torch.exp(self.log_prob(counts, log_rate.unsqueeze(-1)))
        small = torch.exp(log_rate) * ((p * torch.log1p(counts)).sum(-1) - log_rate)
        inverse = torch.exp(-predictor.clamp(min=math.log(100.0)))
        large = 0.5 + inverse / 12 + inverse**2 / 12 + 19 * inverse**3 / 120
        return torch.where(predictor > math.log(100.0), large, small)


@dataclass(frozen=True)
class Categorical:
    """One-hot variables of `classes` units each (default: the whole layer is one variable); predictors are logits.

    The true block couples the units of a variable, diag(π) − ππᵀ; this is its per-unit diagonal, π(1−π).
    """

    classes: int | None = None
    name = "categorical"

    def split(self, outputs: int) -> tuple[int, ...]:
        whole = self.classes is None or (isinstance(self.classes, int) and self.classes >= 2)
        if not whole or outputs % (self.classes or 1):
            raise DeclarationError(
                f"a categorical layer of {outputs} outputs cannot be divided into variables of {self.classes} classes."
            )
        return (outputs,)

    def _log_softmax(self, predictor: Tensor) -> Tensor:
        classes = self.classes or predictor.shape[-1]
        grouped = predictor.reshape(*predictor.shape[:-1], -1, classes)
        return torch.log_softmax(grouped, dim=-1)

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        # 1 − π of the likeliest class is the sum of the others, which does not cancel when π is nearly 1.
        probability = torch.exp(self._log_softmax(predictor))
        likeliest = probability.argmax(-1, keepdim=True)
        others = probability.scatter(-1, likeliest, 0).sum(-1, keepdim=True)
        complement = (1 - probability).scatter(-1, likeliest, others)
        return ((probability * complement).reshape(predictor.shape),)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        """The log-probability of the class that is one; the other units of the variable contribute nothing."""
        return value * self._log_softmax(predictor).reshape(predictor.shape).masked_fill(value == 0, 0)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        return value - self.mean(predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        probability = torch.exp(self._log_softmax(predictor.detach()))
        drawn = torch.multinomial(probability.flatten(0, -2), 1, generator=generator)
        one_hot = torch.zeros_like(probability.flatten(0, -2)).scatter_(1, drawn, 1)
        return one_hot.reshape(predictor.shape)

    def mean(self, predictor: Tensor) -> Tensor:
        return torch.exp(self._log_softmax(predictor)).reshape(predictor.shape)

    def entropy(self, predictor: Tensor) -> Tensor:
        """−π log π per unit; the sum over a variable's units is its entropy."""
        log_p = self._log_softmax(predictor)
        return -(torch.exp(log_p) * log_p.masked_fill(log_p == -math.inf, 0)).reshape(predictor.shape)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        log_p = self._log_softmax(predictor)
        p, finite = torch.exp(log_p), log_p.masked_fill(log_p == -math.inf, 0)
        entropy = -(p * finite).sum(-1, keepdim=True)
        return (-p * (finite + entropy)).reshape(predictor.shape)


_FAMILIES: dict[str, Any] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "poisson": Poisson,
    "categorical": Categorical,
    "deterministic": Deterministic,
}


def make_family(name: str, **settings: Any) -> Family | Deterministic:
    """The family of that name, as `declare` understands it."""
    if name not in _FAMILIES:
        raise DeclarationError(f"unknown family {name!r}; choose one of {', '.join(_FAMILIES)}.")
    try:
        family: Family | Deterministic = _FAMILIES[name](**settings)
    except TypeError as error:
        raise DeclarationError(f"family {name!r} does not take these settings: {error}.") from None
    return family
