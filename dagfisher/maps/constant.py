"""A layer with no parents but the constant 1: its predictor is its bias, the same for every sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base import Map


class ConstantMap(Map):
    """One unit per entry of the bias; the rows are empty."""

    def parameters(self, module: Any) -> tuple[Tensor | None, Tensor | None]:
        return None, module.bias

    def units(self, module: Any) -> int:
        return int(module.bias.shape[0])

    def samples(self, module: Any, parents: Any, shape: torch.Size) -> torch.Size:
        return shape[:-1]

    def row_size(self, module: Any) -> int:
        return 0

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        bias: Tensor = module.bias
        return bias.new_empty(shape[:-1].numel(), 0)

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        return output.reshape(-1, output.shape[-1])
