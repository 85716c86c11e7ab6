"""The distributions that a search moves: declared networks that can be drawn from and whose log p(x) is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..errors import ShapeError
from ..families import LateralConditional
from ..nn import MaskedBernoulliLinear


class SearchNetwork(nn.Module):
    """A declared network p(x) that `minimise` can move. Derive your own, with `sample` and `log_prob`.

    Order of life in a generation: `sample`; then `objective` of the samples and their utilities, and `points`, whose
    passes through `log_prob` feed the Fisher; a step; `settle`.
    """

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """So many draws, (n × dimensions), without a gradient."""
        raise NotImplementedError

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x), (n,), of states (n × dimensions), by forward passes of the declared layers."""
        raise NotImplementedError

    def points(self, n: int, generator: Generator | None = None) -> Tensor:
        """States, (m × dimensions), over which the Fisher is averaged: n draws, which cost no evaluation."""
        return self.sample(n, generator)

    def objective(self, x: Tensor, utilities: Tensor) -> Tensor:
        """What a step increases: Σ utilities · log p(x), a number."""
        return (utilities * self.log_prob(x)).sum()

    def groups(self, population: int) -> list[dict[str, Any]]:
        """Param groups for the optimizer, with the settings that suit generations of this size."""
        raise NotImplementedError

    def settle(self, x: Tensor, utilities: Tensor) -> None:
        """Called after each step with the generation that it came from."""

    def reset(self) -> None:
        """Forget what was learned: the distribution of the start."""
        raise NotImplementedError


class BinaryNetwork(SearchNetwork):
    """Binary variables, each with some of those before it as parents: logit of x_j = W_j · x_parents + b_j.

    It starts as the uniform distribution.

    Args:
        mask: (variables × variables), true or 1 where the column is a parent of the row; strictly lower triangular.
        states: the two states of a variable, (0, 1) or (−1, 1).
        lr: of the natural steps.
        damping: of the Fisher blocks, which keeps steps of nearly certain variables short.
    """

    def __init__(
        self,
        mask: Tensor,
        states: tuple[float, float] = (0, 1),
        *,
        lr: float = 1.0,
        damping: float = 0.05,
    ) -> None:
        super().__init__()
        if mask.dim() != 2 or mask.shape[0] != mask.shape[1] or bool(mask.triu().any()):
            raise ShapeError("the mask of a binary network must be square and strictly lower triangular.")
        self.layer = MaskedBernoulliLinear(mask, states=states, dtype=torch.float64)
        self.lr, self.damping = lr, damping
        self.reset()

    def reset(self) -> None:
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.zero_()

    @torch.no_grad()
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        layer = self.layer
        given = layer.bias.expand(n, -1)
        return LateralConditional(layer.family, given, own=layer.mask * layer.weight, logits=layer).sample(generator)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.layer.log_prob(x, x)

    def groups(self, population: int) -> list[dict[str, Any]]:
        settings = {"lr": self.lr, "damping": self.damping, "trust_region": 1.0, "solver": "dense"}
        return [{"params": list(self.layer.parameters()), **settings}]


def independent(variables: int, states: tuple[float, float] = (0, 1), **settings: Any) -> BinaryNetwork:
    """Independent binary variables; further settings as of `BinaryNetwork`."""
    return BinaryNetwork(torch.zeros(variables, variables), states, **settings)


def chain(variables: int, states: tuple[float, float] = (0, 1), *, parents: int = 1, **settings: Any) -> BinaryNetwork:
    """Binary variables each of which has the one before it, or so many before it, as parents.

    Further settings are those of `BinaryNetwork`.
    """
    return BinaryNetwork(torch.ones(variables, variables).tril(-1).triu(-parents), states, **settings)


def fully_visible(variables: int, states: tuple[float, float] = (0, 1), **settings: Any) -> BinaryNetwork:
    """Binary variables each of which has all before it as parents; further settings as of `BinaryNetwork`."""
    return BinaryNetwork(torch.ones(variables, variables).tril(-1), states, **settings)
