"""Logistic, Poisson and softmax regression on synthetic data, as in the examples, by minibatches."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .common import BatchSetting, Learner, MakeOptimizer, Model, optimizer_for, seeded

FEATURES = 40
SIZES = {"train": 20_000, "valid": 5_000, "test": 5_000}
OUTPUTS = {"bernoulli": 1, "poisson": 5, "categorical": 10}
STRENGTH = {"bernoulli": 1.0, "poisson": 0.06, "categorical": 0.5}
"""The standard deviation of the true weights, of features of variance 1."""
BATCHES = (BatchSetting(100), BatchSetting(1000))
NATURAL = BatchSetting(4000)
"""A step by Newton's method wants a good gradient, and few of them."""
QUANTITY = "log-likelihood above that of the true parameters (nats)"

Rows = tuple[Tensor, Tensor, float]
"""Features, outcomes, and the mean log-likelihood of the true parameters."""


@functools.cache
def synthetic(family: str) -> dict[str, Rows]:
    """Three splits: features on scales from 0.3 to 3 of which every two correlate at 0.8, and outcomes drawn for them.

    The outcomes are those of the family whose true weights are drawn once, and counts are around 1 to 5.
    """
    generator = torch.Generator().manual_seed(0)
    count = OUTPUTS[family]
    truth = STRENGTH[family] * torch.randn(FEATURES, count, generator=generator)
    level = torch.arange(1.0, 6.0).log() if family == "poisson" else torch.zeros(count)
    scales = torch.logspace(math.log10(0.3), math.log10(3), FEATURES)
    splits = {}
    for split, size in SIZES.items():
        own, shared = (torch.randn(size, n, generator=generator) for n in (FEATURES, 1))
        standard = math.sqrt(0.2) * own + math.sqrt(0.8) * shared
        predictor = standard @ truth + level
        outcomes = draw(family, predictor, generator)
        splits[split] = standard * scales, outcomes, float(log_likelihood(family, predictor.double(), outcomes))
    return splits


def draw(family: str, predictor: Tensor, generator: torch.Generator) -> Tensor:
    """Outcomes of the family, given its predictor."""
    if family == "bernoulli":
        return torch.bernoulli(torch.sigmoid(predictor), generator=generator)
    if family == "poisson":
        return torch.poisson(predictor.exp(), generator=generator)
    return torch.multinomial(torch.softmax(predictor, 1), 1, generator=generator).squeeze(1)


def log_likelihood(family: str, predictor: Tensor, outcomes: Tensor) -> Tensor:
    """The mean over the examples, summed over the counts."""
    if family == "categorical":
        return -F.cross_entropy(predictor, outcomes)
    outcomes = outcomes.to(predictor.dtype)
    if family == "bernoulli":
        return -F.binary_cross_entropy_with_logits(predictor, outcomes)
    return (outcomes * predictor - predictor.exp() - torch.lgamma(outcomes + 1)).sum() / len(outcomes)


class RegressionLearner(Learner):
    """One linear layer from zero weights (and the mean counts); the figure is the log-likelihood over the truth's.

    Args:
        family: of the outcomes.
        make_optimizer: is given the weight and the bias.
        batch: the batch setting.
        seed: of the minibatches.
    """

    def __init__(self, family: str, make_optimizer: MakeOptimizer, batch: BatchSetting, seed: int) -> None:
        self.family, self.data = family, synthetic(family)
        x, y, _ = self.data["train"]
        model = seeded(lambda: nn.Sequential(nn.Linear(FEATURES, OUTPUTS[family])), seed)
        (layer,) = model.children()
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.weight)
        with torch.no_grad():
            layer.bias.copy_(y.mean(0).log() if family == "poisson" else torch.zeros_like(layer.bias))
        optimizer = optimizer_for(model, {nn.Linear: family}, make_optimizer)
        super().__init__(model, optimizer, len(x))
        self.batches = shuffled(x, y, batch.size, seed)

    def _learn(self) -> tuple[Tensor, int]:
        x, y = next(self.batches)
        found = log_likelihood(self.family, self.model(x), y)
        self.optimizer.zero_grad()
        (-found).backward()
        self.optimizer.step()
        return found.detach(), len(x)

    def _evaluate(self, split: str) -> float:
        x, y, best = self.data[split]
        return float(log_likelihood(self.family, self.model(x).double(), y)) - best


def shuffled(x: Tensor, y: Tensor, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Minibatches without end, in an order drawn anew for each epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(size):
            yield x[rows], y[rows]


def entry(name: str, label: str, family: str, seconds: float) -> Model:
    """A regression in the list."""

    def make(make_optimizer: MakeOptimizer, batch: BatchSetting, seed: int) -> Learner:
        return RegressionLearner(family, make_optimizer, batch, seed)

    return Model(name, label, "regression", seconds, BATCHES, NATURAL, QUANTITY, make)


# Budgets are short: with a second or more, every method is at the maximum of the training data.
REGRESSIONS = (
    entry("logistic", "logistic regression, 40 features", "bernoulli", 0.1),
    entry("poisson", "Poisson regression, 5 counts", "poisson", 0.1),
    entry("softmax", "softmax regression, 10 classes", "categorical", 0.2),
)
