"""Patches of parents that each output position of a convolution or transposed convolution sees.

A convolution is a linear layer with one row of parents per output position; its weights as a (channels × patch)
matrix times that row is the output. Any number of spatial dimensions, stride, padding, dilation and padding mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from .base import Map, register_map

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The window of every position: (B, C, space …) as a view (B, positions …, C, kernel …)."""
    space = len(kernel)
    for axis in range(space):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        x = x.unfold(2 + axis, reach, stride[axis])
        x = x[..., :: dilation[axis]]
    return x.permute(0, *range(2, 2 + space), 1, *range(2 + space, 2 + 2 * space))


def _margins(module: Convolution) -> list[int]:
    """The padding as F.pad takes it: before and after, the last axis first."""
    margins: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if isinstance(module.padding, str):
            total = module.dilation[axis] * (module.kernel_size[axis] - 1) if module.padding == "same" else 0
            margins += [total // 2, total - total // 2]
        else:
            margins += [module.padding[axis]] * 2
    return margins


def convolution_patches(module: Convolution, x: Tensor) -> Tensor:
    """The parents of each output position of an ordinary convolution, (B, positions …, C, kernel …)."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return windows(F.pad(x, _margins(module), mode=mode), module.kernel_size, module.stride, module.dilation)


def transposed_patches(module: Transposed, x: Tensor, output: Sequence[int]) -> Tensor:
    """For each output position the parents that reach it, zeros elsewhere, (B, positions …, C, kernel …).

    There are stride − 1 zeros between the inputs, and the kernel runs backwards over them. So it runs forwards over
    them when they are reversed, and the positions come from the last to the first.
    """
    space = len(module.kernel_size)
    stuffed = x.new_zeros(*x.shape[:2], *((s - 1) * t + 1 for s, t in zip(x.shape[2:], module.stride, strict=True)))
    stuffed[(slice(None), slice(None), *(slice(None, None, t) for t in module.stride))] = x
    margins: list[int] = []
    for axis in reversed(range(space)):
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1)
        padding = module.padding[axis]
        assert isinstance(padding, int)
        low = reach - padding
        margins += [low, output[axis] + reach - low - stuffed.shape[2 + axis]]
    reversed_ = torch.flip(F.pad(stuffed, margins), tuple(range(-space, 0)))
    return windows(reversed_, module.kernel_size, (1,) * space, module.dilation)


class _PatchMap(Map):
    """What convolutions and transposed convolutions have in common: samples first, channels second, then space."""

    def units(self, module: Any) -> int:
        return int(module.out_channels)

    def samples(self, module: Any, parents: Any, shape: torch.Size) -> torch.Size:
        space = len(module.kernel_size)
        if parents.dim() not in (space + 1, space + 2):
            raise ShapeError(f"parents of shape {tuple(parents.shape)} are no batch for {space} spatial dimensions.")
        return shape[:1] if len(shape) == space + 2 else torch.Size([1])

    def row_size(self, module: Any) -> int:
        return int(module.in_channels * math.prod(module.kernel_size))

    def patches(self, module: Any, x: Tensor, positions: torch.Size) -> Tensor:
        """The parents of each output position, (B, positions …, C, kernel …).

        Args:
            module: the declared module.
            x: its input, (B, C, space …).
            positions: the spatial shape of its output.
        """
        raise NotImplementedError

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        space = len(module.kernel_size)
        batched = parents if parents.dim() == space + 2 else parents.unsqueeze(0)
        found = self.patches(module, batched.detach(), shape[-space:])
        n = found.shape[: space + 1].numel()
        width = found.shape[space + 1 :].numel() // module.groups
        return found.reshape(n, width) if module.groups == 1 else found.reshape(n, module.groups, width)

    def unit_axis(self, module: Any) -> int:
        return -len(module.kernel_size) - 1

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        channels = self.unit_axis(module)
        return output.movedim(channels, -1).reshape(-1, output.shape[channels])


class ConvolutionMap(_PatchMap):
    """`nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d`: one unit per output channel, one row per sample and output position."""

    def patches(self, module: Any, x: Tensor, positions: torch.Size) -> Tensor:
        return convolution_patches(module, x)


class TransposedMap(_PatchMap):
    """`nn.ConvTranspose1d`, `2d`, `3d`: the row of an output position has the parents that reach it."""

    def patches(self, module: Any, x: Tensor, positions: torch.Size) -> Tensor:
        return transposed_patches(module, x, positions)

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        space = len(module.kernel_size)
        return super().predictors(module, torch.flip(output, tuple(range(-space, 0))))

    def unit_major(self, module: Any, weight: Tensor) -> Tensor:
        grouped = weight.reshape(module.groups, -1, *weight.shape[1:]).transpose(1, 2)
        return grouped.reshape(module.out_channels, -1, *weight.shape[2:])

    def weight_major(self, module: Any, unit_major: Tensor) -> Tensor:
        grouped = unit_major.reshape(module.groups, -1, *unit_major.shape[1:]).transpose(1, 2)
        return grouped.reshape(module.in_channels, -1, *unit_major.shape[2:])


_MAPS: dict[Map, tuple[type[nn.Module], ...]] = {
    ConvolutionMap(): (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    TransposedMap(): (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}
for _map, _kinds in _MAPS.items():
    for _kind in _kinds:
        register_map(_kind, _map)
