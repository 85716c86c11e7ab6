"""The models whose optimizers version 0.1 saved, and one step of their training; each step draws by its own number."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient

F64 = torch.float64
SAVED, FURTHER = 7, 5
"""Steps before an optimizer was saved, and steps after that."""


class Small(nn.Module):
    """Every kind of layer and of solver: Bernoulli, a Gaussian of two heads, a convolution, and one undeclared."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 5)
        self.mean, self.log_var = nn.Linear(5, 3), nn.Linear(5, 3)
        self.conv = nn.Conv2d(1, 2, 2)
        self.counts = nn.Linear(5, 2)
        self.shift = nn.Linear(6, 6)
        dagfisher.declare(self.hidden, "bernoulli")
        dagfisher.declare_gaussian(mean=self.mean, log_var=self.log_var)
        dagfisher.declare(self.conv, "bernoulli")
        dagfisher.declare(self.counts, "poisson")

    def forward(self, draws: torch.Generator) -> Tensor:
        """The loss of a minibatch."""
        x = torch.rand(8, 6, generator=draws, dtype=F64)
        h = (torch.rand(8, 5, generator=draws, dtype=F64) < x[:, :5]).to(F64)
        y = torch.rand(8, 3, generator=draws, dtype=F64) + h[:, :3]
        picture = torch.rand(8, 1, 4, 4, generator=draws, dtype=F64)
        loss = F.binary_cross_entropy_with_logits(self.hidden(x + torch.tanh(self.shift(x))), h, reduction="sum")
        log_var = self.log_var(h)
        loss = loss + 0.5 * ((y - self.mean(h)).square() * torch.exp(-log_var) + log_var).sum()
        logits = self.conv(picture)
        bits = (picture[:, :, 1:, 1:] > 0.4).to(F64).expand_as(logits)
        loss = loss + F.binary_cross_entropy_with_logits(logits, bits, reduction="sum")
        log_rates = self.counts(h)
        return (loss + (torch.exp(log_rates) - torch.floor(2 * y[:, :2]) * log_rates).sum()) / 8


class Large(nn.Module):
    """A convolution with more than 2²² numbers in its rows, which leaves Gram matrices in its window."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        dagfisher.declare(self.conv, "bernoulli", max_rows=math.inf)  # all rows count, as they did

    def forward(self, draws: torch.Generator) -> Tensor:
        """The loss of a minibatch."""
        picture = torch.rand(8, 1, 250, 250, generator=draws, dtype=F64)
        with dagfisher.sample_weights(torch.rand(8, generator=draws, dtype=F64) + 0.5):
            logits = self.conv(picture)
        return F.binary_cross_entropy_with_logits(logits, (picture > 0.4).to(F64).expand_as(logits))


def small() -> tuple[nn.Module, DAGNaturalGradient]:
    """The model as it was made, and its optimizer."""
    model = _started(Small())
    groups = [
        {"params": model.hidden.parameters(), "solver": "woodbury"},
        {"params": [*model.mean.parameters(), *model.log_var.parameters()], "solver": "conjugate"},
        {"params": model.conv.parameters(), "solver": "dense", "damping": 2.0},
        {"params": model.counts.parameters(), "solver": "diagonal"},
        {"params": model.shift.parameters()},
    ]
    return model, DAGNaturalGradient(groups, lr=0.02, damping=0.2, update_every=4, window=2, momentum=0.8)


def large() -> tuple[nn.Module, DAGNaturalGradient]:
    """The model as it was made, and its optimizer."""
    model = _started(Large())
    optimizer = DAGNaturalGradient(
        model.named_parameters(), lr=0.02, damping=5.0, update_every=4, window=2, betas=(0.9, 0.99)
    )
    return model, optimizer


MODELS: dict[str, Callable[[], tuple[nn.Module, DAGNaturalGradient]]] = {"optimizer-0.1": small, "grams-0.1": large}
"""By the name of the file."""


def _started(model: nn.Module) -> nn.Module:
    model.to(F64)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draws, dtype=F64) - 0.5)
    return model


def train(model: nn.Module, optimizer: DAGNaturalGradient, first: int, last: int) -> None:
    """Take the steps with these numbers, the last one not among them."""
    for number in range(first, last):
        optimizer.zero_grad()
        model(torch.Generator().manual_seed(number)).backward()
        optimizer.step()
