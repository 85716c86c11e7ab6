"""Exponential families in closed form: dual coordinates, dual Fisher matrices, natural gradients of the library.

θ are natural and η = E[T] expectation parameters; ψ(θ) is the log-partition function and φ(η) the negative entropy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

import dagfisher
from dagfisher.families import Bernoulli
from dagfisher.nn import FullGaussian, Prior

D = 3
PAIRS = [(i, j) for i in range(D) for j in range(i + 1, D)]


@dataclass
class Geometry:
    """A family with its two potentials, the map from θ to η, and T."""

    psi: Callable[[Tensor], Tensor]
    phi: Callable[[Tensor], Tensor]
    to_eta: Callable[[Tensor], Tensor]
    theta: Tensor


def bernoulli(states: tuple[float, float]) -> Geometry:
    low, high = states

    def phi(eta: Tensor) -> Tensor:
        rho = (eta - low) / (high - low)
        return (rho * rho.log() + (1 - rho) * (1 - rho).log()).sum()

    return Geometry(
        psi=lambda theta: torch.logaddexp(low * theta, high * theta).sum(),
        phi=phi,
        to_eta=lambda theta: low + (high - low) * torch.sigmoid((high - low) * theta),
        theta=torch.tensor([0.4], dtype=torch.float64),
    )


def unpacked(vector: Tensor, off_diagonal: float) -> tuple[Tensor, Tensor]:
    """A vector (first D), and a symmetric matrix whose off-diagonal coordinates are multiplied by a number."""
    d = len(vector) if len(vector) == 2 else D
    if len(vector) == 2:  # one dimension
        return vector[:1], vector[1:].reshape(1, 1)
    first, diagonal, rest = vector.split([d, d, len(PAIRS)])
    matrix = torch.diag(diagonal)
    for value, (i, j) in zip(rest * off_diagonal, PAIRS, strict=True):
        unit = torch.zeros(d, d, dtype=vector.dtype)
        unit[i, j] = unit[j, i] = 1
        matrix = matrix + value * unit
    return first, matrix


def packed(first: Tensor, matrix: Tensor, off_diagonal: float) -> Tensor:
    if len(first) == 1:
        return torch.cat([first, matrix.flatten()])
    rest = torch.stack([matrix[i, j] for i, j in PAIRS]) * off_diagonal
    return torch.cat([first, matrix.diagonal(), rest])


def gaussian_psi(theta: Tensor) -> Tensor:
    """With T = (x, x_i², 2x_i x_j) and Θ = −½Σ⁻¹."""
    first, matrix = unpacked(theta, 1.0)
    quadratic = -0.25 * first @ torch.linalg.inv(matrix) @ first
    return 0.5 * len(first) * math.log(2 * math.pi) + quadratic - 0.5 * torch.logdet(-2 * matrix)


def gaussian_phi(eta: Tensor) -> Tensor:
    first, second = unpacked(eta, 0.5)
    covariance = second - torch.outer(first, first)
    return -0.5 * len(first) * (math.log(2 * math.pi) + 1) - 0.5 * torch.logdet(covariance)


def to_theta(mean: Tensor, covariance: Tensor) -> Tensor:
    precision = torch.linalg.inv(covariance)
    return packed(precision @ mean, -0.5 * precision, 1.0)


def to_eta(mean: Tensor, covariance: Tensor) -> Tensor:
    """(μ_i, σ_ii + μ_i², 2σ_ij + 2μ_iμ_j)."""
    return packed(mean, covariance + torch.outer(mean, mean), 2.0)


def moments(theta: Tensor) -> tuple[Tensor, Tensor]:
    first, matrix = unpacked(theta, 1.0)
    covariance = torch.linalg.inv(-2 * matrix)
    return covariance @ first, covariance


def gaussian(d: int) -> Geometry:
    root = torch.tensor([[1.2, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.3, 0.5, 0.6]], dtype=torch.float64)[:d, :d]
    mean = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)[:d]
    return Geometry(gaussian_psi, gaussian_phi, lambda theta: to_eta(*moments(theta)), to_theta(mean, root @ root.T))


FAMILIES = {
    "Bernoulli, 0 and 1": bernoulli((0, 1)),
    "Bernoulli, −1 and 1": bernoulli((-1, 1)),
    "Gaussian": gaussian(1),
    "multivariate Gaussian": gaussian(D),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_potentials_are_legendre_duals(name: str) -> None:
    family = FAMILIES[name]
    theta, eta = family.theta, family.to_eta(family.theta)
    torch.testing.assert_close(jacobian(family.psi, theta), eta)
    torch.testing.assert_close(jacobian(family.phi, eta), theta)
    assert float(family.psi(theta) + family.phi(eta) - theta @ eta) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_fisher_matrices_of_dual_coordinates_are_inverses_of_each_other(name: str) -> None:
    family = FAMILIES[name]
    theta, eta = family.theta, family.to_eta(family.theta)
    in_theta, in_eta = hessian(family.psi, theta), hessian(family.phi, eta)
    torch.testing.assert_close(in_theta @ in_eta, torch.eye(len(theta), dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(jacobian(family.to_eta, theta), in_theta)  # and the Jacobian of the change


@pytest.mark.parametrize("name", FAMILIES)
def test_the_natural_gradient_in_eta_is_the_plain_gradient_in_theta(name: str) -> None:
    family = FAMILIES[name]
    theta, eta = family.theta, family.to_eta(family.theta)
    weights = torch.linspace(0.5, 2.0, len(eta), dtype=torch.float64)

    def value(at: Tensor) -> Tensor:
        return (weights * at).sin().sum()

    plain = jacobian(lambda at: value(family.to_eta(at)), theta)
    natural = torch.linalg.solve(hessian(family.phi, eta), jacobian(value, eta))
    torch.testing.assert_close(natural, plain)


def test_the_closed_form_of_the_fisher_matrix_in_theta_is_the_covariance_of_t() -> None:
    mean, covariance = moments(FAMILIES["multivariate Gaussian"].theta)
    places = [(i,) for i in range(D)] + [(i, i) for i in range(D)] + PAIRS

    def cov(a: tuple[int, ...], b: tuple[int, ...]) -> Tensor:
        if len(a) == len(b) == 1:
            return covariance[a[0], b[0]]
        if len(a) == 1:
            (i,), (k, l) = a, b
            return mean[k] * covariance[i, l] + mean[l] * covariance[i, k]
        if len(b) == 1:
            return cov(b, a)
        (k, l), (m, n) = a, b
        pure = covariance[k, m] * covariance[l, n] + covariance[k, n] * covariance[l, m]
        mixed = [mean[p] * mean[r] * covariance[q, s] for p, q in ((k, l), (l, k)) for r, s in ((m, n), (n, m))]
        return pure + sum(mixed)

    def doubled(a: tuple[int, ...]) -> int:
        return 2 if len(a) == 2 and a[0] != a[1] else 1

    closed = torch.stack([torch.stack([doubled(a) * doubled(b) * cov(a, b) for b in places]) for a in places])
    torch.testing.assert_close(closed, hessian(gaussian_psi, FAMILIES["multivariate Gaussian"].theta))


@pytest.mark.parametrize("states", [(0, 1), (-1, 1)])
def test_the_fisher_weight_of_a_bernoulli_unit_is_the_second_derivative_of_psi(states: tuple[float, float]) -> None:
    family = FAMILIES["Bernoulli, 0 and 1" if states[0] == 0 else "Bernoulli, −1 and 1"]
    logit = (states[1] - states[0]) * family.theta  # what the library's predictor is
    (found,) = Bernoulli(states).fisher_weights(logit)
    torch.testing.assert_close(found, hessian(family.psi, family.theta)[0] / (states[1] - states[0]) ** 2)


def pushed(parameters: list[Tensor], vectors: list[Tensor], eta_of: Callable[..., Tensor]) -> Tensor:
    """The velocity of η if the parameters move along the vectors."""
    return torch.autograd.functional.jvp(eta_of, tuple(p.detach() for p in parameters), tuple(vectors))[1]


def test_a_natural_gradient_of_the_library_is_the_plain_one_in_theta_for_a_normal_unit() -> None:
    unit = Prior(1, "gaussian", dtype=torch.float64)
    unit.bias.data = torch.tensor([0.7, -0.4], dtype=torch.float64)
    weights = torch.tensor([0.3, -1.1], dtype=torch.float64)

    def eta_of(bias: Tensor) -> Tensor:
        return to_eta(bias[:1], torch.exp(2 * bias[1:]).reshape(1, 1))

    opt = dagfisher.DAGNaturalGradient(unit.parameters(), damping=0, solver="dense")
    (eta_of(unit(1)[0]) @ weights).sin().backward()
    velocity = pushed([unit.bias], [opt.natural_gradient()[unit.bias]], eta_of)
    theta = to_theta(unit.bias.detach()[:1], torch.exp(2 * unit.bias.detach()[1:]).reshape(1, 1))
    plain = jacobian(lambda at: (to_eta(*moments(at)) @ weights).sin(), theta)
    torch.testing.assert_close(velocity, plain)


def test_a_natural_gradient_of_the_library_is_the_plain_one_in_theta_for_a_full_gaussian() -> None:
    torch.manual_seed(0)
    layer = FullGaussian(D, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.5)
    weights = torch.randn(2 * D + len(PAIRS), dtype=torch.float64)

    def eta_of(weight: Tensor, bias: Tensor, log_std: Tensor) -> Tensor:
        unmixing = torch.linalg.inv(torch.eye(D, dtype=torch.float64) - layer.mask * weight)
        root = unmixing @ torch.diag(log_std.exp())
        return to_eta(unmixing @ bias, root @ root.T)

    parameters = [layer.weight, layer.bias, layer.log_std]
    opt = dagfisher.DAGNaturalGradient(layer.parameters(), damping=1e-12, solver="dense")
    mean, covariance = layer.mean.detach(), layer.covariance.detach()
    root = math.sqrt(D) * torch.linalg.cholesky(covariance)
    layer.log_prob(torch.cat([mean + root.T, mean - root.T]))  # exact moments for the Fisher
    (eta_of(*parameters) @ weights).sin().backward()
    vectors = opt.natural_gradient()
    velocity = pushed(parameters, [vectors[p] for p in parameters], eta_of)
    plain = jacobian(lambda at: (to_eta(*moments(at)) @ weights).sin(), to_theta(mean, covariance))
    torch.testing.assert_close(velocity, plain, rtol=1e-6, atol=1e-8)


def test_the_tables_of_the_slides_are_wrong_where_both_pairs_are_on_the_diagonal() -> None:
    covariance = moments(FAMILIES["multivariate Gaussian"].theta)[1]
    precision = torch.linalg.inv(covariance)

    def entry(a: tuple[int, int], b: tuple[int, int]) -> Tensor:
        """½ tr(Σ⁻¹ ∂Σ Σ⁻¹ ∂Σ)."""
        units = []
        for i, j in (a, b):
            unit = torch.zeros(D, D, dtype=torch.float64)
            unit[i, j] = unit[j, i] = 1
            units.append(unit)
        return 0.5 * torch.trace(precision @ units[0] @ precision @ units[1])

    def of_the_slides(a: tuple[int, int], b: tuple[int, int]) -> Tensor:
        (k, l), (m, n) = a, b
        if k == l == m == n:
            return 0.5 * precision[k, k] ** 2
        if k == l or m == n:
            return precision[k, m] * precision[l, n]
        return precision[k, m] * precision[l, n] + precision[l, m] * precision[k, n]

    places = [(i, i) for i in range(D)] + PAIRS
    for a, b in itertools.product(places, repeat=2):
        both = a[0] == a[1] and b[0] == b[1] and a != b
        factor = 2 if both else 1
        torch.testing.assert_close(of_the_slides(a, b), factor * entry(a, b))


def of_the_slides_in_theta(theta: Tensor) -> Tensor:
    """Their table of I_θ, row by row as it is printed."""
    first, matrix = unpacked(theta, 1.0)
    t = torch.linalg.inv(matrix)
    places = [(i, i) for i in range(D)] + PAIRS
    outer = torch.outer

    def capital(k: int, l: int) -> Tensor:
        return outer(t[:, k], t[k]) if k == l else outer(t[:, k], t[l]) + outer(t[:, l], t[k])

    def small(k: int, l: int, m: int, n: int) -> Tensor:
        if k == l == m == n:
            return t[k, k] ** 2
        crossed = t[k, m] * t[l, n] + t[l, m] * t[k, n]
        return crossed if k == l or m == n else 2 * crossed

    def four(k: int, l: int, m: int, n: int) -> Tensor:
        found = outer(capital(k, l)[:, m], t[n])
        return found if k == l else found + outer(capital(k, l)[:, n], t[m])

    corner = torch.stack([torch.stack([small(*a, *b) - first @ four(*a, *b) @ first for b in places]) for a in places])
    side = torch.stack([capital(*a) @ first for a in places])
    return 0.5 * torch.cat([torch.cat([-t, side.T], 1), torch.cat([side, corner], 1)])


def of_the_slides_in_eta(eta: Tensor) -> Tensor:
    """Their table of I_η, row by row as it is printed."""
    first, second = unpacked(eta, 0.5)
    p = torch.linalg.inv(second - torch.outer(first, first))
    places = [(i, i) for i in range(D)] + PAIRS

    def capital(k: int, l: int) -> Tensor:
        found = 0.5 * (torch.outer(p[:, k], p[l]) + torch.outer(p[:, l], p[k]))
        return found  # for k = l it is the outer product itself

    def small(k: int, l: int, m: int, n: int) -> Tensor:
        if k == l or m == n:
            return 0.5 * p[k, m] * p[l, n]
        return 0.25 * (p[k, m] * p[l, n] + p[l, m] * p[k, n])

    gamma = p + p * (first @ p @ first) + p @ torch.outer(first, first) @ p
    side = -torch.stack([capital(*a) @ first for a in places])
    corner = torch.stack([torch.stack([small(*a, *b) for b in places]) for a in places])
    return torch.cat([torch.cat([gamma, side.T], 1), torch.cat([side, corner], 1)])


@pytest.mark.parametrize("centred", [True, False])
def test_the_table_of_the_slides_in_theta_is_wrong_for_diagonal_elements(centred: bool) -> None:
    theta = FAMILIES["multivariate Gaussian"].theta.clone()
    if centred:
        theta[:D] = 0
    right, printed = hessian(gaussian_psi, theta), of_the_slides_in_theta(theta)
    wrong = ~torch.isclose(right, printed, rtol=1e-9, atol=1e-12)
    expected = torch.zeros_like(wrong)
    diagonal, pairs = slice(D, 2 * D), slice(2 * D, None)
    expected[diagonal, diagonal] = ~torch.eye(D, dtype=torch.bool)
    if not centred:
        expected[diagonal, pairs] = expected[pairs, diagonal] = True
    assert torch.equal(wrong, expected)
    if centred:
        torch.testing.assert_close(printed[expected], 2 * right[expected])
    else:
        assert not torch.allclose(printed, printed.T)


def test_the_table_of_the_slides_in_eta_is_right() -> None:
    family = FAMILIES["multivariate Gaussian"]
    eta = family.to_eta(family.theta)
    torch.testing.assert_close(of_the_slides_in_eta(eta), hessian(gaussian_phi, eta))
