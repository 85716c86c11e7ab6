"""`nn.Linear`: every leading axis of the input is a sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from .base import Map, register_map


class LinearMap(Map):
    """One unit per output feature, one row per sample."""

    def units(self, module: Any) -> int:
        return int(module.out_features)

    def samples(self, module: Any, parents: Any, shape: torch.Size) -> torch.Size:
        expected = module.in_features
        if parents.dim() == 0 or parents.shape[-1] != expected:
            raise ShapeError(f"parents of shape {tuple(parents.shape)} do not end in {expected} features.")
        rows, predictors = parents.shape[:-1].numel(), shape[:-1].numel()
        if rows != predictors:
            raise ShapeError(f"{rows} rows of parents do not fit {predictors} rows of predictors.")
        return shape[:-1]

    def row_size(self, module: Any) -> int:
        return int(module.in_features)

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        rows: Tensor = parents.detach().reshape(-1, parents.shape[-1])
        return rows

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        return output.reshape(-1, output.shape[-1])


register_map(nn.Linear, LinearMap())
