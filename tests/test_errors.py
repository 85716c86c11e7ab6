"""Every error names the layer and the remedy, moves nothing, and leaves the optimizer as good as new."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Net, affine, assert_step, backward, data, declared, loss, natural, optimizer, same, scaled
from torch import Tensor, nn
from torch.nn.functional import linear

import dagfisher
from dagfisher import DAGNaturalGradient, _reading, observe, sample_weights
from dagfisher.errors import (
    DagFisherError,
    DeclarationError,
    MissingStatisticsError,
    NonFiniteError,
    SampleWeightError,
    SettingError,
    ShapeError,
)

X = data(6, 4)
ENCODER, HEAD = r"layer 'encoder\.0'", "layer 'head'"


# What goes wrong in a step: each function does one bad step.


def bypassed(net: Net, opt: DAGNaturalGradient) -> None:
    opt.zero_grad()
    loss(linear(net.encoder(X), net.head.weight, net.head.bias)).backward()
    opt.step()


def without_gradients(net: Net, opt: DAGNaturalGradient) -> None:
    with torch.no_grad():
        net(X)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    opt.step()


def in_eval(net: Net, opt: DAGNaturalGradient) -> None:
    net.head.eval()
    backward(net, opt, X)
    net.head.train()
    opt.step()


def without_samples(net: Net, opt: DAGNaturalGradient) -> None:
    backward(net, opt, X[:0])
    opt.step()


def with_input(value: float) -> Callable[[Net, DAGNaturalGradient], None]:
    def bad(net: Net, opt: DAGNaturalGradient) -> None:
        x = X.clone()
        x[2, 1] = value
        backward(net, opt, x)
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        opt.step()

    return bad


def with_gradient(value: float, name: str = "head.bias") -> Callable[[Net, DAGNaturalGradient], None]:
    def bad(net: Net, opt: DAGNaturalGradient) -> None:
        backward(net, opt, X)
        net.get_parameter(name).grad.view(-1)[0] = value
        opt.step()

    return bad


def with_weights(*weights: float) -> Callable[[Net, DAGNaturalGradient], None]:
    def bad(net: Net, opt: DAGNaturalGradient) -> None:
        with sample_weights(torch.tensor(weights)):
            backward(net, opt, X)
        opt.step()

    return bad


def with_setting(**settings: Any) -> Callable[[Net, DAGNaturalGradient], None]:
    def bad(net: Net, opt: DAGNaturalGradient) -> None:
        group = opt.param_groups[0]
        good = {key: group[key] for key in settings}
        group.update(settings)
        try:
            backward(net, opt, X[:2])
            opt.step()
        finally:
            group.update(good)

    return bad


@dataclass
class Mishap:
    step: Callable[[Net, DAGNaturalGradient], None]
    error: type[DagFisherError]
    words: str
    settings: dict[str, Any] = field(default_factory=dict)


REUSES = {"update_every": 3}
MISHAPS = {
    "a bypassed layer": Mishap(bypassed, MissingStatisticsError, rf"{HEAD}: .*captured.*Call the module itself"),
    "passes under no_grad": Mishap(without_gradients, MissingStatisticsError, rf"{ENCODER}: .*gradients enabled"),
    "passes in eval": Mishap(in_eval, MissingStatisticsError, rf"{HEAD}: .*captured.*training mode"),
    "an empty batch": Mishap(without_samples, MissingStatisticsError, rf"{ENCODER}: .*no sample.*give it a batch"),
    "a NaN input": Mishap(with_input(math.nan), NonFiniteError, rf"{ENCODER}: .*parents.*Look at the data"),
    "an infinite input": Mishap(with_input(math.inf), NonFiniteError, rf"{ENCODER}: .*parents.*Look at the data"),
    "a NaN gradient": Mishap(with_gradient(math.nan), NonFiniteError, rf"{HEAD}: its gradient .*lower the learning"),
    "an infinite gradient": Mishap(
        with_gradient(-math.inf, "encoder.0.weight"), NonFiniteError, rf"{ENCODER}: its gradient .*lower the learning"
    ),
    "a NaN gradient on reuse": Mishap(with_gradient(math.nan), NonFiniteError, rf"{HEAD}: its gradient", REUSES),
    "an infinite gradient on reuse": Mishap(with_gradient(math.inf), NonFiniteError, rf"{HEAD}: its gradient", REUSES),
    "a NaN gradient of conjugate": Mishap(
        with_gradient(math.nan), NonFiniteError, rf"{HEAD}: its gradient", {"solver": "conjugate"}
    ),
    "negative weights": Mishap(
        with_weights(1, 1, -1, 1, 1, 1), SampleWeightError, rf"{ENCODER}: its sample weights.*not negative"
    ),
    "weights all zero": Mishap(with_weights(0, 0, 0, 0, 0, 0), SampleWeightError, rf"{ENCODER}: .*not all zero"),
    "a NaN weight": Mishap(with_weights(1, 1, math.nan, 1, 1, 1), SampleWeightError, rf"{ENCODER}: .*must be finite"),
    "an infinite weight": Mishap(with_weights(1, 1, math.inf, 1, 1, 1), SampleWeightError, rf"{ENCODER}: .*be finite"),
    "too few weights": Mishap(
        with_weights(1, 1, 1), SampleWeightError, rf"{ENCODER}: .*\(3,\) do not fit.*\(6,\).*one weight per sample"
    ),
    "a negative schedule of damping": Mishap(
        with_setting(damping=lambda step: -1.0), SettingError, rf"{ENCODER}: damping gave -1.0.*at least 0"
    ),
    "a schedule of updates that gives 0": Mishap(
        with_setting(update_every=lambda step: 0), SettingError, rf"{ENCODER}: update_every gave 0.*at least 1"
    ),
    "a schedule of updates that gives 0 on reuse": Mishap(
        with_setting(update_every=lambda step: 0), SettingError, rf"{ENCODER}: update_every gave 0.*at least 1", REUSES
    ),
}


@pytest.mark.parametrize("mishap", MISHAPS.values(), ids=MISHAPS.keys())
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"betas": (0.9, 0.99)}], ids=["", "momentum", "adam"])
def test_a_bad_step_says_why_moves_nothing_and_leaves_no_trace(mishap: Mishap, settings: dict[str, Any]) -> None:
    net, twin = Net(), Net()
    opt, other = (optimizer(n.parameters(), lr=0.01, **settings, **mishap.settings) for n in (net, twin))
    for n, o in ((net, opt), (twin, other)):
        backward(n, o, X)
        o.step()
    with pytest.raises(mishap.error, match=mishap.words):
        mishap.step(net, opt)
    assert same(net, twin)
    for step in range(3):
        for n, o in ((net, opt), (twin, other)):
            backward(n, o, data(6, 4, seed=step))
            o.step()
        assert same(net, twin)


def test_an_undeclared_gradient_is_checked_too() -> None:
    net = Net()
    net.plain = nn.Linear(2, 1).double()
    opt = optimizer(net.named_parameters())
    backward(net, opt, X)
    net.plain.weight.grad = torch.full((1, 2), math.inf, dtype=torch.float64)
    kept = [p.clone() for p in net.parameters()]
    with pytest.raises(NonFiniteError, match=r"parameter plain\.weight: its gradient"):
        opt.step()
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), kept, strict=True))


def test_a_schedule_that_breaks_later_breaks_the_step_it_breaks_for() -> None:
    net = Net()
    opt = optimizer(net.parameters(), lr=0.01, update_every=lambda step: 2 if step < 1 else math.nan)
    backward(net, opt, X)
    assert_step(opt, scaled(0.01, net.natural(X, 0.1)))
    backward(net, opt, X)
    kept = net.head.weight.clone()
    with pytest.raises(SettingError, match=rf"{ENCODER}: update_every gave nan at step 1"):
        opt.step()
    assert torch.equal(net.head.weight, kept)


def test_the_diagonal_without_damping_names_the_layer_whose_parent_is_always_zero() -> None:
    layer = declared(3, 2)
    opt = optimizer([(f"fc1.{n}", p) for n, p in layer.named_parameters()], solver="diagonal", damping=0.0)
    x = data(6, 3)
    x[:, 1] = 0
    backward(layer, opt, x)
    with pytest.raises(NonFiniteError, match=r"layer 'fc1': its natural gradient .*raise the damping"):
        opt.step()


# An accelerator does not read its flags on every step: it skips, and says so at the next refresh.


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"betas": (0.9, 0.99)},
        {"betas": (0.9, 0.99), "second_moment": "unit"},
        {"weight_decay": 0.1, "l1": 0.1},
    ],
    ids=str,
)
def test_an_accelerator_moves_nothing_on_a_bad_step(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "READ_FREELY", frozenset())
    net = Net()
    opt = optimizer(net.parameters(), lr=0.01, update_every=9, **settings)
    for value, moved in ((1.0, True), (math.nan, False), (-math.inf, False), (1.0, True)):
        kept = [p.clone() for p in net.parameters()]
        with_gradient(value)(net, opt)
        assert [not torch.equal(p, old) for p, old in zip(net.parameters(), kept, strict=True)] == [moved] * 4


def test_an_accelerator_says_at_the_next_refresh_that_it_skipped_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "READ_FREELY", frozenset())
    net, twin = Net(), Net()
    opt, other = (optimizer(n.parameters(), lr=0.01, update_every=3) for n in (net, twin))
    for n, o in ((net, opt), (twin, other)):
        backward(n, o, X)
        o.step()
    with_gradient(math.nan)(net, opt)
    assert same(net, twin)
    for n, o in ((net, opt), (twin, other)):
        backward(n, o, X)
        o.step()
    assert same(net, twin)
    backward(net, opt, X)
    with pytest.raises(NonFiniteError, match=r"since the last refresh.*moved nothing.*Look at the data"):
        opt.step()
    assert same(net, twin)
    backward(net, opt, X)
    assert_step(opt, scaled(0.01, net.natural(X, 0.1)))


# Gaussian heads


def heads() -> nn.ModuleDict:
    torch.manual_seed(0)
    model = nn.ModuleDict({"mu": nn.Linear(4, 2), "log_std": nn.Linear(4, 2)}).double()
    dagfisher.declare_gaussian(mean=model["mu"], log_std=model["log_std"])
    return model


@pytest.mark.parametrize(
    "means, scales, error, words",
    [
        ([X], [X, X], MissingStatisticsError, "mean head ran 1 times and its scale head 2 times.*equally often"),
        ([X], [], MissingStatisticsError, "mean head ran 1 times and its scale head 0 times.*equally often"),
        ([X], [X[:4]], ShapeError, "mean head ran on 6 samples and its scale head on 4.*the same samples"),
    ],
)
def test_the_heads_of_a_gaussian_run_together(
    means: list[Tensor], scales: list[Tensor], error: type[DagFisherError], words: str
) -> None:
    model = heads()
    opt = optimizer(model.parameters())
    kept = model["mu"].weight.clone()
    sum(loss(model[name](x)) for name, xs in (("mu", means), ("log_std", scales)) for x in xs).backward()
    with pytest.raises(error, match=rf"layer 'mu': its {words}"):
        opt.step()
    assert torch.equal(model["mu"].weight, kept)


def test_refused_weights_leave_no_half_of_a_pass_behind() -> None:
    model = heads()
    opt = optimizer(model.parameters())
    with pytest.raises(SampleWeightError, match=r"layer 'log_std'.*\(2,\)"), sample_weights(torch.ones(2)):
        model["log_std"](X)
    (loss(model["log_std"](X)) + loss(model["mu"](X))).backward()
    assert_step(opt, natural(model["mu"], X, 0.1, q=np.exp(-2 * affine(model["log_std"], X))))


# Settings and declarations


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"update_every": 0}, "update_every must be at least 1.*not 0"),
        ({"update_every": math.nan}, "update_every must be at least 1.*not nan"),
        ({"damping": -0.1}, "damping must be a finite number of at least 0"),
        ({"damping": math.inf}, "damping must be a finite number"),
        ({"solver": "lu"}, "solver must be one of auto, dense, woodbury, conjugate, diagonal, not 'lu'"),
        ({"lr": -1.0}, "lr must be a finite number of at least 0"),
        ({"lr": math.nan}, "lr must be a finite number of at least 0"),
        ({"weight_decay": -1.0}, "weight_decay must be"),
        ({"l1": -1.0}, "l1 must be"),
        ({"tolerance": -1.0}, "tolerance must be"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs momentum > 0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"betas": (0.9, 0.99), "momentum": 0.5}, "choose one"),
        ({"betas": (0.9, 0.99), "second_moment": "all"}, "second_moment must be one of element, unit, layer"),
        ({"second_moment": "unit"}, "second_moment is one of Adam's moments; give betas"),
        ({"undeclared": "ignore"}, "undeclared must be one of auto, sgd, adam, error, not 'ignore'"),
    ],
)
def test_a_setting_out_of_range_is_refused_wherever_it_is_given(settings: dict[str, Any], words: str) -> None:
    net = Net()
    with pytest.raises(SettingError, match=words):
        DAGNaturalGradient(net.parameters(), **settings)
    opt = DAGNaturalGradient(net.encoder.parameters())
    with pytest.raises(SettingError, match=words):
        opt.add_param_group({"params": net.head.parameters(), **settings})
    assert len(opt.param_groups) == 1


def tie(net: Net) -> None:
    other = declared(3, 2)
    other.weight = net.head.weight
    net.other = other
    try:
        DAGNaturalGradient(net.parameters())
    finally:  # as long as it is declared, no optimizer of this model goes on
        dagfisher.undeclare(other)


LINEAR = nn.Linear(3, 3)
REFUSED: dict[str, tuple[Callable[[Net], Any], type[Exception], str]] = {
    "an unknown family": (
        lambda net: dagfisher.declare(LINEAR, "cauchy"),
        DeclarationError,
        "unknown family 'cauchy'; choose one of bernoulli, categorical, deterministic, gaussian, laplace, poisson",
    ),
    "another family": (
        lambda net: dagfisher.declare(net.encoder[0], "poisson"),
        DeclarationError,
        rf"{ENCODER} is already declared as Bernoulli.*cannot also be Poisson.*undeclare, or build a new module",
    ),
    "other states": (
        lambda net: dagfisher.declare(net.head, "bernoulli", states=(-1, 1)),
        DeclarationError,
        rf"{HEAD} is already declared.*\(-1, 1\)",
    ),
    "a shared parameter": (
        tie,
        DeclarationError,
        "'(head|other)' and '(head|other)' share a parameter.*one module in both places.*calls='positions'",
    ),
    "a module without a map": (
        lambda net: dagfisher.declare(nn.Bilinear(2, 2, 2), "bernoulli"),
        DeclarationError,
        "a Bilinear cannot be declared.*Declare the linear map inside",
    ),
    "no module": (lambda net: dagfisher.declare(torch.ones(2), "bernoulli"), DeclarationError, "not a Tensor"),
    "an unknown setting": (
        lambda net: dagfisher.declare(LINEAR, "poisson", states=(0, 1)),
        DeclarationError,
        "family 'poisson' does not take these settings",
    ),
    "unknown states": (
        lambda net: dagfisher.declare(LINEAR, "bernoulli", states=(0, 2)),
        DeclarationError,
        r"must be \(0, 1\) or \(-1, 1\)",
    ),
    "an odd number of halves": (
        lambda net: dagfisher.declare(LINEAR, "gaussian"),
        DeclarationError,
        "it has 3 outputs; give it an even number",
    ),
    "no scale": (lambda net: dagfisher.declare_gaussian(mean=LINEAR), DeclarationError, "exactly one of"),
    "two scales": (lambda net: dagfisher.declare_gaussian(mean=LINEAR, std=1, log_std=net), DeclarationError, "one of"),
    "one head": (lambda net: dagfisher.declare_gaussian(mean=LINEAR, log_std=LINEAR), DeclarationError, "one module"),
    "heads of different sizes": (
        lambda net: dagfisher.declare_gaussian(mean=LINEAR, log_std=nn.Linear(3, 2)),
        DeclarationError,
        "mean has 3 units and the log_std has 2.*must be equal",
    ),
    "observing what is not declared": (lambda net: observe(LINEAR, X, X), DeclarationError, "call dagfisher.declare"),
    "observing parents that do not fit": (
        lambda net: observe(net.head, data(6, 5), data(6, 2)),
        ShapeError,
        rf"{HEAD}: parents of shape \(6, 5\) do not end in 3 features",
    ),
    "a list of weights": (lambda net: sample_weights([1.0]).__enter__(), SampleWeightError, "a tensor, not a list"),
}


@pytest.mark.parametrize("refused, error, words", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_and_the_optimizer_goes_on(
    refused: Callable[[Net], Any], error: type[Exception], words: str
) -> None:
    net = Net()
    opt = optimizer(net.parameters())
    with pytest.raises(error, match=words):
        refused(net)
    backward(net, opt, X)
    assert_step(opt, net.natural(X, 0.1))
