"""Whether a module's output is what its declared map makes of its parents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._torch import runs_as
from ..declaration import Declaration
from ..errors import DeclarationError
from ..maps import mapped_type

ROWS = 16
"""Rows of a pass that are compared."""


def is_its_map(declaration: Declaration) -> bool:
    """Whether the module can compute nothing but its map: a class of torch's, or derived and not changed, no mask."""
    kind = mapped_type(declaration.module)
    hooks = 1  # that of the declaration
    return kind is not None and declaration.mask is None and runs_as(declaration.module, kind, hooks)


def mismatch(declaration: Declaration, parents: Any, output: Tensor) -> Tensor:
    """How far some rows of the output are from W·parents + b, over what rounding allows; more than 1 is too far."""
    module, how = declaration.module, declaration.map
    n, samples = output.numel() // max(declaration.units, 1), output.shape[0] if output.dim() > 1 else 1
    if isinstance(parents, Tensor) and parents.dim() == output.dim() and parents.shape[0] == samples > 1:
        few = max(1, min(samples, ROWS * samples // max(n, 1)))
        parents, output = parents[:few], output[:few]
    if not n:
        return output.new_zeros(())
    rows = how.rows(module, parents, output.shape)
    predictors = how.predictors(module, output.detach())
    chosen = slice(None, None, -(-len(rows) // ROWS))
    dtype = torch.float64 if predictors.dtype == torch.float64 else torch.float32
    rows, predictors = rows[chosen].to(dtype), predictors[chosen].to(dtype)
    weight, bias = (None if p is None else p.detach().to(dtype) for p in declaration.parameters)
    expected = size = predictors.new_zeros(())
    if weight is not None:
        matrix = how.unit_major(module, weight).reshape(declaration.units, -1)
        mask = declaration.mask_matrix(matrix.device)
        matrix = matrix if mask is None else matrix * mask
        grouped = rows.unsqueeze(1) if rows.dim() == 2 else rows
        pairs = list(zip(grouped.unbind(1), matrix.chunk(grouped.shape[1]), strict=True))
        expected = torch.cat([u @ w.T for u, w in pairs], dim=1)
        # Σ|u||w| is what sums round by; it is at most this.
        size = torch.cat([torch.outer(u.norm(dim=1), w.norm(dim=1)) for u, w in pairs], dim=1)
    for part in (bias, how.offset(module, parents, output.shape)):
        if part is not None:
            part = part.detach().to(dtype)
            part = part[chosen] if part.dim() == 2 and len(part) > len(predictors) else part
            expected, size = expected + part, size + part.abs()
    allowed = (_rounding(output) * size).add_(torch.finfo(dtype).tiny)
    # A NaN is not the map's fault: it is found, and blamed, with the statistics.
    return (expected - predictors).abs_().div_(allowed).nan_to_num_(nan=0.0).amax()


def _rounding(output: Tensor) -> float:
    """The relative error of a sum of products that the output's dtype and device may make."""
    if output.dtype == torch.float64:
        return 1e-9
    if output.dtype == torch.float32:
        return 1e-4 if output.device.type == "cpu" else 4e-3  # accelerators may multiply with 10 bits
    return 4 * torch.finfo(output.dtype).eps


def another_map(declaration: Declaration) -> DeclarationError:
    """What to raise where a module's output is not what its declared map makes of its parents."""
    module = declaration.module
    return DeclarationError(
        f"layer {declaration.name}: the output of this {type(module).__name__} is not weight · input + bias, as a "
        f"{type(declaration.map).__name__} has it, so that its Fisher blocks would be wrong. If its weight is masked, "
        f"declare it with mask=; if it is another linear map, tell dagfisher.register_map; if it is right all the "
        f"same, declare it with check=False."
    )
