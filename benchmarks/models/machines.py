"""Helmholtz machines by reweighted wake-sleep: NRWS for a natural optimizer, RWS for any other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient
from dagfisher.helmholtz import HelmholtzMachine, Trainer, estimate
from dagfisher.helmholtz.settings import LAYERS
from dagfisher.nn import BernoulliConv2d, BernoulliConvTranspose2d, BernoulliLinear, Prior, StochasticLayer

from .common import BatchSetting, Learner, MakeOptimizer, Model, held_out, load, minibatches, stream

STATES = (-1.0, 1.0)
CHANNELS, ABOVE = 8, (200, 100, 50, 20)
RIVALS, NATURAL = (BatchSetting(32, 10), BatchSetting(100, 5)), BatchSetting(200, 5)
LOG_LIKELIHOOD = "log-likelihood (nats)"


class MachineLearner(Learner):
    """Reweighted wake-sleep on one machine; the figure is the importance-sampled log-likelihood.

    Args:
        machine: is trained in place.
        make_optimizer: is given the param groups of p and of q.
        data: name and binarisation.
        batch: the batch setting.
        seed: of the minibatches and the draws.
        judged: the images, and the samples of each, that the figure is of.
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        make_optimizer: MakeOptimizer,
        data: tuple[str, Any],
        batch: BatchSetting,
        seed: int,
        judged: tuple[int, int],
    ) -> None:
        self.data, self.judged = data, judged
        networks = (machine.generative_parameters(), machine.recognition_parameters())
        optimizer = make_optimizer([{"params": list(parameters)} for parameters in networks])
        self.trainer = Trainer(
            machine,
            "nrws" if isinstance(optimizer, DAGNaturalGradient) else "rws",
            samples=batch.samples or 10,
            seed=seed,
            optimizer=lambda groups: optimizer,
        )
        images = load(*data)
        super().__init__(machine, optimizer, len(images.train))
        self.machine, self.batches = machine, minibatches(images, batch.size, seed)

    def _learn(self) -> tuple[Tensor, int]:
        x = next(self.batches)
        return self.trainer.step(x), len(x)

    def _evaluate(self, split: str) -> float:
        examples, samples = self.judged
        return estimate(self.machine, held_out(*self.data, split, examples), samples, generator=stream(split)).mean


def dense(data: tuple[str, Any]) -> HelmholtzMachine:
    """The layers that the dataset gets by default, with Gaussian pixels for grey values."""
    layers = LAYERS[data[0]]
    families = ["gaussian" if data[1] == "G" else "bernoulli", *["bernoulli"] * len(layers)]
    return HelmholtzMachine([load(*data).pixels, *layers], families=families)


def convolutional() -> HelmholtzMachine:
    """28×28 pixels under 8 channels of 14×14 units, convolutions up and down, and dense layers above."""
    filters: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1, "states": STATES}
    pairs: list[tuple[StochasticLayer, StochasticLayer]] = [
        (BernoulliConvTranspose2d(CHANNELS, 1, output_padding=1, **filters), BernoulliConv2d(1, CHANNELS, **filters))
    ]
    for below, above in pairwise((CHANNELS * 14 * 14, *ABOVE)):
        pairs.append((BernoulliLinear(above, below, states=STATES), BernoulliLinear(below, above, states=STATES)))
    return HelmholtzMachine(pairs, prior=Prior(ABOVE[-1], states=STATES), shape=(1, 28, 28))


def entry(
    name: str,
    label: str,
    data: tuple[str, Any],
    seconds: float,
    judged: tuple[int, int],
    build: Callable[[], HelmholtzMachine] | None = None,
) -> Model:
    """A machine in the list, dense unless it is built otherwise; judged by so many images and samples."""

    def make(make_optimizer: MakeOptimizer, batch: BatchSetting, seed: int) -> Learner:
        machine = dense(data) if build is None else build()
        machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
        return MachineLearner(machine, make_optimizer, data, batch, seed, judged)

    return Model(name, label, "machine", seconds, RIVALS, NATURAL, LOG_LIKELIHOOD, make)


MACHINES = (
    entry("mini-machine", "miniMNIST B, machine, 5 layers", ("mini-mnist", "B"), 30, (1000, 100)),
    entry("mnist-machine", "MNIST F, machine, 12 layers", ("mnist", "F"), 20, (500, 50)),
    entry("fashion-machine", "FashionMNIST C, machine, 12 layers", ("fashion-mnist", "C"), 20, (500, 50)),
    entry("grey-machine", "miniMNIST grey, machine, 5 layers", ("mini-mnist", "G"), 20, (1000, 100)),
    entry("conv-machine", "MNIST B, conv/deconv machine", ("mnist", "B"), 15, (400, 25), convolutional),
)
