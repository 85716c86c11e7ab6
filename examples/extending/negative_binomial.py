"""A family of your own: counts that vary more than Poisson counts do.

    python examples/extending/negative_binomial.py

Fits a regression of such counts by Fisher scoring, which is the natural gradient with lr=1 and no damping. The page
`docs/extending.rst` explains it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

import dagfisher
from dagfisher.families import Family
from dagfisher.testing import check_family


@dataclass(frozen=True)
class NegativeBinomial(Family):
    """A count with variance μ + aμ²; the predictor is log μ: q = μ/(1 + aμ)."""

    dispersion: float = 1.0
    """a."""
    name = "negative_binomial"

    def fisher_weights(self, predictor: Tensor) -> tuple[Tensor, ...]:
        return (torch.sigmoid(predictor + math.log(self.dispersion)) / self.dispersion,)

    def log_prob(self, value: Tensor, predictor: Tensor) -> Tensor:
        shape, odds = 1 / self.dispersion, predictor + math.log(self.dispersion)
        ways = torch.lgamma(value + shape) - torch.lgamma(value + 1) - math.lgamma(shape)
        return ways - shape * softplus(odds) - value * softplus(-odds)

    def sample(self, predictor: Tensor, generator: Generator | None = None) -> Tensor:
        mean = torch.exp(predictor.detach())
        shape = torch.full_like(mean, 1 / self.dispersion)
        # torch.distributions takes no generator: seed torch's own one for a moment.
        with torch.random.fork_rng(enabled=generator is not None):
            if generator is not None:
                device = generator.device
                seed = torch.randint(2**62, (1,), generator=generator, device=device)
                torch.manual_seed(int(seed))
            rate = mean * torch.distributions.Gamma(shape, shape).sample()
        return torch.poisson(rate, generator=generator)

    def mean(self, predictor: Tensor) -> Tensor:
        return torch.exp(predictor)


dagfisher.register_family("negative_binomial", NegativeBinomial)


def check() -> None:
    """It is a distribution, and its Fisher weight is the variance of its score."""
    predictor = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    # (outcomes × units); a higher count is next to impossible.
    counts = torch.arange(200, dtype=torch.float64).unsqueeze(1)
    check_family(NegativeBinomial(dispersion=0.5), predictor, support=counts)
    check_family(NegativeBinomial(dispersion=0.5), predictor)


def make_data(family: NegativeBinomial) -> tuple[Tensor, Tensor]:
    """Three features, and counts whose log means are 0.5, −0.3 and 0.2 times these, plus 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    truth = torch.tensor([[0.5, -0.3, 0.2]], dtype=torch.float64)
    return x, family.sample(x @ truth.T + 1, generator)


def fit(steps: int = 12) -> tuple[nn.Linear, list[float]]:
    """A regression by Fisher scoring, and the length of its gradient at each step."""
    family = NegativeBinomial(dispersion=0.5)
    x, counts = make_data(family)
    layer = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    # The same: declare(layer, "negative_binomial", dispersion=0.5)
    dagfisher.declare(layer, family)
    opt = dagfisher.DAGNaturalGradient(layer.parameters(), lr=1.0, damping=0.0)
    lengths = []
    for _ in range(steps):
        opt.zero_grad()
        loss = -family.log_prob(counts, layer(x)).sum(-1).mean()
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in layer.parameters()])
        lengths.append(float(gradient.norm()))
        opt.step()
    return layer, lengths


if __name__ == "__main__":
    check()
    fitted, lengths = fit()
    print("length of the gradient:", ", ".join(f"{length:.1e}" for length in lengths))
    print("weights:", ", ".join(f"{w:.3f}" for w in fitted.weight[0].tolist()), f"bias: {fitted.bias.item():.3f}")
