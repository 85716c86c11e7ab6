"""Random numbers that do not depend on how many processes share a minibatch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor


class Part(NamedTuple):
    """The examples of a minibatch that are drawn for here."""

    start: int
    stop: int
    whole: int
    """How many examples the minibatch has."""
    samples: int
    """Draws for each example."""


class PartGenerator(Generator):
    """A generator that can draw for a part of a minibatch as if for all of it.

    While it has a `part`, `noise` draws the numbers of the whole minibatch and gives those of the part. So each of
    several processes gets the numbers that one process would use for its examples, and all of them end in the same
    state.
    """

    part: Part | None = None


def noise(kind: Literal["uniform", "normal"], like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform numbers in [0, 1), or normal ones, as many as `like` has.

    Args:
        kind: of the distribution.
        like: (… × units), rows sample-major if the generator draws for a part of a minibatch.
        generator: of the numbers; None: torch's own.
    """
    part = generator.part if isinstance(generator, PartGenerator) else None
    size = like.shape if part is None else torch.Size([part.samples, part.whole, like.shape[-1]])
    drawn = torch.empty(size, dtype=like.dtype, device=like.device)
    drawn = drawn.uniform_(generator=generator) if kind == "uniform" else drawn.normal_(generator=generator)
    return drawn if part is None else drawn[:, part.start : part.stop].reshape(like.shape)
