"""Which forward passes feed the Fisher, with which weights, and that they keep nothing alive."""

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from by_hand import (
    Net,
    affine,
    array,
    assert_step,
    backward,
    bernoulli_information,
    data,
    declared,
    live_tensors,
    loss,
    natural,
    optimizer,
    scaled,
)
from torch import Tensor, nn

import dagfisher
from dagfisher import no_capture, observe, sample_weights
from dagfisher.errors import MissingStatisticsError

X = data(6, 3)
W = torch.tensor([1.0, 0.5, 0.0, 2.0, 3.0, 0.25], dtype=torch.float64)


def staged(opt: torch.optim.Optimizer) -> int:
    return sum(opt.memory_usage().values())


# Sample weights


@pytest.mark.parametrize("factor", [1.0, 1e-3, 40.0])
def test_sample_weights_weigh_the_samples_and_their_scale_does_not_matter(factor: float) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    with sample_weights(factor * W):
        backward(layer, opt, X)
    assert_step(opt, natural(layer, X, 0.1, weights=W))


def test_weights_are_normalised_over_all_passes_of_a_step() -> None:
    layer, plain = declared(3, 2), data(4, 3, seed=9)
    opt = optimizer(layer.parameters())
    with sample_weights(W):
        first = layer(X)
    with sample_weights(5 * W):
        second = layer(2 * X)
    (loss(first) + loss(second) + loss(layer(plain))).backward()
    rows, weights = torch.cat([X, 2 * X, plain]), torch.cat([W, 5 * W, torch.ones(4)])
    assert_step(opt, natural(layer, rows, 0.1, weights=weights))


@pytest.mark.parametrize("axes", [1, 2])
def test_weights_follow_the_first_axes_of_the_input(axes: int) -> None:
    layer, x = declared(3, 2), data(6, 2, 3)
    weights = data(6, 2).abs() if axes == 2 else W
    opt = optimizer(layer.parameters())
    with sample_weights(weights):
        backward(layer, opt, x)
    each = weights if axes == 2 else W.repeat_interleave(2)
    assert_step(opt, natural(layer, x, 0.1, weights=each))


def test_weights_changed_after_the_pass_change_nothing() -> None:
    layer, weights = declared(3, 2), W.clone()
    opt = optimizer(layer.parameters())
    with sample_weights(weights):
        backward(layer, opt, X)
    weights.zero_()
    assert_step(opt, natural(layer, X, 0.1, weights=W))


def test_weights_end_with_their_context_even_when_it_is_left_by_an_error() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    with pytest.raises(KeyError), sample_weights(W):
        raise KeyError
    with pytest.raises(KeyError), no_capture():
        raise KeyError
    backward(layer, opt, X)
    assert_step(opt, natural(layer, X, 0.1))


# What is not captured


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, no_capture, nullcontext])
@pytest.mark.parametrize("training", [True, False])
def test_only_a_training_pass_with_gradients_is_stored(
    context: Callable[[], AbstractContextManager[None]], training: bool
) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    layer.train(training)
    with context():
        layer(X)
    captured = training and context is nullcontext
    assert staged(opt) == (8 * 6 * (3 + 2 + 1) if captured else 0)


def test_nothing_is_stored_on_a_step_that_reuses() -> None:
    net, x = Net(), data(6, 4)
    opt = optimizer(net.named_parameters(), update_every=3)
    sizes = []
    for _ in range(7):
        kept = staged(opt)
        backward(net, opt, x)
        observe(net.head, data(6, 3), data(6, 2))
        sizes.append(staged(opt) - kept)
        opt.step()
    one_refresh = 8 * 6 * ((4 + 3 + 1) + 2 * (3 + 2 + 1))
    assert sizes == [one_refresh, 0, 0, one_refresh, 0, 0, one_refresh]


def test_passes_that_are_not_captured_do_not_feed_the_fisher() -> None:
    layer, other = declared(3, 2), data(5, 3, seed=9)
    opt = optimizer(layer.parameters())
    with no_capture():
        extra = loss(layer(other))
    with torch.no_grad():
        layer(other)
    layer.eval()
    layer(other)
    layer.train()
    (extra + loss(layer(X))).backward()
    assert_step(opt, natural(layer, X, 0.1))


def test_passes_before_a_step_do_not_feed_the_next_one() -> None:
    layer, other = declared(3, 2), data(5, 3, seed=9)
    opt = optimizer(layer.parameters(), lr=0.01)
    backward(layer, opt, other)
    opt.step()
    backward(layer, opt, X)
    assert_step(opt, scaled(0.01, natural(layer, X, 0.1)))


# What is captured


def test_several_passes_are_joined() -> None:
    layer, other = declared(3, 2), data(5, 3, seed=9)
    opt = optimizer(layer.parameters())
    (loss(layer(X)) - 2 * loss(layer(other))).backward()
    assert_step(opt, natural(layer, torch.cat([X, other]), 0.1))


def test_micro_batches_equal_one_batch() -> None:
    net, x = Net(), data(9, 4)
    opt = optimizer(net.parameters())
    for part in x.split([2, 4, 3]):
        loss(net(part)).backward()
    whole = copy.deepcopy(net)
    backward(whole, torch.optim.SGD(whole.parameters()), x)
    expected = dict(zip(net.parameters(), whole.natural(x, 0.1).values(), strict=True))
    assert_step(opt, expected)


def test_a_module_may_run_twice_in_one_pass() -> None:
    layer = declared(3, 3)
    opt = optimizer(layer.parameters())
    loss(layer(torch.tanh(layer(X)))).backward()
    rows = np.concatenate([array(X), np.tanh(affine(layer, X))])
    assert_step(opt, natural(layer, rows, 0.1))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3, 3), (2, 1, 2, 3)])
def test_every_leading_axis_of_the_input_is_a_sample(shape: tuple[int, ...]) -> None:
    layer, x = declared(3, 2), data(*shape)
    opt = optimizer(layer.parameters())
    backward(layer, opt, x)
    assert_step(opt, natural(layer, x.reshape(-1, 3), 0.1))


def test_the_input_may_be_given_by_name() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    loss(layer(input=X)).backward()
    assert_step(opt, natural(layer, X, 0.1))


def test_a_layer_may_have_no_bias() -> None:
    layer = declared(3, 2, bias=False)
    opt = optimizer(layer.parameters())
    backward(layer, opt, X)
    assert_step(opt, natural(layer, X, 0.1))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_part_has_no_place_in_the_block(frozen: str) -> None:
    layer = declared(3, 2)
    getattr(layer, frozen).requires_grad_(False)
    kept = getattr(layer, frozen).clone()
    opt = optimizer(layer.parameters())
    backward(layer, opt, X)
    assert_step(opt, natural(layer, X, 0.1))
    assert torch.equal(getattr(layer, frozen), kept)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_part_frozen_in_the_middle_of_a_window_leaves_the_block_at_once(frozen: str) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters(), update_every=100, lr=0.01)
    backward(layer, opt, X)
    opt.step()
    for trains, x in ((False, 2 * X), (True, 3 * X)):
        getattr(layer, frozen).requires_grad_(trains)
        backward(layer, opt, x)
        assert_step(opt, scaled(0.01, natural(layer, x, 0.1)))


@pytest.mark.parametrize("given, other", [("weight", "bias"), ("bias", "weight")])
def test_only_what_the_optimizer_was_given_moves(given: str, other: str) -> None:
    layer = declared(3, 2)
    kept = getattr(layer, other).clone()
    opt = optimizer([getattr(layer, given)])
    backward(layer, opt, X)
    assert_step(opt, natural(layer, X, 0.1, without=[other]))
    assert torch.equal(getattr(layer, other), kept)


def test_an_activation_in_place_changes_nothing() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    loss(torch.relu_(layer(X))).backward()
    assert_step(opt, natural(layer, X, 0.1))


def test_a_change_of_the_input_after_the_pass_changes_nothing() -> None:
    layer, x = declared(3, 2), X.clone()
    opt = optimizer(layer.parameters())
    backward(layer, opt, x)
    x.fill_(100.0)
    assert_step(opt, natural(layer, X, 0.1))


def test_observing_is_capturing() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    with no_capture():
        backward(layer, opt, X)
        observe(layer, X, layer(X))
    assert staged(opt) == 0
    with torch.no_grad(), sample_weights(W):
        observe(layer, X, torch.nn.functional.linear(X, layer.weight, layer.bias))
    assert_step(opt, natural(layer, X, 0.1, weights=W))


# Gaussian heads


class Heads(nn.Module):
    """A Gaussian layer with two heads, run in the order given."""

    def __init__(self, scale: str, mean_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.scale, self.mean_first = nn.Linear(3, 2).double(), nn.Linear(3, 2).double(), mean_first
        dagfisher.declare_gaussian(mean=self.mean, **{scale: self.scale})

    def forward(self, x: Tensor) -> Tensor:
        outputs = [head(x) for head in ((self.mean, self.scale) if self.mean_first else (self.scale, self.mean))]
        return torch.cat(outputs if self.mean_first else outputs[::-1], dim=-1)


@pytest.mark.parametrize("scale, to_log_std, information", [("log_std", 1.0, 2.0), ("log_var", 0.5, 0.5)])
@pytest.mark.parametrize("mean_first", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_two_heads_are_one_gaussian_layer_in_either_order(
    scale: str, to_log_std: float, information: float, mean_first: bool, passes: int
) -> None:
    heads, batches = Heads(scale, mean_first), X.split(6 // passes)
    opt = optimizer(heads.parameters())
    for x in batches:
        loss(heads(x)).backward()
    precision = np.exp(-2 * to_log_std * affine(heads.scale, X))
    assert_step(
        opt,
        natural(heads.mean, X, 0.1, q=precision) | natural(heads.scale, X, 0.1, q=np.full((6, 2), information)),
    )


def test_a_mean_head_needs_no_training_of_its_scale() -> None:
    heads = Heads("log_std", mean_first=True)
    opt = optimizer(heads.mean.parameters())
    loss(heads(X)).backward()
    assert_step(opt, natural(heads.mean, X, 0.1, q=np.exp(-2 * affine(heads.scale, X))))


def test_heads_refresh_on_schedules_of_their_own() -> None:
    heads = Heads("log_std", mean_first=False)
    opt = optimizer(
        [{"params": heads.mean.parameters()}, {"params": heads.scale.parameters(), "update_every": 100}], lr=0.1
    )
    for x in (X, 2 * X):
        backward(heads, opt, x)
        expected = natural(heads.mean, x, 0.1, q=np.exp(-2 * affine(heads.scale, x)))
        expected |= natural(heads.scale, X, 0.1, q=np.full((6, 2), 2.0))
        assert_step(opt, scaled(0.1, expected))


# Who listens, and what stays alive


def test_a_copied_model_does_not_feed_the_old_optimizer() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    twin = copy.deepcopy(layer)
    loss(twin(5 * X)).backward()
    assert staged(opt) == 0
    second = optimizer(twin.parameters())
    backward(layer, opt, X)
    backward(twin, second, 2 * X)
    assert_step(opt, natural(layer, X, 0.1))
    assert_step(second, natural(twin, 2 * X, 0.1))


def test_a_dropped_optimizer_frees_everything_and_its_model_runs_on() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters(), update_every=5, momentum=0.9)
    backward(layer, opt, X)
    opt.step()
    kept = [opt, *opt.state[layer.weight].values()]
    kept += [v for s in opt.state_dict()["dagfisher"]["layers"][0]["solvers"] for v in s.values() if torch.is_tensor(v)]
    assert len(kept) == 3
    watched = [weakref.ref(o) for o in kept]
    del opt, kept
    gc.collect()
    assert [w() for w in watched] == [None] * 3
    np.testing.assert_allclose(array(layer(X)), affine(layer, X), atol=1e-12)


def test_passes_leave_nothing_behind_once_the_optimizer_is_dropped() -> None:
    layer = declared(3, 2)
    before = live_tensors()
    opt = optimizer(layer.parameters())
    layer(X)
    assert live_tensors()[0] == before[0] + 3
    del opt
    for _ in range(3):
        layer(X)
    assert live_tensors() == before


def test_a_dropped_model_is_freed() -> None:
    layer = declared(3, 2)
    watched = weakref.ref(layer)
    del layer
    gc.collect()
    assert watched() is None


def test_a_new_optimizer_takes_over() -> None:
    net, x = Net(), data(6, 4)
    old = optimizer(net.parameters(), lr=0.0)
    backward(net, old, x)
    old.step()
    new = optimizer(net.parameters())
    backward(net, new, x)
    assert staged(old) == 8 * (3 * 25 + 2 * 16)
    with pytest.raises(MissingStatisticsError, match=r"'encoder\.0'.*newer optimizer.*use that one"):
        old.step()
    assert_step(new, net.natural(x, 0.1))


def test_the_fisher_weight_is_taken_where_the_pass_was_not_where_the_step_is() -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    backward(layer, opt, X)
    q = bernoulli_information(layer, X)
    with torch.no_grad():
        layer.weight.mul_(3)
    assert_step(opt, natural(layer, X, 0.1, q=q))
