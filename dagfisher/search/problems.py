"""Functions to try a search on, whose least value is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import SettingError


@dataclass(frozen=True)
class Problem:
    """A function to minimise; call it with states (n × dimensions) for n values."""

    name: str
    dimensions: int
    least: float
    """Its minimum."""
    f: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.f(x)


def _rotation(d: int, seed: int) -> Tensor:
    found: Tensor = torch.linalg.qr(_uniform((d, d), seed) * 2 - 1).Q
    return found


def _uniform(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ellipsoid(d: int, seed: int = 0) -> Problem:
    """Σ 10^(6i/(d−1)) y_i² with y a rotation of x: a bowl, a thousand times longer than wide; 0 at the origin."""
    scales, rotation = torch.logspace(0, 6, d, dtype=torch.float64), _rotation(d, seed)
    return Problem("rotated ellipsoid", d, 0.0, lambda x: (x @ rotation.T).square() @ scales)


def rosenbrock(d: int) -> Problem:
    """Σ 100 (x_{i+1} − x_i²)² + (1 − x_i)²: a bent valley; 0 where all coordinates are 1."""

    def f(x: Tensor) -> Tensor:
        here, following = x[:, :-1], x[:, 1:]
        return (100 * (following - here.square()).square() + (1 - here).square()).sum(1)

    return Problem("Rosenbrock", d, 0.0, f)


def rastrigin(d: int, seed: int = 0) -> Problem:
    """10d + Σ y_i² − 10 cos 2πy_i with y a rotation of x: very many local minima; 0 at the origin."""
    rotation = _rotation(d, seed)

    def f(x: Tensor) -> Tensor:
        y = x @ rotation.T
        return 10 * d + (y.square() - 10 * torch.cos(2 * math.pi * y)).sum(1)

    return Problem("rotated Rastrigin", d, 0.0, f)


def nk_landscape(variables: int, neighbours: int, seed: int = 0) -> Problem:
    """−mean of a random table per variable, looked up by it and its next neighbours, in a circle; states 0 and 1.

    The minimum is found by dynamic programming.
    """
    if not 0 <= neighbours < variables:
        raise SettingError("an NK landscape needs fewer neighbours than variables.")
    tables = _uniform((variables, 2 ** (neighbours + 1)), seed)
    near = (torch.arange(variables)[:, None] + torch.arange(neighbours + 1)) % variables
    powers = 2 ** torch.arange(neighbours + 1)

    def f(x: Tensor) -> Tensor:
        return -tables[torch.arange(variables), (x.long()[:, near] * powers).sum(-1)].mean(-1)

    return Problem("NK landscape", variables, -_largest_sum(tables) / variables, f)


def _largest_sum(tables: Tensor) -> float:
    """The largest sum of entries, one of each table, whose bits agree around the circle."""
    variables, k = len(tables), int(math.log2(tables.shape[1])) - 1
    states = torch.arange(2**k)
    shifted = tables.reshape(variables, 2, 2**k)  # [i, bit of variable i+k, bits of variables i … i+k−1]
    best = -math.inf
    for first in states.tolist():
        value = torch.where(states == first, 0.0, -math.inf).double()
        for i in range(variables):
            following = torch.full_like(value, -math.inf)
            wraps = i + k >= variables
            for bit in (0, 1):
                if wraps and k and bit != first >> (i + k - variables) & 1:
                    continue
                reached = (states + (bit << k)) >> 1
                following = following.scatter_reduce(0, reached, value + shifted[i, bit], "amax")
            value = following
        best = max(best, float(value[first]))
    return best


def max_sat(variables: int, clauses: int, seed: int = 0) -> Problem:
    """The number of violated clauses, of three literals each, of a random formula that can be satisfied; 0 at best."""
    generator = torch.Generator().manual_seed(seed)
    solution = torch.randint(0, 2, (variables,), generator=generator)
    which: list[Tensor] = []
    wanted: list[Tensor] = []
    while len(which) < clauses:
        places = torch.randperm(variables, generator=generator)[:3]
        signs = torch.randint(0, 2, (3,), generator=generator)
        if bool((solution[places] == signs).any()):
            which.append(places)
            wanted.append(signs)
    places, signs = torch.stack(which), torch.stack(wanted)
    return Problem("MaxSAT", variables, 0.0, lambda x: (x.long()[:, places] != signs).all(-1).sum(-1).double())
