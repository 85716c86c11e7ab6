"""Dataset: three splits of images, and minibatches that can be repeated and resumed; every loader returns one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .distribution import Distribution

Binarisation = Literal["B", "C", "F", "G"]
BINARISATIONS: dict[Binarisation, str] = {
    "B": "rounded at one half",
    "C": "drawn anew at each step",
    "F": "drawn once",
    "G": "grey values, Gaussian pixels",
}
"""What a learner sees of grey values, in a few words."""
Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


class Description(NamedTuple):
    """What a machine has to know of a dataset, without its images."""

    label: str
    """The name and the binarisation."""
    shape: tuple[int, int]
    """(rows, columns) of an image."""
    sizes: tuple[int, int, int]
    """The numbers of images in train, valid and test."""

    @property
    def pixels(self) -> int:
        """The number of pixels of an image."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images of one shape in three splits, one flattened image per row.

    ``binarisation`` says what a learner sees: "B", pixels that were binarised once, a grey value of one half
    or more being 1; "C", pixels drawn anew at each step, a grey value being the probability of a 1; "F", pixels drawn
    in this way, but once, from a fixed seed, and the same ever after; or "G", the grey values themselves. The 256
    levels of uint8 images are dequantised for G: x = (level + u)/256 with u uniform on [0, 1), drawn anew at each
    step, which has a density where the levels have none.

    ``train``, ``valid`` and ``test`` are stored compactly: bool (B, F), uint8 grey values from 0 to 255 (C, G) or
    float32 grey values from 0 to 1 (C, G). ``means`` gives any of them as float32 from 0 to 1.

    ``train_labels``, ``valid_labels`` and ``test_labels`` are the classes of the images in their order, (n,), int64;
    None where they are not known. No machine sees them.
    """

    name: str
    binarisation: Binarisation
    shape: tuple[int, int]
    train: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)
    test: Tensor = field(repr=False)
    distribution: Distribution | None = field(default=None, repr=False)
    train_labels: Tensor | None = field(default=None, repr=False)
    valid_labels: Tensor | None = field(default=None, repr=False)
    test_labels: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for split in SPLITS:
            labels = self.labels(split)
            if labels is not None and labels.shape != (size := len(self.stored(split)),):
                raise ValueError(f"the labels of {split} have shape {tuple(labels.shape)}, for {size} images")

    @property
    def label(self) -> str:
        """The name and the binarisation, as they appear in every output."""
        return f"{self.name} {self.binarisation}"

    @property
    def pixels(self) -> int:
        """The number of pixels of an image."""
        return math.prod(self.shape)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of images in train, valid and test."""
        return len(self.train), len(self.valid), len(self.test)

    @property
    def description(self) -> Description:
        """The label, the shape and the sizes."""
        return Description(self.label, self.shape, self.sizes)

    @property
    def device(self) -> torch.device:
        """Where the images are, and where batches are made."""
        return self.train.device

    def to(self, device: torch.device | str) -> Dataset:
        """The same dataset with its images on ``device``."""
        return replace(
            self,
            train=self.train.to(device),
            valid=self.valid.to(device),
            test=self.test.to(device),
            distribution=None if self.distribution is None else self.distribution.to(device),
            train_labels=None if self.train_labels is None else self.train_labels.to(device),
            valid_labels=None if self.valid_labels is None else self.valid_labels.to(device),
            test_labels=None if self.test_labels is None else self.test_labels.to(device),
        )

    def stored(self, split: Split) -> Tensor:
        """A split as it is stored, by name."""
        images: Tensor = getattr(self, _known(split))
        return images

    def labels(self, split: Split) -> Tensor | None:
        """The labels of a split by name, (n,), int64; None where they are not known."""
        labels: Tensor | None = getattr(self, f"{_known(split)}_labels")
        return labels

    def means(self, split: Split) -> Tensor:
        """A split as float32 from 0 to 1, (n, pixels): pixels (B, F), probabilities of a 1 (C), grey values (G)."""
        return _means(self.stored(split))

    def evaluation(self, split: Split) -> Tensor:
        """A split to be evaluated on, (n, pixels), float32 from 0 to 1, zeros and ones but for G; it never changes.

        B and F give their pixels. C is binarised, and G dequantised, once, drawn on the CPU from a fixed seed for each
        split, so that every run on every device is evaluated on the same images.
        """
        images = self.stored(split)
        return self._seen(images.cpu(), "evaluation", split).to(images.device)

    def bits_per_dimension(self, log_likelihood: float) -> float | None:
        """A mean log-likelihood in nats per image as bits per pixel; for G, of the 256 levels: 8 − log₂ p(x)/pixels.

        That is an upper bound on the bits that the levels take. None for grey values that are not levels.
        """
        if self.binarisation == "G" and self.train.dtype != torch.uint8:
            return None
        levels = 8 if self.binarisation == "G" else 0
        return levels - log_likelihood / (self.pixels * math.log(2))

    def batch_count(self, batch_size: int, split: Split = "train") -> int:
        """The number of minibatches in an epoch; the last one may be smaller than the others."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        return -(-len(self.stored(split)) // batch_size)

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0, split: Split = "train"
    ) -> Iterator[Tensor]:
        """The minibatches of one epoch, float32 from 0 to 1, (batch_size, pixels); the last one may be smaller.

        Every image comes once, in an order drawn anew for each epoch. Batch number i is a function of
        ``seed``, ``epoch``, ``split``, ``batch_size`` and i alone, so an epoch that is resumed at ``start=i``
        continues bit for bit. The order is the same on every device; what C and G draw is drawn on the
        dataset's device, and is the same only on devices of one type.

        Args:
            batch_size: images in a minibatch.
            seed: of the order and of the draws.
            epoch: the number of the epoch, from 0.
            start: the number of the first minibatch.
            split: ``"train"``, ``"valid"`` or ``"test"``.
        """
        count = self.batch_count(batch_size, split)
        if not 0 <= start <= count:
            raise ValueError(f"start is {start}; an epoch of {self.label} has {count} batches of {batch_size}")
        return self._batches(self.stored(split), batch_size, range(start, count), (split, int(seed), int(epoch)))

    def _batches(self, images: Tensor, batch_size: int, numbers: range, key: tuple[str, int, int]) -> Iterator[Tensor]:
        generator = _generator(torch.device("cpu"), "order", *key)
        order = torch.randperm(len(images), generator=generator, device="cpu").to(images.device)
        for number in numbers:
            rows = images.index_select(0, order[number * batch_size : (number + 1) * batch_size])
            yield self._seen(rows, "draw", *key, number)

    def _seen(self, images: Tensor, *key: str | int) -> Tensor:
        """What a learner sees of stored images; the same for the same key."""
        if images.dtype == torch.bool:
            return images.float()
        if self.binarisation == "C":
            return (_uniform(images, *key) < _means(images)).float()
        if images.dtype == torch.uint8:
            return (images + _uniform(images, *key)) / 256
        return images.float()


def _known(split: Split) -> Split:
    if split not in SPLITS:
        raise ValueError(f"{split!r} is not a split; the splits are 'train', 'valid' and 'test'")
    return split


def _means(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _uniform(images: Tensor, *key: str | int) -> Tensor:
    """Numbers in [0, 1), one per pixel."""
    device = images.device
    return torch.rand(images.shape, generator=_generator(device, *key), dtype=torch.float32, device=device)


def _generator(device: torch.device, *key: str | int) -> torch.Generator:
    """A random stream of its own for every key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
