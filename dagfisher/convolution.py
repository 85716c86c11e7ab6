"""Patches of parents that each output position of a convolution or transposed convolution sees.

A convolution is a linear layer with one row of parents per output position; its weights as a (channels × patch)
matrix times that row is the output. Any number of spatial dimensions, stride, padding, dilation and padding mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """(B, C, *space) as (B, *positions, C, *kernel): a view of the window of every position."""
    space = len(kernel)
    for axis in range(space):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        x = x.unfold(2 + axis, reach, stride[axis])
        x = x[..., :: dilation[axis]]
    return x.permute(0, *range(2, 2 + space), 1, *range(2 + space, 2 + 2 * space))


def convolution_patches(module: Convolution, x: Tensor) -> Tensor:
    """(B, *positions, C, *kernel) of the padded input of an ordinary convolution."""
    if module.padding_mode == "zeros":
        padded = F.pad(x, module._reversed_padding_repeated_twice)
    else:
        padded = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    return windows(padded, module.kernel_size, module.stride, module.dilation)


def transposed_patches(module: Transposed, x: Tensor, output: Sequence[int]) -> Tensor:
    """(B, *positions, C, *kernel): for each output position the parents that reach it, zeros elsewhere.

    Between the inputs stand stride − 1 zeros; the kernel runs backwards over them.
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
    found = windows(F.pad(stuffed, margins), module.kernel_size, (1,) * space, module.dilation)
    return torch.flip(found, tuple(range(-space, 0)))


def by_group(patches: Tensor, space: int, groups: int) -> list[Tensor]:
    """(B, *positions, C, *kernel) as one (B·positions, C/groups·kernel) matrix per group of channels."""
    return [part.reshape(part.shape[: space + 1].numel(), -1) for part in patches.chunk(groups, dim=1 + space)]
