"""How a machine compares with itself before it was trained, on the same examples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EXAMPLES = 200
"""Of valid, at most, on which the untrained machine is evaluated once."""


@dataclass
class Untrained:
    """The log-likelihoods of the untrained machine, and whether the trained one has fallen below them.

    `judge` compares the examples one by one, so that a few of them tell.
    """

    log_p: Tensor
    """Of the first examples of valid, (n,)."""
    below: bool = False
    """Whether the last estimate that was judged is lower by more than its standard error can explain."""
    train_below: bool = False
    """Whether the images that it learned from are below the untrained machine's mean, too."""

    @property
    def mean(self) -> float:
        """The mean log-likelihood of the untrained machine."""
        return float(self.log_p.double().mean())

    def judge(self, log_p: Tensor, train_log_likelihood: float) -> None:
        """Compare with a new estimate of the same examples, (n,) or more, and with the mean of the training images."""
        gains = log_p[: len(self.log_p)].double() - self.log_p.to(log_p.device).double()
        error = float(gains.std()) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        self.below = not float(gains.mean()) + 2 * error >= 0
        self.train_below = not train_log_likelihood >= self.mean

    def state_dict(self) -> dict[str, Tensor | bool]:
        """Plain tensors and numbers."""
        return {"log_p": self.log_p.cpu(), "below": self.below, "train_below": self.train_below}

    @classmethod
    def from_state(cls, state: dict[str, Tensor | bool] | None) -> Untrained | None:
        """What `state_dict` gave; None if a checkpoint has none, as those of version 0.1."""
        if state is None:
            return None
        return cls(torch.as_tensor(state["log_p"]), bool(state["below"]), bool(state["train_below"]))
