"""Binary layers whose units see the units before them."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..capture import observe
from ..families import LateralConditional
from .masked import MaskedBernoulliLinear


class LateralBernoulliLinear(MaskedBernoulliLinear):
    """Binary units that each see the parents and the units before it: p(s | parents) = ∏_j p(s_j | parents, s_<j).

    The module is one masked linear map of cat(parents, own states), (… × in_features + out_features), to the logits.
    With no parents it is a fully visible belief net.

    Args:
        in_features, out_features: the numbers of parents outside the layer, at least 0, and of units.
        bias: whether the units have biases.
        states: the lower and the upper state, (0, 1) or (−1, 1).
        where: ``device`` and ``dtype``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        states: tuple[float, float] = (0, 1),
        **where: Any,
    ) -> None:
        before = torch.ones(out_features, out_features).tril(-1)
        super().__init__(torch.cat([torch.ones(out_features, in_features), before], 1), bias, states=states, **where)
        self.outside = in_features
        """The number of parents outside the layer."""
        with torch.no_grad():
            self.weight.mul_(self.mask)

    def predictor(self, parents: Tensor, states: Tensor) -> Tensor:
        """The logit of every unit given its parents and the states before it; captured like a forward pass.

        Args:
            parents: (… × in_features).
            states: of the units themselves, (… × out_features). The leading axes of both are broadcast: what few rows
                give is computed once.
        """
        if parents.shape[:-1] == states.shape[:-1]:
            return cast(Tensor, self(self.joined(parents, states)))
        outside, own = self._weights()
        predictor = F.linear(parents, outside, self.bias) + F.linear(states, own)
        if self.training and torch.is_grad_enabled():
            observe(self, self.joined(parents, states), predictor)
        return predictor

    def joined(self, parents: Tensor, states: Tensor) -> Tensor:
        """cat(parents, own states) with broadcast leading axes: what the forward pass takes."""
        leading = torch.broadcast_shapes(parents.shape[:-1], states.shape[:-1])  # type: ignore[no-untyped-call]
        return torch.cat([parents.expand(*leading, -1), states.expand(*leading, -1)], -1)

    def distribution(self, parents: Tensor) -> LateralConditional:
        """p(· | parents), over (… × units)."""
        outside, own = self._weights()
        given = F.linear(parents, outside, self.bias)
        return LateralConditional(self.family, given, own=own, logits=lambda states: self.predictor(parents, states))

    def _weights(self) -> tuple[Tensor, Tensor]:
        """Of the parents, and of the units before each, without what is under the mask."""
        weight = self.mask * self.weight
        return weight[:, : self.outside], weight[:, self.outside :]
