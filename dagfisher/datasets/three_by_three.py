"""Kirby's world of 3×3 images (K. G. Kirby, "A Tutorial on Helmholtz Machines", 2006).

An image shows one or two vertical bars (probability 2/3) or one or two horizontal bars (probability 1/3),
each of the six images of a kind being as likely as the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dataset import Dataset
from .distribution import Distribution

SIDE = 3
COPIES = 100


def distribution() -> Distribution:
    """The exact distribution over all 512 images, pixels row by row, the first the most significant bit."""
    vertical = _vertical()
    patterns = _bits(torch.arange(2 ** (SIDE * SIDE), device="cpu"), SIDE * SIDE)
    probabilities = torch.zeros(len(patterns), dtype=torch.float64, device="cpu")
    for images, each in ((vertical, 2 / 18), (vertical.mT, 1 / 18)):
        for image in images:
            probabilities[(patterns == image.reshape(-1)).all(1)] = each
    return Distribution(patterns.float(), probabilities)


def load() -> Dataset:
    """Bars as a dataset without sampling error.

    Each image with vertical bars is there twice as often as each with horizontal bars: 200 and 100 times in
    ``train``, twice and once in ``valid`` and ``test``. So the mean log-likelihood of ``test`` *is* the
    expected log-likelihood.
    """
    vertical = _vertical()
    once = torch.cat([vertical, vertical, vertical.mT]).reshape(-1, SIDE * SIDE).bool()
    return Dataset(
        name="three-by-three",
        binarisation="B",
        shape=(SIDE, SIDE),
        train=once.repeat(COPIES, 1),
        valid=once,
        test=once,
        distribution=distribution(),
    )


def _vertical() -> Tensor:
    """The six images with one or two vertical bars."""
    return _bits(torch.arange(1, 2**SIDE - 1, device="cpu"), SIDE)[:, None, :].expand(-1, SIDE, -1)


def _bits(numbers: Tensor, length: int) -> Tensor:
    """The binary digits of each number, the most significant first."""
    return (numbers[:, None] >> torch.arange(length - 1, -1, -1, device="cpu")) & 1
