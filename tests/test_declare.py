"""Declared layers are found from their parameters alone, wherever the model has been."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from by_hand import (
    Net,
    array,
    assert_close,
    assert_step,
    backward,
    data,
    declared,
    logistic,
    natural,
    optimizer,
    scaled,
)
from torch import nn

import dagfisher
from dagfisher.errors import DeclarationError, SettingError


def through_torch_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def with_state_of(model: nn.Module, assign: bool) -> nn.Module:
    other = Net(seed=5)
    other.load_state_dict(model.state_dict(), assign=assign)
    return other


JOURNEYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "nowhere": lambda model: model,
    "deepcopy": copy.deepcopy,
    "deepcopy twice": lambda model: copy.deepcopy(copy.deepcopy(model)),
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch_save,
    "to float32 and back": lambda model: model.to(torch.float32).to(torch.float64),
    "load_state_dict": lambda model: with_state_of(model, assign=False),
    "load_state_dict, assigned": lambda model: with_state_of(model, assign=True),
}


@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS.keys())
@pytest.mark.parametrize("trained", [False, True], ids=["untrained", "while it is trained"])
def test_layers_are_found_after_any_journey_of_the_model(
    journey: Callable[[nn.Module], nn.Module], trained: bool
) -> None:
    start, x = Net(), data(7, 4)
    if trained:
        before = optimizer(start.parameters(), lr=0.01)
        backward(start, before, 2 * x)
    net = journey(start)
    opt = optimizer(net.parameters(), lr=0.3)
    backward(net, opt, x)
    expected = net.natural(x, 0.1)
    assert_step(opt, scaled(0.3, expected))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_layers_are_found_after_a_conversion_of_the_model(dtype: torch.dtype, tolerance: float) -> None:
    net, x = Net().to(dtype), data(7, 4).to(dtype)
    opt = optimizer(net.parameters())
    backward(net, opt, x)
    expected = net.natural(x, 0.1)
    assert_close({p: array(v) for p, v in opt.natural_gradient().items()}, expected, tolerance)


def test_a_copied_journey_leaves_the_original_its_own_layers() -> None:
    net, x = Net(), data(7, 4)
    copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    opt = optimizer(net.parameters())
    backward(net, opt, x)
    assert_step(opt, net.natural(x, 0.1))


def test_named_parameters_are_parameters_with_names() -> None:
    net, x = Net(), data(7, 4)
    opt = optimizer(net.named_parameters())
    backward(net, opt, x)
    expected = net.natural(x, 0.1)
    assert list(opt.memory_usage()) == ["encoder.0", "head"]
    assert_step(opt, expected)


def test_given_names_win_over_names_found() -> None:
    layer = declared(3, 2)
    opt = optimizer([{"params": [(f"outer.fc.{name}", p) for name, p in layer.named_parameters()]}])
    assert list(opt.memory_usage()) == ["outer.fc"]


def test_a_module_that_was_never_finished_hides_no_name() -> None:
    unfinished = nn.Linear.__new__(nn.Linear)
    net = Net()
    opt = optimizer(net.parameters())
    assert list(opt.memory_usage()) == ["encoder.0", "head"]
    assert "_modules" not in unfinished.__dict__


def test_each_param_group_has_settings_of_its_own() -> None:
    net, x = Net(), data(7, 4)
    opt = optimizer(
        [
            {"params": net.encoder.parameters(), "lr": 0.5, "damping": 0.3},
            {"params": net.head.parameters(), "weight_decay": 0.2},
        ]
    )
    backward(net, opt, x)
    stiff, loose = net.natural(x, 0.3), net.natural(x, 0.1)
    expected = {p: 0.5 * stiff[p] for p in net.encoder.parameters()}
    expected |= {p: loose[p] + 0.2 * array(p) for p in net.head.parameters()}
    assert_step(opt, expected)


def test_weight_and_bias_may_have_rates_and_decays_of_their_own() -> None:
    layer, x = declared(3, 2), data(7, 3)
    opt = optimizer([{"params": [layer.weight], "lr": 0.5, "weight_decay": 0.2}, {"params": [layer.bias], "lr": 2.0}])
    backward(layer, opt, x)
    joint = natural(layer, x, 0.1)
    expected = {
        layer.weight: 0.5 * (joint[layer.weight] + 0.2 * array(layer.weight)),
        layer.bias: 2.0 * joint[layer.bias],
    }
    assert_step(opt, expected)


@pytest.mark.parametrize(
    "difference", [{"damping": 0.2}, {"update_every": 5}, {"solver": "diagonal"}, {"tolerance": 1e-5}]
)
def test_weight_and_bias_share_the_settings_of_their_fisher(difference: dict[str, object]) -> None:
    net = Net()
    weights, biases = [("head.weight", net.head.weight)], [("head.bias", net.head.bias)]
    with pytest.raises(SettingError, match=rf"'head'.*{next(iter(difference))}.*give both the same"):
        optimizer([{"params": weights}, {"params": biases, **difference}])


def test_an_added_group_is_trained_like_the_others() -> None:
    net, x = Net(), data(7, 4)
    opt = optimizer(net.encoder.parameters())
    opt.add_param_group({"params": net.head.parameters(), "lr": 0.5})
    backward(net, opt, x)
    both = net.natural(x, 0.1)
    assert_step(opt, {p: (0.5 if p in set(net.head.parameters()) else 1.0) * v for p, v in both.items()})


def test_an_added_bias_joins_the_block_of_its_weight_in_the_middle_of_a_window() -> None:
    layer, x = declared(3, 2), data(7, 3)
    opt = optimizer([layer.weight], update_every=100)
    backward(layer, opt, x)
    assert_step(opt, natural(layer, x, 0.1, without=["bias"]))
    opt.add_param_group({"params": [layer.bias]})
    backward(layer, opt, x)
    assert_step(opt, natural(layer, x, 0.1))


def test_a_refused_group_leaves_the_optimizer_as_it_was() -> None:
    layer, x = declared(3, 2), data(7, 3)
    opt = optimizer([layer.weight])
    with pytest.raises(SettingError, match="give both the same"):
        opt.add_param_group({"params": [layer.bias], "damping": 0.5})
    assert len(opt.param_groups) == 1
    backward(layer, opt, x)
    assert_step(opt, natural(layer, x, 0.1, without=["bias"]))


def test_a_refused_optimizer_takes_no_layer_from_the_one_that_trains_it() -> None:
    net, x, extra = Net(), data(7, 4), nn.Linear(2, 2)
    opt = optimizer(net.parameters())
    with pytest.raises(DeclarationError, match="belongs to no declared layer"):
        optimizer([*net.parameters(), *extra.parameters()], undeclared="error")
    backward(net, opt, x)
    assert_step(opt, net.natural(x, 0.1))


def test_tied_layers_elsewhere_disturb_no_other_optimizer() -> None:
    one, two = declared(4, 3), declared(4, 3)
    two.weight = one.weight
    net, x = Net(), data(7, 4)
    opt = optimizer(net.parameters())
    backward(net, opt, x)
    assert_step(opt, net.natural(x, 0.1))


def test_declaring_twice_is_declaring_once() -> None:
    once, twice, x = declared(3, 2), declared(3, 2), data(7, 3)
    assert dagfisher.declare(twice, "bernoulli") is twice
    first, second = optimizer(once.parameters()), optimizer(twice.parameters())
    once(x), twice(x)
    staged = 8 * 7 * (3 + 2 + 1)
    assert list(first.memory_usage().values()) == list(second.memory_usage().values()) == [staged]


def test_a_refused_gaussian_declaration_leaves_both_modules_as_they_were() -> None:
    mean, taken, x = nn.Linear(3, 2).double(), declared(3, 2), data(7, 3)
    with pytest.raises(DeclarationError, match="already declared"):
        dagfisher.declare_gaussian(mean=mean, log_std=taken)
    dagfisher.declare(mean, "bernoulli")
    opt = optimizer(mean.parameters())
    backward(mean, opt, x)
    assert_step(opt, natural(mean, x, 0.1))


def test_ready_made_layers_need_no_declaration() -> None:
    torch.manual_seed(0)
    layer = dagfisher.nn.BernoulliLinear(3, 2, dtype=torch.float64)
    prior = dagfisher.nn.Prior(3, dtype=torch.float64)
    nn.init.normal_(prior.bias)
    x = data(7, 3)
    opt = optimizer([*prior.parameters(), *layer.parameters()], undeclared="error")
    opt.zero_grad()
    (-prior.log_prob(x).sum() + layer(x).square().sum()).backward()
    rate = logistic(array(prior.bias))
    expected = natural(layer, x, 0.1)
    expected[prior.bias] = 1.1 * array(prior.bias.grad) / (0.1 + rate * (1 - rate))
    assert_step(opt, expected)
