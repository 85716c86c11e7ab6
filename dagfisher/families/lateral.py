"""Binary units that see the units before them: the joint distribution of a layer with lateral connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Generator, Tensor

from .._draws import noise
from .bernoulli import Bernoulli
from .conditional import Conditional

BLOCK = 32
"""Units that are drawn one after the other between two matrix products."""


@dataclass(frozen=True)
class LateralConditional(Conditional):
    """p(s | parents) = ∏_j p(s_j | parents, s_1 … s_{j−1}) of Bernoulli units; `predictor` is what the parents give.

    Neither the expectation nor the entropy of the whole layer has a closed form.
    """

    own: Tensor = field(kw_only=True)
    """(units × units), strictly lower triangular: the weight of each unit's state in the logits of those after it."""
    logits: Callable[[Tensor], Tensor] = field(kw_only=True)
    """From states, (… × units), to the logit of every unit given its parents and the states before it."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(value | parents), one number per sample, from one pass."""
        return self.family.log_prob(value, self.logits(value)).sum(-1)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """One draw per sample, unit by unit, without a gradient: O(units²) operations for each sample."""
        family, given = self.family, self.predictor.detach()
        assert isinstance(family, Bernoulli)
        # A unit is up where noise < ρ, that is where its logit less that of the noise is positive. From here on the
        # states are 0 and 1, and each unit is a row.
        low, high = family.states
        own = self.own.detach()
        excess = (given - torch.logit(noise("uniform", given, generator))).reshape(-1, given.shape[-1]).T.contiguous()
        excess += low * own.sum(1, keepdim=True)
        own = (high - low) * own
        bits = torch.empty_like(excess)
        logits, drawn, weights = excess.unbind(0), bits.unbind(0), own.unbind(0)
        for start in range(0, len(own), BLOCK):
            stop = min(start + BLOCK, len(own))
            excess[start:stop].addmm_(own[start:stop, :start], bits[:start])
            for j in range(start, stop):
                if j > start:
                    logits[j].addmv_(bits[start:j].T, weights[j][start:j])
                torch.gt(logits[j], 0, out=drawn[j])
        return family.from_bits(bits.T.reshape(given.shape).contiguous())

    @property
    def mean(self) -> Tensor:
        """Not known in closed form."""
        self._refuse("expectation")

    def entropy(self) -> Tensor:
        """Not known in closed form."""
        self._refuse("entropy")

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"the {what} of units with lateral connections has no closed form; take a mean over samples."
        )
