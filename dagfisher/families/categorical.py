"""One-hot variables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..errors import DeclarationError
from .base import Family, register_family


@dataclass(frozen=True)
class Categorical(Family):
    """One-hot variables of `classes` units each (default: the whole layer is one variable); predictors are logits.

    The Fisher information about the logits of a variable couples them, diag(π) − ππᵀ. With `coupled` the blocks are
    those of whole variables, exactly; without it each logit has a block of its own, the diagonal π(1−π).
    """

    classes: int | None = None
    coupled: bool = True
    """Units of each variable; None: all units of the layer are one variable."""
    name = "categorical"

    def split(self, outputs: int) -> tuple[int, ...]:
        whole = self.classes is None or (isinstance(self.classes, int) and self.classes >= 2)
        if not whole or outputs % (self.classes or 1):
            raise DeclarationError(
                f"a categorical layer of {outputs} outputs cannot be divided into variables of {self.classes} classes."
            )
        return (outputs,)

    def coupling(self, outputs: int) -> int:
        return (self.classes or outputs) if self.coupled else 1

    def _log_softmax(self, predictor: Tensor) -> Tensor:
        classes = self.classes or predictor.shape[-1]
        grouped = predictor.reshape(*predictor.shape[:-1], -1, classes)
        return torch.log_softmax(grouped, dim=-1)

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        if self.coupled:
            return (self.mean(predictor),)
        # 1 − π of the likeliest class is the sum of the others, which does not cancel when π is nearly 1.
        probability = torch.exp(self._log_softmax(predictor))
        likeliest = probability.argmax(-1, keepdim=True)
        others = probability.scatter(-1, likeliest, 0).sum(-1, keepdim=True)
        complement = (1 - probability).scatter(-1, likeliest, others)
        return ((probability * complement).reshape(predictor.shape),)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        """The log-probability of the class that is one; the other units of the variable contribute nothing."""
        return value * self._log_softmax(predictor).reshape(predictor.shape).masked_fill(value == 0, 0)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        return value - self.mean(predictor)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        probability = torch.exp(self._log_softmax(predictor.detach()))
        drawn = torch.multinomial(probability.flatten(0, -2), 1, generator=generator)
        one_hot = torch.zeros_like(probability.flatten(0, -2)).scatter_(1, drawn, 1)
        return one_hot.reshape(predictor.shape)

    def mean(self, predictor: Tensor) -> Tensor:
        return torch.exp(self._log_softmax(predictor)).reshape(predictor.shape)

    def entropy(self, predictor: Tensor) -> Tensor:
        """−π log π per unit; the sum over a variable's units is its entropy."""
        log_p = self._log_softmax(predictor)
        return -(torch.exp(log_p) * log_p.masked_fill(log_p == -math.inf, 0)).reshape(predictor.shape)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        log_p = self._log_softmax(predictor)
        p, finite = torch.exp(log_p), log_p.masked_fill(log_p == -math.inf, 0)
        entropy = -(p * finite).sum(-1, keepdim=True)
        return (-p * (finite + entropy)).reshape(predictor.shape)


register_family("categorical", Categorical)
