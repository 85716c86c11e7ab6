"""Every map gives rows whose product with the parameters is the output; a new one is a line of the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dagfisher.maps import ConvolutionMap, LinearMap, Map
from dagfisher.nn import BernoulliConv2d, BernoulliLinear, Prior
from dagfisher.testing import check_map

F64 = torch.float64


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=F64)


TABLE: dict[str, tuple[nn.Module, Any]] = {
    "linear": (nn.Linear(3, 4), x(5, 3)),
    "linear without bias": (nn.Linear(3, 4, bias=False), x(5, 3)),
    "linear on a sequence": (nn.Linear(3, 4), x(5, 2, 3)),
    "bernoulli linear": (BernoulliLinear(3, 4), x(5, 3)),
    "prior": (Prior(4), 5),
    "conv1d": (nn.Conv1d(2, 3, 3, padding=1), x(4, 2, 6)),
    "conv2d": (nn.Conv2d(2, 3, 3, stride=2, padding=(1, 2), dilation=(1, 2)), x(4, 2, 8, 9)),
    "conv2d same": (nn.Conv2d(2, 3, (3, 5), padding="same"), x(4, 2, 5, 5)),
    "conv2d valid": (nn.Conv2d(2, 3, 2, padding="valid"), x(4, 2, 5, 5)),
    "conv2d circular": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), x(4, 2, 5, 5)),
    "conv2d reflect": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), x(4, 2, 5, 5)),
    "conv2d in groups": (nn.Conv2d(4, 6, 3, groups=2), x(3, 4, 5, 5)),
    "conv3d": (nn.Conv3d(2, 2, 2), x(3, 2, 3, 3, 3)),
    "bernoulli conv2d": (BernoulliConv2d(1, 2, 3), x(3, 1, 5, 5)),
    "transposed 1d": (nn.ConvTranspose1d(2, 3, 3, stride=2), x(4, 2, 5)),
    "transposed 2d": (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), x(4, 2, 4, 4)),
    "transposed 2d in groups": (nn.ConvTranspose2d(4, 6, 3, groups=2), x(3, 4, 3, 3)),
    "transposed 3d": (nn.ConvTranspose3d(2, 2, 2, dilation=2), x(3, 2, 2, 2, 2)),
}


@pytest.mark.parametrize(("module", "parents"), TABLE.values(), ids=TABLE.keys())
def test_it_keeps_the_contract(module: nn.Module, parents: Any) -> None:
    check_map(None, module.double(), parents)


class Scaled(LinearMap):
    """Rows that are not those of the module."""

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        return 2 * super().rows(module, parents, shape)


class Shuffled(ConvolutionMap):
    """Rows in the order of the positions, not of the samples."""

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        return super().rows(module, parents, shape).reshape(shape[0], -1, 9).transpose(0, 1).reshape(-1, 9)

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        units = output.shape[1]
        return super().predictors(module, output).reshape(len(output), -1, units).transpose(0, 1).reshape(-1, units)


class Untransposed(ConvolutionMap):
    """A weight whose order is not undone."""

    def unit_major(self, module: Any, weight: Tensor) -> Tensor:
        return weight.flip(0)


class Sized(LinearMap):
    """A row size that is not true."""

    def row_size(self, module: Any) -> int:
        return 1


MISTAKES: dict[str, tuple[Map, nn.Module, Tensor]] = {
    "rows times weights": (Scaled(), nn.Linear(3, 4), x(5, 3)),
    "not next to each other": (Shuffled(), nn.Conv2d(1, 2, 3), x(3, 1, 5, 5)),
    "does not undo unit_major": (Untransposed(), nn.Conv2d(1, 2, 3), x(3, 1, 5, 5)),
    "row_size is not": (Sized(), nn.Linear(3, 4), x(5, 3)),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_found_and_named(words: str) -> None:
    how, module, parents = MISTAKES[words]
    with pytest.raises(AssertionError, match=words):
        check_map(how, module.double(), parents)
