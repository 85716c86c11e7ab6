"""The mathematics once more, slowly and in float64: what the tests compare the package with.

Nothing here is taken from the package: the linear systems are solved by numpy one unit at a time, and Fisher matrices
come from scores, Hessians and Jacobians of automatic differentiation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import torch
from torch import Tensor

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.solvers import RowProblem

# Linear algebra


def blocks_of(parents: Tensor, weights: Tensor, damping: float) -> np.ndarray:
    """αI + Uᵀ diag(weights_j) U for every column j of the weights, in float64."""
    u, q = parents.double().numpy(), weights.double().numpy()
    return np.stack([damping * np.eye(u.shape[1]) + (u * q[:, [j]]).T @ u for j in range(q.shape[1])])


def solve_rows(blocks: np.ndarray, gradient: Tensor) -> Tensor:
    """Row j of the gradient times the inverse of block j, or of the only block."""
    g = gradient.double().numpy()
    rows = [np.linalg.solve(blocks[j if len(blocks) > 1 else 0], g[j]) for j in range(len(g))]
    return torch.from_numpy(np.stack(rows))


def natural(parents: Tensor, weights: Tensor, gradient: Tensor, damping: float) -> Tensor:
    """(1+α)(αI + F_j)⁻¹ g_j, for every unit."""
    return (1 + damping) * solve_rows(blocks_of(parents, weights, damping), gradient)


def attainable(parents: Tensor, weights: Tensor, damping: float, dtype: torch.dtype, solver: str = "dense") -> float:
    """The relative error that a step may have: 1e-10 in float64, 1e-4 in float32, or what rounding costs if more.

    Rounding one number of the problem by ε moves the solution by up to ε κ, with κ = λmax/α bounding the condition of
    every damped block. Only beyond κ ≈ 3·10⁴ (float64) and κ ≈ 50 (float32) is that more than the fixed bounds. With
    more samples than parents, Woodbury's n × n matrices are singular but for α, and its subtraction costs κ once more.
    """
    kappa = max(np.linalg.norm(block, 2) for block in blocks_of(parents, weights, damping)) / damping
    outside = solver == "woodbury" and len(parents) > parents.shape[1]
    fixed = 1e-10 if dtype == torch.float64 else 1e-4
    return max(fixed, 16 * torch.finfo(dtype).eps * float(kappa ** (2 if outside else 1)))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ of the unit where it is largest."""
    difference = (found.double() - expected.double()).norm(dim=-1)
    return float((difference / expected.double().norm(dim=-1).clamp_min(1e-300)).max())


def residual(parents: Tensor, weights: Tensor, damping: float, gradient: Tensor, solution: Tensor) -> float:
    """‖g − (αI + F)x‖ / ‖g‖ of a whole layer, in float64 and with every row of U."""
    blocks = torch.from_numpy(blocks_of(parents, weights, damping))
    left = gradient.double() - torch.einsum("jde,je->jd", blocks.expand(len(gradient), -1, -1), solution.double())
    return float(left.norm() / gradient.double().norm())


# Fisher matrices by automatic differentiation


def states(units: int, low: float, high: float) -> Tensor:
    """All 2^units configurations, one per row."""
    return torch.tensor(list(itertools.product((low, high), repeat=units)), dtype=torch.float64)


def score_covariance(log_prob: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """Σ_s p(s) ∇log p(s) ∇log p(s)ᵀ over all states s, of which `log_prob(theta)` gives the log-probabilities."""
    scores = torch.autograd.functional.jacobian(log_prob, theta)
    return scores.T @ (log_prob(theta).exp().unsqueeze(1) * scores)


def gaussian_fisher(mean: Callable[[Tensor], Tensor], variance: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """∂ᵢμᵀ Σ⁻¹ ∂ⱼμ + ½ tr(Σ⁻¹ ∂ᵢΣ Σ⁻¹ ∂ⱼΣ) for one μ(θ) and one full covariance matrix Σ(θ)."""
    d_mean = torch.autograd.functional.jacobian(mean, theta)
    d_cov = torch.autograd.functional.jacobian(variance, theta)
    precision = torch.linalg.inv(variance(theta))
    spread = torch.einsum("ab,bci->aci", precision, d_cov)
    return d_mean.T @ precision @ d_mean + 0.5 * torch.einsum("abi,baj->ij", spread, spread)


def block_diagonal(blocks: Tensor) -> Tensor:
    """The matrix with these blocks (units, d, d) on its diagonal and zeros elsewhere."""
    return torch.block_diag(*blocks)


def fisher_of(optimizer: DAGNaturalGradient, parameter: Tensor, damping: float) -> Tensor:
    """F_j, (units, d, d), from the damped and renormalised blocks that the optimizer shows."""
    damped = optimizer.fisher_blocks(parameter)
    return (1 + damping) * damped - damping * torch.eye(damped.shape[-1], dtype=damped.dtype)


# Layers under test


@dataclass
class Layer:
    """A declared linear layer, with the Fisher weights that its family has by the book."""

    module: torch.nn.Linear
    fisher_weights: Callable[[Tensor], Tensor]
    """q (n × outputs) from the predictor (n × outputs)."""


def _bernoulli_q(a: Tensor) -> Tensor:
    return 1 / (2 + torch.exp(a) + torch.exp(-a))


def _gaussian_q(scale: float, constant: float) -> Callable[[Tensor], Tensor]:
    def q(a: Tensor) -> Tensor:
        log_std = scale * a.chunk(2, dim=-1)[1]
        return torch.cat([1 / log_std.exp().square(), torch.full_like(log_std, constant)], dim=-1)

    return q


def _categorical_q(a: Tensor) -> Tensor:
    p = a.exp() / a.exp().sum(-1, keepdim=True)
    return p - p.square()


FAMILIES: dict[str, tuple[str, dict[str, object], Callable[[Tensor], Tensor]]] = {
    "bernoulli 0,1": ("bernoulli", {"states": (0, 1)}, _bernoulli_q),
    "bernoulli -1,1": ("bernoulli", {"states": (-1, 1)}, _bernoulli_q),
    "gaussian log_std": ("gaussian", {"scale": "log_std"}, _gaussian_q(1.0, 2.0)),
    "gaussian log_var": ("gaussian", {"scale": "log_var"}, _gaussian_q(0.5, 0.5)),
    "gaussian std": ("gaussian", {"std": 0.7}, lambda a: torch.full_like(a, 1 / 0.49)),
    "poisson": ("poisson", {}, torch.exp),
    "categorical": ("categorical", {"coupled": False}, _categorical_q),
}


def make_layer(family: str, parents: int, outputs: int, *, bias: bool = True, dtype: torch.dtype, seed: int) -> Layer:
    """A declared layer with random parameters; `outputs` must be even for a Gaussian with a scale."""
    name, settings, q = FAMILIES[family]
    module = torch.nn.Linear(parents, outputs, bias=bias, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.normal_(generator=generator).mul_(0.5)
    dagfisher.declare(module.to(dtype), name, **settings)
    return Layer(module, q)


def by_the_book(layer: Layer, inputs: Tensor, sample_weights: Tensor) -> tuple[Tensor, Tensor]:
    """U (n × d) and w_k q_jk (n × outputs) of a layer, in float64, from its parameters."""
    module = layer.module
    predictor = inputs.double() @ module.weight.detach().double().T
    parents = inputs.double()
    if module.bias is not None:
        predictor = predictor + module.bias.detach().double()
        parents = torch.cat([parents, torch.ones(len(parents), 1, dtype=torch.float64)], dim=1)
    share = sample_weights.double() / sample_weights.double().sum()
    return parents, layer.fisher_weights(predictor) * share.unsqueeze(1)


def matrix_of(module: torch.nn.Module, of: Callable[[Tensor], Tensor | None]) -> Tensor:
    """Something of weight and bias (values, gradients, vectors) as one float64 matrix, one row per unit."""
    parts = [of(p) for p in module.parameters()]
    return torch.cat([p.detach().double().reshape(p.shape[0], -1) for p in parts if p is not None], dim=1)


# Problems that hypothesis may choose


@dataclass
class Case:
    """Parents and weights of a layer, with the gradients of two steps."""

    parents: Tensor
    weights: Tensor
    damping: float
    first: Tensor
    second: Tensor
    seed: int

    def problem(self, dtype: torch.dtype = torch.float64, tolerance: float = 0.0, update_every: int = 1) -> RowProblem:
        """What a solver is given."""
        parents, weights, gradient = (t.to(dtype) for t in (self.parents, self.weights, self.first))
        return RowProblem(parents, weights, self.damping, gradient, tolerance, update_every)


def random_parents(kind: str, n: int, d: int, generator: torch.Generator) -> Tensor:
    """Rows of U: real, binary, or real and repeated; the last column is the constant 1."""
    if kind == "real":
        parents = torch.randn(n, d, generator=generator, dtype=torch.float64)
    elif kind == "repeated":
        few = torch.randn(max(1, n // 3), d, generator=generator, dtype=torch.float64)
        parents = few[torch.randint(len(few), (n,), generator=generator)]
    else:
        low = {"0,1": 0.0, "-1,1": -1.0}[kind]
        bits = torch.randint(2, (n, d), generator=generator).double()
        parents = bits * (1 - low) + low
    parents[:, -1] = 1
    return parents


def random_sample_weights(kind: str, n: int, generator: torch.Generator) -> Tensor:
    """Weights of n samples: equal, uneven, with zeros, or concentrated on one."""
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    if kind == "equal":
        weights = torch.ones(n, dtype=torch.float64)
    elif kind == "uneven":
        weights = noise.exp()
    elif kind == "zeros":
        weights = noise.exp() * torch.randint(2, (n,), generator=generator)
        weights[0] = 1
    else:
        weights = torch.softmax(20 * noise, 0)
    return weights / weights.sum()


PARENTS = ("real", "repeated", "0,1", "-1,1")
SAMPLE_WEIGHTS = ("equal", "uneven", "zeros", "concentrated")


@st.composite
def cases(draw: st.DrawFn, largest: int = 14, least_damping: float = 1e-3) -> Case:
    """Any small layer: one sample or many, one unit or many, n < d or n > d, saturated units, shared weights."""
    n, d = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    units = draw(st.integers(1, 6))
    kinds = draw(st.sampled_from(PARENTS)), draw(st.sampled_from(SAMPLE_WEIGHTS))
    saturation = draw(st.sampled_from([0.1, 2.0, 60.0]))
    shared = draw(st.booleans())
    damping = 10 ** draw(st.floats(np.log10(least_damping), 1.0))
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    parents = random_parents(kinds[0], n, d, generator)
    logits = saturation * (2 * torch.rand(n, 1 if shared else units, generator=generator, dtype=torch.float64) - 1)
    weights = _bernoulli_q(logits) * random_sample_weights(kinds[1], n, generator).unsqueeze(1)
    first, second = torch.randn(2, units, d, generator=generator, dtype=torch.float64)
    return Case(parents, weights, damping, first, second, seed)
