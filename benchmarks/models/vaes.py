"""Variational autoencoders with Gaussian latents and Bernoulli pixels, dense and convolutional."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagfisher import DAGNaturalGradient

from .common import (
    BatchSetting,
    Learner,
    MakeOptimizer,
    Model,
    held_out,
    load,
    minibatches,
    optimizer_for,
    seeded,
    stream,
)

BOUND = "evidence lower bound (nats)"
DENSE = (BatchSetting(100), BatchSetting(1000))
CONVOLUTIONAL = (BatchSetting(100), BatchSetting(500))
LARGE = (BatchSetting(32), BatchSetting(64))
NATURAL = {DENSE: BatchSetting(250), CONVOLUTIONAL: BatchSetting(100), LARGE: BatchSetting(64)}
"""The batch of the natural gradient, by those of the rivals."""
RULES = {
    "mean": {"family": "gaussian", "log_var": "log_var"},
    "out": "bernoulli",
    nn.Linear: "deterministic",
    nn.Conv2d: "deterministic",
    nn.ConvTranspose2d: "deterministic",
}
"""What the layers of every VAE here are; those with a name of their own first, every other one is deterministic."""


class VAE(nn.Module):
    """x → encoder → (mean, log variance) of z → decoder → logits of x.

    Args:
        shape: of an image as the encoder takes it.
        encoder: gives `width` numbers for each image.
        decoder: gives what `out` takes.
        out: the layer of the logits.
        width: of what the encoder gives.
        latent: numbers in z.
    """

    def __init__(
        self, shape: tuple[int, ...], encoder: nn.Module, decoder: nn.Module, out: nn.Module, width: int, latent: int
    ) -> None:
        super().__init__()
        self.shape, self.encoder = shape, encoder
        self.mean, self.log_var = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder, self.out = decoder, out

    def forward(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(2 * x - 1)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.exp(log_var / 2) * torch.randn(mean.shape, generator=generator)
        return self.out(self.decoder(z)), mean, log_var

    def bound(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The evidence lower bound with one draw of z, the mean over the examples, in nats."""
        logits, mean, log_var = self(x, generator)
        reconstruction = -F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum()
        return (reconstruction - divergence) / len(x)


class VAELearner(Learner):
    """A VAE by reparametrisation; the figure is its evidence lower bound.

    Args:
        model: is trained in place.
        make_optimizer: is given all parameters.
        data: name and binarisation.
        batch: the batch setting.
        seed: of the minibatches and the draws.
        judged: how many images the figure is of.
    """

    def __init__(
        self,
        model: VAE,
        make_optimizer: MakeOptimizer,
        data: tuple[str, Any],
        batch: BatchSetting,
        seed: int,
        judged: int,
    ) -> None:
        optimizer = optimizer_for(model, rules_for(model), make_optimizer)
        images = load(*data)
        super().__init__(model, optimizer, len(images.train))
        self.vae, self.data, self.judged = model, data, judged
        self.batches = minibatches(images, batch.size, seed)
        self.generator = torch.Generator().manual_seed(seed)

    def _learn(self) -> tuple[Tensor, int]:
        x = shaped(next(self.batches), self.vae.shape)
        return learn(self.vae, self.optimizer, x, self.generator), len(x)

    def _evaluate(self, split: str) -> float:
        generator = stream(split)
        images = held_out(*self.data, split, self.judged)
        total = 0.0
        for part in images.split(500):
            total += len(part) * float(self.vae.bound(shaped(part, self.vae.shape), generator))
        return total / len(images)


def learn(model: VAE, optimizer: torch.optim.Optimizer, x: Tensor, generator: torch.Generator) -> Tensor:
    """One training step of a VAE; gives the bound of the minibatch before it."""
    bound = model.bound(x, generator)
    optimizer.zero_grad()
    if isinstance(optimizer, DAGNaturalGradient):
        optimizer.sample_fisher(generator)
    (-bound).backward()
    optimizer.step()
    return bound.detach()


def rules_for(model: VAE) -> dict[Any, Any]:
    """The rules that the model has layers for."""
    kinds = {type(module) for module in model.modules()}
    return {key: rule for key, rule in RULES.items() if isinstance(key, str) or key in kinds}


def shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flat images in that shape; 28×28 pixels are padded to 32×32 and doubled where 64×64 are wanted."""
    if shape == (1, 64, 64):
        return F.interpolate(F.pad(x.reshape(-1, 1, 28, 28), (2, 2, 2, 2)), scale_factor=2, mode="nearest")
    return x.reshape(-1, *shape)


def dense(pixels: int, hidden: int, latent: int, activation: type[nn.Module]) -> VAE:
    """One hidden layer each way."""
    encoder = nn.Sequential(nn.Linear(pixels, hidden), activation())
    decoder = nn.Sequential(nn.Linear(latent, hidden), activation())
    return VAE((pixels,), encoder, decoder, nn.Linear(hidden, pixels), hidden, latent)


def convolutional() -> VAE:
    """28×28 → 16×14×14 → 32×7×7 → z of 20 → 32×7×7 → 16×14×14 → 28×28, stride 2."""
    encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten())
    decoder = nn.Sequential(
        nn.Linear(20, 32 * 7 * 7),
        nn.ReLU(),
        nn.Unflatten(1, (32, 7, 7)),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.ReLU(),
    )
    return VAE((1, 28, 28), encoder, decoder, nn.ConvTranspose2d(16, 1, 4, 2, 1), 32 * 7 * 7, 20)


def four_convolutions() -> VAE:
    """64×64: four 4×4 convolutions of stride 2 with 32, 32, 64 and 64 channels, 256 units, z of 10, and mirrored."""
    channels = (1, 32, 32, 64, 64)
    up: list[nn.Module] = []
    for below, above in itertools.pairwise(channels):
        up += [nn.Conv2d(below, above, 4, 2, 1), nn.ReLU()]
    up += [nn.Flatten(), nn.Linear(64 * 4 * 4, 256), nn.ReLU()]
    down: list[nn.Module] = [nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 64 * 4 * 4), nn.ReLU()]
    down.append(nn.Unflatten(1, (64, 4, 4)))
    for above, below in ((64, 64), (64, 32), (32, 32)):
        down += [nn.ConvTranspose2d(above, below, 4, 2, 1), nn.ReLU()]
    out = nn.ConvTranspose2d(32, 1, 4, 2, 1)
    return VAE((1, 64, 64), nn.Sequential(*up), nn.Sequential(*down), out, 256, 10)


def five_convolutions() -> VAE:
    """64×64: five 3×3 convolutions of stride 2 with 32 to 512 channels and BatchNorm, z of 128, and mirrored."""
    channels = (1, 32, 64, 128, 256, 512)
    up: list[nn.Module] = []
    for below, above in itertools.pairwise(channels):
        up += [nn.Conv2d(below, above, 3, 2, 1), nn.BatchNorm2d(above), nn.LeakyReLU()]
    up.append(nn.Flatten())
    down: list[nn.Module] = [nn.Linear(128, 512 * 2 * 2), nn.Unflatten(1, (512, 2, 2))]
    for above, below in ((512, 256), (256, 128), (128, 64), (64, 32), (32, 32)):
        down += [nn.ConvTranspose2d(above, below, 3, 2, 1, output_padding=1), nn.BatchNorm2d(below), nn.LeakyReLU()]
    out = nn.Conv2d(32, 1, 3, padding=1)
    return VAE((1, 64, 64), nn.Sequential(*up), nn.Sequential(*down), out, 512 * 2 * 2, 128)


def entry(
    name: str,
    label: str,
    data: tuple[str, Any],
    seconds: float,
    build: Callable[[], VAE],
    batches: tuple[BatchSetting, BatchSetting],
    judged: int,
    safety: bool = False,
) -> Model:
    """A VAE in the list; judged by so many images."""

    def make(make_optimizer: MakeOptimizer, batch: BatchSetting, seed: int) -> Learner:
        model = seeded(build, seed)
        assert isinstance(model, VAE)
        return VAELearner(model, make_optimizer, data, batch, seed, judged)

    return Model(name, label, "vae", seconds, batches, NATURAL[batches], BOUND, make, safety)


def flat() -> VAE:
    """784-400-20."""
    return dense(784, 400, 20, nn.ReLU)


def small() -> VAE:
    """196-200-20."""
    return dense(196, 200, 20, nn.Tanh)


MNIST, FASHION = ("mnist", "F"), ("fashion-mnist", "C")
VAES = (
    entry("mini-vae", "miniMNIST B, VAE 196-200-20", ("mini-mnist", "B"), 8, small, DENSE, 2000),
    entry("mnist-vae", "MNIST F, VAE 784-400-20", MNIST, 15, flat, DENSE, 2000),
    entry("fashion-vae", "FashionMNIST C, VAE 784-400-20", FASHION, 15, flat, DENSE, 2000),
    entry("mnist-conv-vae", "MNIST F, convolutional VAE", MNIST, 20, convolutional, CONVOLUTIONAL, 1000),
    entry("fashion-conv-vae", "FashionMNIST C, convolutional VAE", FASHION, 20, convolutional, CONVOLUTIONAL, 1000),
    entry("large-vae", "MNIST F at 64×64, VAE of 4+4 convolutions", MNIST, 20, four_convolutions, LARGE, 250, True),
    entry("norm-vae", "MNIST F at 64×64, VAE with BatchNorm", MNIST, 20, five_convolutions, LARGE, 200, True),
)
