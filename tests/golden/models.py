"""Small models of every kind, with the minibatches they are trained on, made of public names alone.

Weights and data are uniform draws of explicit generators, which every CPU makes alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError

F64 = torch.float64


class Problem:
    """A model, and how each step of its training makes gradients."""

    rate, stiffness = 1.0, 1.0
    """Times the learning rate and the damping of a setting."""

    def __init__(self, dtype: torch.dtype = F64) -> None:
        self.dtype = dtype
        self.draws = torch.Generator().manual_seed(2024)
        self.model: nn.Module

    def start(self, model: nn.Module, spread: float = 0.6) -> None:
        """Take this model, with weights between −spread and spread."""
        self.model = model.to(self.dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_((2 * self.uniform(*parameter.shape) - 1) * spread)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.draws, dtype=self.dtype)

    def bits(self, logits: Tensor) -> Tensor:
        """Draws in {0, 1}."""
        return (self.uniform(*logits.shape) < torch.sigmoid(logits.detach())).to(self.dtype)

    def noise(self, like: Tensor) -> Tensor:
        """Draws of mean 0 and deviation 1: sums of uniform ones."""
        return self.uniform(12, *like.shape).sum(0) - 6

    def params(self, settings: dict[str, Any]) -> Iterable[Any]:
        """What the optimizer is given; it may change the settings."""
        return self.model.named_parameters()

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        """Run a minibatch forwards and backwards; its loss."""
        raise NotImplementedError


def per_logit(module: nn.Module, classes: int) -> None:
    """Declare categorical variables whose blocks are those of the single logits, π(1−π); once the only kind."""
    try:
        dagfisher.declare(module, "categorical", classes=classes, coupled=False)
    except (DeclarationError, TypeError):
        dagfisher.declare(module, "categorical", classes=classes)


def bernoulli_loss(logits: Tensor, bits: Tensor) -> Tensor:
    """−log p, one number for each sample."""
    return F.binary_cross_entropy_with_logits(logits, bits, reduction="none").flatten(1).sum(1)


def gaussian_loss(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """−log p without its constant, one number for each sample."""
    return (0.5 * ((value - mean) * torch.exp(-log_std)).square() + log_std).flatten(1).sum(1)


class Belief(Problem):
    """A sigmoid belief network by reweighted wake-sleep: weighted samples, equal rows, passes that do not count."""

    def __init__(self, dtype: torch.dtype = F64, sizes: tuple[int, ...] = (50, 8, 3), batch: int = 6) -> None:
        super().__init__(dtype)
        pairs = list(pairwise(sizes))
        self.up = nn.ModuleList(nn.Linear(below, above) for below, above in pairs)
        self.down = nn.ModuleList(dagfisher.nn.BernoulliLinear(above, below) for below, above in pairs)
        self.top = dagfisher.nn.Prior(sizes[-1])
        for layer in self.up:
            dagfisher.declare(layer, "bernoulli")
        self.start(nn.ModuleDict({"up": self.up, "down": self.down, "top": self.top}), 1.5 / sizes[0] ** 0.5)
        self.patterns = self.uniform(4, sizes[0])
        self.batch = batch

    def log_q(self, units: list[Tensor]) -> Tensor:
        parts = [-bernoulli_loss(layer(units[i]), units[i + 1]) for i, layer in enumerate(self.up)]
        return torch.stack(parts).sum(0)

    def log_p(self, units: list[Tensor]) -> Tensor:
        parts: list[Any] = [layer.log_prob(units[i], units[i + 1]) for i, layer in enumerate(self.down)]  # type: ignore[operator]
        return torch.stack([self.top.log_prob(units[-1]), *parts]).sum(0)

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        chosen = self.patterns[torch.arange(self.batch) % len(self.patterns)]
        with torch.no_grad():
            self.wake = [self.bits(torch.logit(chosen)).repeat(4, 1)]
            for layer in self.up:
                self.wake.append(self.bits(layer(self.wake[-1])))
            ratios = (self.log_p(self.wake) - self.log_q(self.wake)).view(4, -1)
            weights = torch.softmax(ratios, 0).view(-1) / self.batch
            dream = [self.bits(self.top(len(weights)))]
            for layer in reversed(self.down):
                dream.insert(0, self.bits(layer(dream[0])))
        with dagfisher.sample_weights(weights):
            loss = -(weights * self.log_p(self.wake)).sum()
        loss = loss - 0.5 * (weights * self.log_q(self.wake)).sum()
        with dagfisher.no_capture():
            loss = loss - 0.5 * self.log_q(dream).mean()
        loss.backward()
        return loss.detach()


class VAE(Problem):
    """Deterministic hidden layers, a latent Gaussian of two heads, and binary or Gaussian pixels."""

    def __init__(self, dtype: torch.dtype = F64, kind: str = "sampled") -> None:
        super().__init__(dtype)
        self.grey = kind == "empirical"
        self.encode, self.decode = nn.Linear(14, 9), nn.Linear(3, 8)
        self.mean, self.scale = nn.Linear(9, 3), nn.Linear(9, 3)
        self.out = nn.Linear(8, 28 if self.grey else 14)
        dagfisher.declare(self.decode, "deterministic")
        if self.grey:
            dagfisher.declare(self.encode, "deterministic", fisher="empirical")
            dagfisher.declare_gaussian(mean=self.mean, log_std=self.scale)
            dagfisher.declare(self.out, "gaussian", scale="log_var")
        else:
            dagfisher.declare(self.encode, "deterministic")
            dagfisher.declare_gaussian(mean=self.mean, log_var=self.scale)
            dagfisher.declare(self.out, "bernoulli")
        layers = {"encode": self.encode, "mean": self.mean, "scale": self.scale, "decode": self.decode, "out": self.out}
        self.start(nn.ModuleDict(layers))
        self.mixing = 4 * self.uniform(3, 14) - 2

    def params(self, settings: dict[str, Any]) -> Iterable[Any]:
        return self.model.parameters()

    def loss(self) -> Tensor:
        hidden = F.leaky_relu(self.encode(self.x), 0.2, inplace=True)
        mean, scale = self.mean(hidden), self.scale(hidden)
        log_std = scale if self.grey else scale / 2
        z = mean + torch.exp(log_std) * self.epsilon
        output = self.out(torch.tanh(self.decode(z)))
        if self.grey:
            average, log_var = output.chunk(2, dim=-1)
            found = gaussian_loss(average, log_var / 2, self.x)
        else:
            found = bernoulli_loss(output, self.x)
        divergence = 0.5 * (mean.square() + torch.exp(2 * log_std) - 1 - 2 * log_std).sum(1)
        return (found + divergence).mean()

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        causes = (2 * self.uniform(12, 3) - 1) @ self.mixing
        self.x = torch.sigmoid(causes) if self.grey else self.bits(causes)
        self.epsilon = self.noise(self.x[:, :3])
        loss = self.loss()
        optimizer.sample_fisher(self.draws)
        loss.backward()
        return loss.detach()


class Convolutions(Problem):
    """Convolutions up and down, plain, grouped, in two heads and with few rows drawn, Bernoulli and Gaussian."""

    rate, stiffness = 0.2, 20.0  # the blocks of a convolution are sums over its positions

    def __init__(self, dtype: torch.dtype = F64) -> None:
        super().__init__(dtype)
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(4, 8, 3, padding=1, groups=2)
        self.mean, self.log_std = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1, bias=False)
        self.down = nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1, output_padding=1)
        self.grey = dagfisher.nn.GaussianConvTranspose2d(2, 1, 2, stride=2, min_std=0.1)
        dagfisher.declare(self.conv, "bernoulli", states=(-1, 1))
        dagfisher.declare(self.grouped, "gaussian", scale="log_var")
        dagfisher.declare_gaussian(mean=self.mean, log_std=self.log_std)
        dagfisher.declare(self.down, "bernoulli", max_rows=40)
        names = ("conv", "grouped", "mean", "log_std", "down", "grey")
        self.start(nn.ModuleDict({name: getattr(self, name) for name in names}), 0.25)

    def losses(self) -> Tensor:
        x, h, z, w = self.units
        found = bernoulli_loss(self.conv(x), (h + 1) / 2)
        mean, log_var = self.grouped(h).chunk(2, dim=1)
        found = found + gaussian_loss(mean, log_var / 2, z)
        found = found + gaussian_loss(self.mean(z), self.log_std(z), w)
        grey = -self.grey.log_prob(x, w)
        return found + bernoulli_loss(self.down(z), x) + grey

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        with torch.no_grad(), dagfisher.no_capture():
            x = (self.uniform(4, 1, 6, 6) < self.uniform(4, 1, 6, 1)).to(self.dtype)
            h = 2 * self.bits(self.conv(x)) - 1
            mean, log_var = self.grouped(h).chunk(2, dim=1)
            z = mean + torch.exp(log_var / 2) * self.noise(mean)
            w = self.mean(z) + torch.exp(self.log_std(z)) * self.noise(self.mean(z))
        self.units = x, h, z, w
        weights = self.uniform(4) + 0.5
        with dagfisher.sample_weights(weights):
            losses = self.losses()
        loss = (weights / weights.sum() * losses).sum()
        loss.backward()
        return loss.detach()


class Regression(Problem):
    """Counts and classes predicted by declared heads on modules that nobody declared."""

    def __init__(self, dtype: torch.dtype = F64) -> None:
        super().__init__(dtype)
        self.trunk, self.norm = nn.Linear(7, 6), nn.LayerNorm(6)
        self.counts = dagfisher.nn.PoissonLinear(6, 3)
        self.classes = nn.Linear(6, 8)
        per_logit(self.classes, 4)
        names = ("trunk", "norm", "counts", "classes")
        self.start(nn.ModuleDict({name: getattr(self, name) for name in names}))
        self.truth = 2 * self.uniform(7, 3) - 1

    def loss(self) -> Tensor:
        x, counts, classes = self.data
        hidden = torch.tanh(self.norm(self.trunk(x)))
        log_rates = self.counts(hidden)
        poisson = (torch.exp(log_rates) - counts * log_rates).sum(1)
        logits = self.classes(hidden).view(-1, 2, 4)
        categorical = -(classes * torch.log_softmax(logits, -1)).sum((1, 2))
        return (poisson + categorical).mean()

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        x = 2 * self.uniform(15, 7) - 1
        counts = torch.floor(torch.exp(x @ self.truth) + self.uniform(15, 3))
        picked = (torch.arange(15)[:, None] + torch.arange(2) + (x[:, :1] > 0)) % 4
        self.data = x, counts, F.one_hot(picked, 4).to(self.dtype)
        loss = self.loss()
        loss.backward()
        return loss.detach()


class Mixed(Problem):
    """Accumulated gradients, a bias that is frozen for half of the steps, and weights and biases in groups apart."""

    def __init__(self, dtype: torch.dtype = F64) -> None:
        super().__init__(dtype)
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4, bias=False)
        self.halves = dagfisher.nn.GaussianLinear(5, 3, min_std=0.05)
        self.mean, self.log_std = nn.Linear(5, 2), nn.Linear(5, 2)
        dagfisher.declare(self.first, "bernoulli")
        dagfisher.declare_gaussian(mean=self.second, std=0.7)
        dagfisher.declare_gaussian(mean=self.mean, log_std=self.log_std)
        names = ("first", "second", "halves", "mean", "log_std")
        self.start(nn.ModuleDict({name: getattr(self, name) for name in names}))
        self.first.bias.requires_grad_(False)

    def params(self, settings: dict[str, Any]) -> Iterable[Any]:
        """A trust region needed one rate for a layer; without it the biases go at twice the rate, without decay."""
        named = list(self.model.named_parameters())
        apart = {} if settings["trust_region"] else {"lr": 2 * settings["lr"], "weight_decay": 0.0}
        return [
            {"params": [(n, p) for n, p in named if n.startswith("halves")], "damping": 0.5, "update_every": 3},
            {"params": [(n, p) for n, p in named if n.endswith("weight") and not n.startswith("halves")]},
            {"params": [(n, p) for n, p in named if n.endswith("bias") and not n.startswith("halves")], **apart},
        ]

    def losses(self, part: slice) -> Tensor:
        x, h, y = (each[part] for each in self.data)
        found = bernoulli_loss(self.first(x), h) + 0.5 * ((self.second(h) - y[:, :4]) / 0.7).square().sum(1)
        found = found - self.halves.log_prob(y[:, :3], h)
        return found + gaussian_loss(self.mean(h), self.log_std(h), y[:, 3:])

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        if step == 10:
            self.first.bias.requires_grad_(True)
            optimizer.zero_grad()
        x = 2 * self.uniform(16, 6) - 1
        h = self.bits(3 * x[:, :5])
        y = h @ torch.tensor([[1.0, -1, 0, 2, -2]] * 5, dtype=self.dtype).tril() + self.uniform(16, 5)
        self.data = x, h, y
        total = torch.zeros((), dtype=self.dtype)
        for start, end in ((0, 3), (3, 11), (11, 16)):
            loss = self.losses(slice(start, end)).sum() / 16
            loss.backward()
            total += loss.detach()
        self.model.eval()
        self.losses(slice(None)).sum()  # a pass in eval mode does not count
        self.model.train()
        nn.utils.clip_grad_norm_(self.model.parameters(), 20.0)
        return total


class Large(Problem):
    """A convolution with more than 2²² numbers in its rows, whose Gram matrices are summed over chunks of samples."""

    def __init__(self, dtype: torch.dtype = F64, kind: str = "bernoulli") -> None:
        super().__init__(dtype)
        self.kind = kind
        if kind == "bernoulli":
            module: nn.Module = nn.Conv2d(1, 3, 3, padding=1)
            settings: dict[str, Any] = {"family": "bernoulli"}
        elif kind == "grouped":
            module, settings = nn.Conv2d(2, 4, 3, padding=1, groups=2), {"family": "gaussian", "min_std": 0.1}
        else:
            module, settings = nn.ConvTranspose2d(2, 2, 2, stride=2), {"family": "gaussian", "scale": "log_var"}
        dagfisher.declare(module, **settings, max_rows=math.inf)  # all rows count, as they did
        self.start(nn.ModuleDict({"map": module}))
        side, channels, samples = {"bernoulli": (256, 1, 8), "grouped": (200, 2, 6), "transposed": (132, 2, 8)}[kind]
        self.x = 2 * self.uniform(samples, channels, side, side) - 1

    def backward(self, optimizer: DAGNaturalGradient, step: int) -> Tensor:
        """All samples in one pass, and after the first step a further pass of one, which keeps its rows."""
        total = torch.zeros((), dtype=self.dtype)
        for x in [self.x, self.x[step : step + 1]] if step else [self.x]:
            weights = self.uniform(len(x)) + 0.5
            with dagfisher.sample_weights(weights):
                output = self.model["map"](x)  # type: ignore[index]
            if self.kind == "bernoulli":
                losses = bernoulli_loss(output, (x > 0.2).to(self.dtype).expand_as(output))
            else:
                mean, scale = output.chunk(2, dim=1)
                wanted = x.mean((1, 2, 3), keepdim=True).expand_as(mean)
                losses = gaussian_loss(mean, scale if self.kind == "grouped" else scale / 2, 3 * wanted + 1)
            loss = (weights * losses).sum() / 10
            loss.backward()
            total += loss.detach()
        return total
