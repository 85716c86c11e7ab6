"""Every family is a distribution whose Fisher weight is the variance of its score; a new one is a line of the table."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from dagfisher.families import Bernoulli, Categorical, Family, Gaussian, Poisson
from dagfisher.testing import check_family

F64 = torch.float64


def predictor(outputs: int, low: float = -2.0, high: float = 2.0) -> Tensor:
    return low + (high - low) * torch.rand(3, outputs, generator=torch.Generator().manual_seed(1), dtype=F64)


def outcomes(*each: tuple[float, ...]) -> Tensor:
    return torch.tensor(list(itertools.product(*each)), dtype=F64)


TABLE: dict[str, tuple[Family, Tensor, Tensor | None]] = {
    "bernoulli 0, 1": (Bernoulli(), predictor(2), outcomes((0, 1), (0, 1))),
    "bernoulli -1, 1": (Bernoulli((-1, 1)), predictor(2), outcomes((-1, 1), (-1, 1))),
    "gaussian log_std": (Gaussian(), predictor(4, -0.5, 0.5), None),
    "gaussian log_var": (Gaussian("log_var"), predictor(4, -0.5, 0.5), None),
    "gaussian std": (Gaussian(std=0.7), predictor(2), None),
    "gaussian min_std": (Gaussian(min_std=0.3), predictor(4), None),
    "poisson": (Poisson(), predictor(1), outcomes(tuple(range(100)))),
    "categorical": (Categorical(), predictor(3), torch.eye(3, dtype=F64)),
    "two categorical": (Categorical(2), predictor(4), None),
    "categorical by its diagonal": (Categorical(coupled=False), predictor(3), torch.eye(3, dtype=F64)),
}


@pytest.mark.parametrize(("family", "at", "support"), TABLE.values(), ids=TABLE.keys())
def test_it_keeps_the_contract(family: Family, at: Tensor, support: Tensor | None) -> None:
    check_family(family, at, support=support)
    check_family(family, at)


@dataclass(frozen=True)
class Wrong(Bernoulli):
    """A Bernoulli family with one mistake."""

    mistake: str = ""

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        (q,) = super().fisher_weights(predictor)
        return (2 * q if self.mistake == "fisher" else -q if self.mistake == "sign" else q,)

    def score(self, value: Tensor, predictor: Tensor) -> Tensor:
        return super().score(value, predictor) * (1.1 if self.mistake == "score" else 1)

    def mean(self, predictor: Tensor) -> Tensor:
        return super().mean(predictor) + (0.1 if self.mistake == "mean" else 0)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        return super().log_prob(value, predictor) + (0.1 if self.mistake == "log_prob" else 0)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        drawn = super().sample(predictor, None if self.mistake == "generator" else generator)
        return 1 - drawn if self.mistake == "sample" else drawn

    def entropy(self, predictor: Tensor) -> Tensor:
        return super().entropy(predictor) + (0.1 if self.mistake == "entropy" else 0)

    def entropy_score(self, predictor: Tensor) -> Tensor:
        return Bernoulli().entropy_score(predictor) + (0.1 if self.mistake == "entropy_score" else 0)

    def split(self, outputs: int) -> tuple[int, ...]:
        return (outputs - 1,) if self.mistake == "split" else (outputs,)


MISTAKES = {
    "fisher": "Fisher weight is not the variance",
    "sign": "negative",
    "score": "not the derivative of log_prob",
    "mean": "mean is not the expectation",
    "log_prob": "add up to 1",
    "generator": "same generator",
    "entropy": "entropy is not the expectation",
    "entropy_score": "not the derivative of entropy",
    "split": "do not add up to 2 outputs",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_named(mistake: str) -> None:
    with pytest.raises(AssertionError, match=MISTAKES[mistake]):
        check_family(Wrong(mistake=mistake), predictor(2), support=outcomes((0, 1), (0, 1)))


def test_a_wrong_sample_is_found_by_draws() -> None:
    with pytest.raises(AssertionError, match="mean of the score is not zero"):
        check_family(Wrong(mistake="sample"), predictor(2, 1.0, 2.0))


class Bare(Bernoulli):
    """Only what a family must give: score and entropy_score come from automatic differentiation."""

    score = Family.score
    entropy_score = Family.entropy_score


def test_a_family_may_leave_derivatives_to_autograd() -> None:
    check_family(Bare(), predictor(2), support=outcomes((0, 1), (0, 1)))
