"""A map of your own: a layer that is linear in fixed features of its input.

    python examples/extending/feature_linear.py

Learns a ring in the plane, which no linear layer can, with Gaussian bumps as the parents of one binary unit. The page
`docs/extending.rst` explains it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher.maps import Map
from dagfisher.testing import check_map


class FeatureLinear(nn.Module):
    """Predictors φ(x) W + b; φ(x) has a bump around each of some fixed centres."""

    def __init__(self, centres: Tensor, units: int, width: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("centres", centres)
        self.width = width
        self.weight = nn.Parameter(centres.new_zeros(len(centres), units))
        self.bias = nn.Parameter(centres.new_zeros(units))

    def features(self, x: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, self.centres).square() / (2 * self.width**2))

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) @ self.weight + self.bias


class FeatureMap(Map):
    """The features are the parents: one row for each sample."""

    def units(self, module: Any) -> int:
        return int(module.weight.shape[1])

    def samples(self, module: Any, parents: Any, shape: torch.Size) -> torch.Size:
        return shape[:-1]

    def row_size(self, module: Any) -> int:
        return len(module.centres)

    def rows(self, module: Any, parents: Any, shape: torch.Size) -> Tensor:
        features: Tensor = module.features(parents.detach())
        return features.reshape(-1, features.shape[-1])

    def predictors(self, module: Any, output: Tensor) -> Tensor:
        return output.reshape(-1, output.shape[-1])

    def unit_major(self, module: Any, weight: Tensor) -> Tensor:
        return weight.T

    def weight_major(self, module: Any, unit_major: Tensor) -> Tensor:
        return unit_major.T


dagfisher.register_map(FeatureLinear, FeatureMap())


def make_layer(units: int = 1) -> FeatureLinear:
    """Bumps on a grid of 5 × 5 centres."""
    line = torch.linspace(-2, 2, 5, dtype=torch.float64)
    return FeatureLinear(torch.cartesian_prod(line, line), units)


def check() -> None:
    """Rows times weights are the output, and the gradient is a sum of rows."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((7, 2), (3, 4, 2)):  # a batch, and a batch of batches
        layer = make_layer(units=3)
        nn.init.normal_(layer.weight, generator=generator)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        check_map(None, layer, x)


def learn(steps: int = 30) -> tuple[FeatureLinear, float]:
    """The layer after so many natural steps, and the share of points it gets right."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(400, 2, generator=generator, dtype=torch.float64) - 2
    inside = ((x.norm(dim=1) > 0.7) & (x.norm(dim=1) < 1.5)).double().unsqueeze(1)

    layer = make_layer()
    dagfisher.declare(layer, "bernoulli")
    opt = dagfisher.DAGNaturalGradient(layer.parameters(), lr=0.5, damping=1e-3)
    for _ in range(steps):
        opt.zero_grad()
        loss = binary_cross_entropy_with_logits(layer(x), inside)
        loss.backward()
        opt.step()
    right = ((layer(x) > 0) == (inside > 0)).double().mean()
    return layer, float(right)


if __name__ == "__main__":
    check()
    print(f"{learn()[1]:.1%} of the points are classified as they are")
