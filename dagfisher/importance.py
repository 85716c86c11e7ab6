"""Drawing examples by how long their gradients are: what that saves, and a sampler for data loaders that does it.

A step that averages examples n, drawn with probabilities π_n, each with the weight 1/(N π_n), is right on average for
every π. Its variance is smallest where π_n is proportional to the norm of what the example adds to the step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from .errors import SettingError

__all__ = ["ImportanceSampler", "sampling_variance"]


def sampling_variance(norms: Tensor, weights: Tensor | None = None, mean: float = 0.0) -> float:
    """N⁻² Σ_n norms_n²/π_n − mean²: the trace of the covariance of what one drawn example adds to a step.

    With ``weights=norms`` it is the least that any way of drawing has; with norms from some steps ago as weights, that
    of stale ones. Over the value of uniform drawing it is the share of examples that a step of the same variance needs.

    Args:
        norms: (N), of all examples, in any metric (:meth:`dagfisher.DAGNaturalGradient.example_norms`).
        weights: (N), what the probabilities π are proportional to; None: examples are drawn uniformly.
        mean: the norm of the mean of all gradients, in the same metric; 0 gives the mean square in place of the
            variance.
    """
    squares = norms.double().square()
    shares = torch.ones_like(squares) if weights is None else weights.to(squares)
    seen = squares > 0
    return float((squares[seen] / shares[seen]).sum() * shares.sum()) / len(norms) ** 2 - mean**2


class ImportanceSampler(Sampler[list[int]]):
    """Minibatches of examples, drawn with probabilities that follow the last known norm of each example's gradient.

    Order of life: give it to a ``DataLoader`` as `batch_sampler`; for each minibatch weight the losses by `weights` and
    `update` with the norms. The dataset must give the number of each example along with it.

    The probability of example n is proportional to norm_n + smoothing · mean norm, as Alain smooths stale norms; an
    example whose norm is not known yet counts as the mean.

    Args:
        count: N, the number of examples.
        batch_size: examples in a minibatch; they are drawn with replacement.
        smoothing: 0 follows the norms alone, and infinity draws uniformly.
        generator: of the draws; None: torch's own.
    """

    def __init__(
        self, count: int, batch_size: int, *, smoothing: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        if count < 1 or batch_size < 1 or not smoothing >= 0:
            raise SettingError("count and batch_size must be at least 1, and smoothing at least 0.")
        self.batch_size, self.smoothing, self.generator = batch_size, smoothing, generator
        self.norms = torch.full((count,), torch.nan)
        """(N), the last known norms; NaN where there is none."""
        self._drawn = torch.ones(count)

    def __len__(self) -> int:
        return -(-len(self.norms) // self.batch_size)

    def probabilities(self) -> Tensor:
        """(N), of the next draw."""
        known = ~self.norms.isnan()
        mean = self.norms[known].mean() if known.any() else torch.tensor(0.0)
        if not mean > 0 or self.smoothing == torch.inf:
            return torch.full_like(self.norms, 1 / len(self.norms))
        shares = torch.where(known, self.norms, mean) + self.smoothing * mean
        return shares / shares.sum()

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            shares = self.probabilities().double()
            cumulated = shares.cumsum(0)
            at = torch.rand(self.batch_size, dtype=torch.float64, generator=self.generator) * cumulated[-1]
            drawn = torch.searchsorted(cumulated, at, right=True).clamp_max(len(shares) - 1)
            self._drawn[drawn] = (1 / (len(shares) * shares[drawn])).float()
            yield drawn.tolist()

    def weights(self, examples: Tensor) -> Tensor:
        """1/(N π_n) of drawn examples, shaped like `examples`: the weights of their losses in the mean."""
        return self._drawn.to(examples.device)[examples]

    def update(self, examples: Tensor, norms: Tensor) -> None:
        """Note the norms of the gradients of examples.

        Args:
            examples: (n), their numbers.
            norms: (n), of their own losses; divide norms of weighted losses by the weights.
        """
        self.norms[examples.cpu()] = norms.detach().to(self.norms)
