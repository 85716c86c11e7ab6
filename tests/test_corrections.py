"""Corrections to published sources: what is printed is wrong, what the page says is right, every check exists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from torch import Tensor, nn
from torch.autograd.functional import hessian

import dagfisher
from dagfisher.families import Bernoulli, Gaussian
from dagfisher.helmholtz import HelmholtzMachine
from dagfisher.helmholtz.algorithms import importance_weights
from dagfisher.helmholtz.regularisers import L2
from dagfisher.helmholtz.sampling import wake
from dagfisher.maps import map_of
from dagfisher.optim.updates import apply_update

ROOT = Path(__file__).resolve().parent.parent


def test_every_entry_of_the_page_names_its_check_and_the_check_exists() -> None:
    page = (ROOT / "docs" / "corrections.rst").read_text(encoding="utf-8")
    entries = re.findall(r"^(?!=|-|\s)(.+)\n-{3,}\n((?:.*\n)*?)(?=^(?:.+\n-{3,}|\Z))", page, flags=re.MULTILINE)
    assert len(entries) >= 24
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for title, text in entries:
        named = re.findall(r"``(test_\w+)``", text)
        assert named or "Read in the source" in text, title
        for name in named:
            assert f"def {name}(" in tests, (title, name)


def test_the_second_moment_of_a_gaussian_layer_has_the_variances_on_its_diagonal() -> None:
    predictor = torch.tensor([0.5, -1.0, 0.2, -0.3, 0.1, 0.4], dtype=torch.float64)
    mean, std = predictor[:3], predictor[3:].exp()
    drawn = Gaussian("log_std").sample(predictor.expand(400_000, -1), torch.Generator().manual_seed(0))
    found = drawn.T @ drawn / len(drawn)
    right = torch.outer(mean, mean) + torch.diag(std**2)
    torch.testing.assert_close(Gaussian("log_std").second_moment(predictor[None]), right)
    printed = torch.outer(mean, mean) + torch.outer(std, std)
    assert float((found - right).abs().max()) < 0.02 < 0.5 < float((found - printed).abs().max())


def test_the_mean_of_the_scores_of_own_samples_is_zero_and_not_the_gradient_of_the_entropy() -> None:
    logit = torch.tensor([1.3], dtype=torch.float64, requires_grad=True)
    rho = torch.sigmoid(logit)
    scores = torch.stack([1 - rho, -rho]).detach()  # of the states 1 and 0
    assert float((torch.stack([rho, 1 - rho]).detach() * scores).sum()) == pytest.approx(0, abs=1e-12)
    entropy = -(rho * rho.log() + (1 - rho) * (1 - rho).log())
    (gradient,) = torch.autograd.grad(entropy.sum(), logit)
    torch.testing.assert_close(gradient, (-logit * rho * (1 - rho)).detach())
    assert abs(float(gradient)) > 0.1


def test_the_density_of_a_normal_unit_integrates_to_one() -> None:
    predictor = torch.tensor([0.3, 1.1], dtype=torch.float64)  # mean and log σ
    x = torch.linspace(-60, 60, 200_001, dtype=torch.float64)[:, None]
    total = torch.trapezoid(Gaussian("log_std").log_prob(x, predictor).exp().squeeze(), x.squeeze())
    assert float(total) == pytest.approx(1, abs=1e-9)
    assert float(total / predictor[1].exp()) == pytest.approx(1 / 3.004, abs=1e-3)  # with σ² in the denominator


def test_the_hyperbolic_warm_up_is_nearly_nothing_half_way() -> None:
    length = 50
    printed, linear = L2(1.0, warm_up=length, shape="hyperbolic"), L2(1.0, warm_up=length)
    assert printed.at(length // 2) == pytest.approx(2 / length)
    assert printed.at(length - 2) == 0.5
    assert linear.at(length // 2) == 0.5 and linear.at(length) == printed.at(length) == 1


def test_the_look_ahead_of_nesterov_has_the_rate_in_it() -> None:
    rate, beta = 0.05, 0.9
    curvature = torch.tensor([1.0, 5.0], dtype=torch.float64)

    def looked_ahead(by: float, steps: int = 6) -> Tensor:
        """The points where gradients are taken, v ← βv + g, θ ← θ − ηv, of a quadratic loss."""
        theta, v, points = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), []
        for _ in range(steps):
            points.append(theta - by * beta * v)
            v = beta * v + curvature * points[-1]
            theta = theta - rate * v
        return torch.stack(points)

    p = torch.ones(2, dtype=torch.float64)
    found, state = [p.clone()], {}
    settings = {"lr": rate, "momentum": beta, "nesterov": True, "betas": None, "weight_decay": 0.0, "l1": 0.0}
    for _ in range(5):
        apply_update([p], [curvature * p], [state], settings)
        found.append(p.clone())
    torch.testing.assert_close(torch.stack(found), looked_ahead(rate))
    assert float((torch.stack(found) - looked_ahead(1.0)).abs().max()) > 1


def test_the_steepest_step_of_a_given_divergence_is_the_natural_gradient_scaled_to_it() -> None:
    fisher = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    gradient, epsilon = torch.tensor([0.3, -1.2], dtype=torch.float64), 0.02
    natural = torch.linalg.solve(fisher, gradient)
    step = -math.sqrt(2 * epsilon / float(gradient @ natural)) * natural
    assert float(0.5 * step @ fisher @ step) == pytest.approx(epsilon)
    angles = torch.linspace(0, 2 * math.pi, 10_001, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()])
    others = math.sqrt(2 * epsilon) * torch.linalg.solve(torch.linalg.cholesky(fisher).T, circle)  # as far, all round
    torch.testing.assert_close(0.5 * (others * (fisher @ others)).sum(0), torch.full((10_001,), epsilon).double())
    assert float(gradient @ step) == pytest.approx(float((gradient @ others).min()), rel=1e-6)
    multiplier = float(gradient @ fisher @ natural) / float((fisher @ fisher @ step) @ natural)  # ∇F = λ I Δξ
    torch.testing.assert_close(step, natural / multiplier)
    assert not torch.allclose(step, natural * multiplier)


def tiny(samples: Tensor) -> tuple[HelmholtzMachine, Tensor, Tensor]:
    torch.manual_seed(1)
    machine = HelmholtzMachine([4, 3], states=(0, 1)).double()
    with torch.no_grad():
        for p in machine.parameters():
            p.normal_()
    hidden = torch.tensor([[i >> b & 1 for b in range(3)] for i in range(8)], dtype=torch.float64)
    return machine, samples.expand(8, 4), hidden


def test_the_gradient_of_log_p_star_has_no_factor_of_two() -> None:
    machine, x, h = tiny(torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    joint = machine.generative[0].log_prob(x, h) + machine.prior.log_prob(h)
    posterior = machine.recognition[0].log_prob(h, x)
    parameters = list(machine.parameters())
    log_p_star = 2 * torch.logsumexp(0.5 * (joint + posterior), 0)
    true = torch.autograd.grad(log_p_star, parameters, retain_graph=True)
    weights = torch.softmax(0.5 * (joint + posterior), 0).detach()
    without = torch.autograd.grad((weights * (joint + posterior)).sum(), parameters)
    for a, b in zip(true, without, strict=True):
        torch.testing.assert_close(a, b)


def test_p_star_is_the_square_of_a_sum() -> None:
    machine, _, h = tiny(torch.zeros(4, dtype=torch.float64))
    x = torch.tensor([[i >> b & 1 for b in range(4)] for i in range(16)], dtype=torch.float64)
    with torch.no_grad():
        joint = machine.generative[0].log_prob(
            x[:, None].expand(16, 8, 4), h.expand(16, 8, 3)
        ) + machine.prior.log_prob(h)
        posterior = machine.recognition[0].log_prob(h.expand(16, 8, 3), x[:, None].expand(16, 8, 4))
    sums = torch.exp(0.5 * (joint + posterior)).sum(1)
    p_star = sums.square() / sums.square().sum()
    # p*(x, h) is proportional to √(p(x, h) q(x, h)) with q(x, h) = p*(x) q(h|x); its marginal is p*(x) again.
    both = torch.exp(0.5 * (joint + posterior)) * p_star.sqrt()[:, None]
    torch.testing.assert_close((both / both.sum()).sum(1), p_star)


def test_importance_weights_of_each_example_sum_to_one_so_that_those_of_a_batch_sum_to_its_size() -> None:
    machine, _, _ = tiny(torch.zeros(4, dtype=torch.float64))
    state = wake(machine, machine.encode(torch.rand(5, 4).round()), 6)
    printed = torch.softmax(state.log_ratio, 0)
    assert float(printed.sum()) == pytest.approx(5)
    assert float(importance_weights(state).sum()) == pytest.approx(1)


def test_a_strided_convolution_begins_at_the_first_pixel() -> None:
    width, outputs, filters, s = 4, 2, 2, 2  # of Figure 7.4
    x, v = torch.randn(width), torch.randn(filters)
    places = [[s * (i - 1) + k for k in range(1, filters + 1)] for i in range(1, outputs + 1)]
    found = torch.stack([sum(v[k] * x[place - 1] for k, place in enumerate(row)) for row in places])
    torch.testing.assert_close(found, F.conv1d(x.reshape(1, 1, -1), v.reshape(1, 1, -1), stride=s).flatten())
    assert max(s * i + k - 1 for i in range(1, outputs + 1) for k in range(1, filters + 1)) > width  # as printed
    back = torch.zeros(width)
    for i in range(1, width + 1):
        for k in range(1, filters + 1):
            place = (i - k) / s + 1
            if place in (1, 2):
                back[i - 1] += v[k - 1] * found[int(place) - 1]
    torch.testing.assert_close(
        back, F.conv_transpose1d(found.reshape(1, 1, -1), v.reshape(1, 1, -1), stride=s).flatten()
    )


def test_a_transposed_convolution_has_a_row_for_each_output_position() -> None:
    module = nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1)
    found = map_of(module)
    x = torch.randn(5, 2, 6, 7)
    height, width = module(x).shape[2:]
    assert (height, width) != (6, 7)
    assert len(found.rows(module, x, module(x).shape)) == 5 * height * width


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_has_a_block_for_each_output_channel(transposed: bool) -> None:
    inputs, outputs, kernel = 2, 3, (4, 2)
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(inputs, outputs, kernel)
    dagfisher.declare(layer, "bernoulli")
    opt = exact(layer.parameters())
    layer(torch.randn(5, inputs, 6, 6)).sum().backward()
    rows = kernel[0] * kernel[1] * inputs + 1
    assert opt.fisher_blocks(layer.weight).shape == (outputs, rows, rows)


def test_the_fisher_information_about_predictors_is_not_that_about_rho_and_sigma() -> None:
    rho, sigma, mean = (torch.tensor(v, dtype=torch.float64) for v in (0.2, 0.6, 0.3))

    def curvature(of: Callable[[Tensor], Tensor], at: Tensor) -> float:
        return -float(hessian(of, at))

    def bernoulli(r: Tensor) -> Tensor:
        return rho * r.log() + (1 - rho) * (1 - r).log()  # the expectation of log p(y)

    def normal(s: Tensor) -> Tensor:
        return -s.log() - 0.5 * sigma**2 / s**2  # the same, about σ

    assert curvature(lambda a: bernoulli(torch.sigmoid(a)), rho.logit()) == pytest.approx(float(rho * (1 - rho)))
    assert curvature(bernoulli, rho) == pytest.approx(float(1 / (rho * (1 - rho))))
    assert curvature(lambda a: normal(a.exp()), sigma.log()) == pytest.approx(2)
    assert curvature(normal, sigma) == pytest.approx(float(2 / sigma**2))
    predictor = torch.stack([mean, sigma.log()])[None]
    assert float(Gaussian("log_std").fisher_weights(predictor)[1]) == 2
    assert float(Bernoulli((0, 1)).fisher_weights(rho.logit().reshape(1, 1))[0]) == pytest.approx(
        float(rho * (1 - rho))
    )


def test_the_largest_block_is_that_of_one_unit() -> None:
    layer = nn.Linear(6, 9)
    dagfisher.declare(layer, "bernoulli")
    opt = exact(layer.parameters())
    layer(torch.randn(20, 6)).sum().backward()
    assert opt.fisher_blocks(layer.weight).shape == (9, 7, 7)  # and not one of 54 × 54


def test_the_fisher_weights_of_a_gaussian_unit_are_the_squares_of_one_over_sigma_and_of_root_two() -> None:
    predictor = torch.tensor([[0.5, -0.7]], dtype=torch.float64)
    about_mean, about_scale = Gaussian("log_std").fisher_weights(predictor)
    drawn = Gaussian("log_std").sample(predictor.expand(400_000, -1), torch.Generator().manual_seed(0))
    scores = Gaussian("log_std").score(drawn, predictor)
    assert float(scores[:, 0].square().mean()) == pytest.approx(float(about_mean), rel=0.02)
    assert float(scores[:, 1].square().mean()) == pytest.approx(float(about_scale), rel=0.02) == 2
    assert float(about_mean) == pytest.approx(float(torch.exp(torch.tensor(1.4))), rel=1e-3)


def test_the_gradient_of_the_bias_is_the_derivative_without_the_parents() -> None:
    layer = nn.Linear(4, 3).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    output = layer(x)
    (deltas,) = torch.autograd.grad(output.sin().sum(), output, retain_graph=True)
    for k in range(6):
        weight, bias = torch.autograd.grad(output[k].sin().sum(), [layer.weight, layer.bias], retain_graph=True)
        assert float(weight.norm()) == pytest.approx(float(deltas[k].norm() * x[k].norm()))
        assert float(bias.norm()) == pytest.approx(float(deltas[k].norm()))


def test_a_convolution_has_exact_norms_of_per_example_gradients() -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, 3, padding=1).double()
    x = torch.randn(4, 2, 5, 6, dtype=torch.float64)
    output = module(x)
    (deltas,) = torch.autograd.grad(output.sin().sum(), output, retain_graph=True)
    rows = map_of(module).rows(module, x, output.shape).reshape(4, 30, -1)
    deltas = deltas.movedim(1, -1).reshape(4, 30, -1)
    for k in range(4):
        (weight,) = torch.autograd.grad(output[k].sin().sum(), [module.weight], retain_graph=True)
        squared = ((deltas[k] @ deltas[k].T) * (rows[k] @ rows[k].T)).sum()
        assert float(weight.square().sum()) == pytest.approx(float(squared))


def test_the_expectation_of_x_squared_is_a_sum() -> None:
    mean, variance = torch.tensor(0.7), torch.tensor(0.4)
    x = mean + variance.sqrt() * torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    assert float(x.square().mean()) == pytest.approx(float(variance + mean**2), abs=0.01)
    assert abs(float(x.square().mean()) - float(variance - mean**2)) > 0.5
