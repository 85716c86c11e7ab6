"""An algorithm of your own: VIMCO (Mnih and Rezende, 2016), with plain and with natural gradients.

    python examples/extending/vimco.py

Trains a small machine on three-by-three with both. The page `docs/extending.rst` explains it.
"""

import dataclasses

import torch
from torch import Tensor

from dagfisher import datasets
from dagfisher.helmholtz import Algorithm, HelmholtzMachine, Step, Trainer, register_algorithm
from dagfisher.helmholtz.algorithms import importance_weights


def credit(step: Step) -> Tensor:
    """Each sample's share of log Σ p/q, less its pull through q itself, (S, B)."""
    ratio = step.wake.log_ratio  # log p(x, h) − log q(h|x), (S, B)
    samples, batch = ratio.shape
    # What the bound would be if a sample were replaced by the mean of the others.
    others = (ratio.sum(0) - ratio) / (samples - 1)
    own = torch.eye(samples, dtype=torch.bool, device=ratio.device)[:, :, None]
    without = torch.where(own, others[:, None], ratio[None])  # (replaced, sample, example)
    return (ratio.logsumexp(0) - without.logsumexp(1)) / batch - step.weights


VIMCO = Algorithm(
    name="vimco",
    summary="multi-sample bound; q by each sample's share of it",
    weights=importance_weights,
    recognition=credit,
    least_samples=2,
    lr=0.05,
)
NATURAL = {"solver": "auto", "lr": 0.2}
NVIMCO = dataclasses.replace(VIMCO, name="nvimco", summary="natural VIMCO", **NATURAL)

register_algorithm(VIMCO)
register_algorithm(NVIMCO)


def learn(algorithm: str | Algorithm, epochs: int = 3) -> tuple[float, float]:
    """The exact mean log-likelihood of the test data before and after training."""
    data = datasets.load("three-by-three")
    torch.manual_seed(0)
    machine = HelmholtzMachine([9, 6, 1], states=(0, 1))
    x = data.means("test")
    before = machine.exact_log_likelihood(x).mean()
    Trainer(machine, algorithm, samples=5).fit(data, epochs, batch_size=50)
    return float(before), float(machine.exact_log_likelihood(x).mean())


if __name__ == "__main__":
    for each in ("vimco", "nvimco"):
        print("{}: {:.2f} nats before, {:.2f} after".format(each, *learn(each)))
