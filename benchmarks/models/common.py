"""What every model of the list is: a start, batch settings, a budget of processor seconds; and what learns it."""

from __future__ import annotations

import contextlib
import functools
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient, datasets
from dagfisher.errors import DeclarationError

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""From param groups, each with its list of "params", to any optimizer, natural or not."""


@dataclass(frozen=True)
class BatchSetting:
    """The examples in a minibatch and, for machines, the samples of each."""

    size: int
    samples: int | None = None

    def __str__(self) -> str:
        return f"B {self.size}" + ("" if self.samples is None else f", S {self.samples}")


class Learner(ABC):
    """A model with its optimizer in the middle of its training: `step` learns from the next minibatch.

    Args:
        model: is trained in place.
        optimizer: of its parameters.
        examples: in an epoch.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, examples: int) -> None:
        self.model, self.optimizer, self.examples = model, optimizer, examples
        self.steps, self.seen = 0, 0

    @property
    def epochs(self) -> float:
        """Epochs done, with their fraction."""
        return self.seen / self.examples

    def step(self) -> Tensor:
        """Take one training step on the next minibatch; gives the minibatch's own figure before it, a scalar."""
        found, rows = self._learn()
        self.steps += 1
        self.seen += rows
        return found

    @abstractmethod
    def _learn(self) -> tuple[Tensor, int]:
        """Learn from the next minibatch; its figure, and how many examples it had."""

    def value(self, split: str) -> float:
        """The figure on a fixed part of "valid" or "test", with fixed random numbers; higher is better."""
        was = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return self._evaluate(split)
        finally:
            self.model.train(was)

    @abstractmethod
    def _evaluate(self, split: str) -> float:
        """The figure of the model as it is."""


@dataclass(frozen=True)
class Model:
    """One entry of the list of models.

    Args:
        name: short, for the command line and the results.
        label: for people.
        kind: "machine", "vae" or "regression"; rivals' learning rates go by it.
        seconds: of the processor, that a full run has.
        batch_sizes: the two batch settings that every rival may choose from.
        natural_batch: the batch setting of the natural gradient.
        quantity: what `Learner.value` gives.
        make: builds a learner from a maker of optimizers, a batch setting and a seed.
        safety: the model is there to see that nothing diverges; only Adam is its rival.
    """

    name: str
    label: str
    kind: str
    seconds: float
    batch_sizes: tuple[BatchSetting, BatchSetting]
    natural_batch: BatchSetting
    quantity: str
    make: Callable[[MakeOptimizer, BatchSetting, int], Learner]
    safety: bool = False

    def start(self, make_optimizer: MakeOptimizer, batch: BatchSetting | None = None, seed: int = 0) -> Learner:
        """A learner at its beginning; everything in it depends on the seed alone.

        Args:
            make_optimizer: gives the optimizer for a list of param groups.
            batch: the batch setting; the natural one by default.
            seed: of the initial parameters, of the minibatches and of all draws.
        """
        return self.make(make_optimizer, batch or self.natural_batch, seed)


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What `make` builds, with initial parameters that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def optimizer_for(model: nn.Module, rules: dict[Any, Any], make_optimizer: MakeOptimizer) -> torch.optim.Optimizer:
    """The optimizer of a model, which is declared by the rules for a natural one.

    With any other it is as if nobody had declared it: rivals have no hooks to pay for.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # the table of what was declared
        dagfisher.declare_model(model, rules)
    optimizer = make_optimizer([{"params": list(model.parameters())}])
    if not isinstance(optimizer, DAGNaturalGradient):
        for module in model.modules():
            with contextlib.suppress(DeclarationError):  # not a layer, or undeclared with its other head
                dagfisher.undeclare(module)
    return optimizer


@functools.cache
def load(name: str, binarisation: datasets.Binarisation) -> datasets.Dataset:
    """A dataset, read once."""
    return datasets.load(name, binarisation)


@functools.lru_cache(maxsize=8)
def held_out(name: str, binarisation: datasets.Binarisation, split: datasets.Split, count: int) -> Tensor:
    """The first images of a split, as every run is evaluated on them."""
    return load(name, binarisation).evaluation(split)[:count]


def minibatches(data: datasets.Dataset, size: int, seed: int) -> Iterator[Tensor]:
    """Minibatches without end, epoch after epoch; what is left at the end of an epoch is left out."""
    epoch = 0
    while True:
        for x in data.batches(size, seed=seed, epoch=epoch):
            if len(x) == min(size, len(data.train)):
                yield x
        epoch += 1


def stream(purpose: str) -> torch.Generator:
    """The same random numbers whenever they are asked for."""
    return torch.Generator().manual_seed({"valid": 101, "test": 202}[purpose])
