"""A loss on another scale than the Fisher's is noticed at the first step, or the optimizer is told of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher.errors import DagFisherWarning, MissingStatisticsError, SettingError

N, PARENTS, UNITS = 40, 20, 60


def model(family: str = "bernoulli", **settings: float) -> nn.Linear:
    torch.manual_seed(0)
    made = nn.Linear(PARENTS, UNITS)
    dagfisher.declare(made, family, **settings)
    return made


def batch(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, PARENTS, generator=generator), torch.rand(n, UNITS, generator=generator).round()


def bce(reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda out, y: F.binary_cross_entropy_with_logits(out, y, reduction=reduction)


def proper(out: Tensor, y: Tensor) -> Tensor:
    return bce("sum")(out, y) / len(out)


def first_step(module: nn.Linear, loss: Callable[[Tensor, Tensor], Tensor], **settings: object) -> list[str]:
    """The warnings of the first step."""
    opt = exact(module.parameters(), lr=1e-3, **settings)
    x, y = batch()
    loss(module(x), y).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.step()
    return [str(w.message) for w in caught if issubclass(w.category, DagFisherWarning)]


def test_a_loss_summed_over_the_batch() -> None:
    (sentence,) = first_step(model(), bce("sum"))
    assert "summed over its 40 samples" in sentence
    assert "loss_reduction='sum'" in sentence


def test_a_loss_averaged_over_units() -> None:
    (sentence,) = first_step(model(), bce("mean"))
    assert "averaged over units" in sentence
    assert "multiply the loss by 60" in sentence


def test_a_mean_squared_error_averaged_over_units() -> None:
    (sentence,) = first_step(model("gaussian", std=1.0), lambda out, y: F.mse_loss(out, y) / 2)
    assert "averaged over units" in sentence


def reinforce(out: Tensor, y: Tensor) -> Tensor:
    """A signal of either sign, and of any size, for each sample."""
    signal = 50 * torch.randn(len(out), generator=torch.Generator().manual_seed(3))
    return (signal * -F.binary_cross_entropy_with_logits(out, y, reduction="none").sum(1)).mean()


SILENT: dict[str, tuple[Callable[[], nn.Linear], Callable[[Tensor, Tensor], Tensor]]] = {
    "the proper scale": (model, proper),
    "half of it": (model, lambda out, y: proper(out, y) / 2),
    "REINFORCE": (model, reinforce),
    "squared error": (lambda: model("gaussian", std=0.5), lambda out, y: (out - y).square().sum(1).mean()),
    "Poisson": (lambda: model("poisson"), lambda out, y: F.poisson_nll_loss(out, y, reduction="sum") / N),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_is_right_is_not_warned_of(name: str) -> None:
    make, loss = SILENT[name]
    assert first_step(make(), loss) == []


@pytest.mark.parametrize("scale", [64.0, 65536.0, 1 / 64])
def test_scaled_gradients_say_nothing(scale: float) -> None:
    """GradScaler multiplies the loss and divides the gradients before the step."""
    module = model()
    opt = exact(module.parameters(), lr=1e-3)
    x, y = batch()
    (scale * proper(module(x), y)).backward()
    for p in module.parameters():
        p.grad.div_(scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()


def test_it_is_said_once() -> None:
    module = model()
    opt = exact(module.parameters(), lr=1e-3, update_every=1)
    heard = 0
    for _ in range(4):
        opt.zero_grad()
        x, y = batch()
        bce("sum")(module(x), y).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opt.step()
        heard += len(caught)
    assert heard == 1


@pytest.mark.parametrize("update_every", [1, 3])
def test_a_summed_loss_with_loss_reduction_sum_is_the_mean_loss(update_every: int) -> None:
    """To the last bit of float64 rounding, with batches of any size, on steps that reuse too."""
    one, other = model().double(), model().double()
    settings = {"lr": 0.1, "damping": 0.1, "update_every": update_every, "solver": "dense"}
    mean = exact(one.parameters(), **settings)
    summed = exact(other.parameters(), loss_reduction="sum", **settings)
    for n in (40, 7, 23, 1, 31):
        x, y = (t.double() for t in batch(n))
        mean.zero_grad(), summed.zero_grad()
        proper(one(x), y).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bce("sum")(other(x), y).backward()
            mean.step(), summed.step()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_accumulated_sums_are_divided_by_all_samples() -> None:
    one, other = model().double(), model().double()
    mean = exact(one.parameters(), lr=0.1, solver="dense")
    summed = exact(other.parameters(), lr=0.1, solver="dense", loss_reduction="sum")
    x, y = (t.double() for t in batch())
    proper(one(x), y).backward()
    for part in (slice(0, 10), slice(10, 40)):
        bce("sum")(other(x[part]), y[part]).backward()
    mean.step(), summed.step()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_a_sum_over_no_samples_is_an_error() -> None:
    module = model()
    opt = exact(module.parameters(), loss_reduction="sum")
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(MissingStatisticsError, match="loss_reduction='sum' divides by the samples"):
        opt.step()
    with pytest.raises(SettingError, match="loss_reduction must be mean or sum"):
        exact(module.parameters(), loss_reduction="max")
