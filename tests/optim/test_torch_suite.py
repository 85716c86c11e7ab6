"""What PyTorch's own tests ask of every optimizer, asked of DAGNaturalGradient with declared and undeclared layers."""

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from as_torch import SCHEDULERS, Mixed, built, each_configuration, flat, p, train
from by_hand import Net, data, loss, optimizer, same
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DeclarationError

X = data(6, 4)


# What torch.testing knows to be wrong for any optimizer

ERRORS_OF_TORCH = """
import re, sys, types, unittest, warnings
try:
    import expecttest
except ImportError:  # what torch.testing needs of it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
try:
    from torch.testing._internal.common_optimizers import get_error_inputs_for_all_optims
except ImportError as error:
    print("missing:", error)
    raise SystemExit
import torch
from dagfisher import DAGNaturalGradient

cases = get_error_inputs_for_all_optims("cpu", torch.float32)
for case in cases:
    given = case.optimizer_error_input
    params = [torch.nn.Parameter(torch.ones(2))] if given.params is None else given.params
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            DAGNaturalGradient(params, **given.kwargs)
    except case.error_type as error:
        assert re.search(case.error_regex, str(error)), (given.desc, error)
    else:
        raise AssertionError(given.desc)
print("refused:", len(cases))
"""


@pytest.mark.slow
def test_what_torch_says_every_optimizer_refuses_is_refused_in_the_same_words() -> None:
    # In a process of its own: torch.testing changes flags of torch.
    run = subprocess.run([sys.executable, "-c", ERRORS_OF_TORCH], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    if run.stdout.startswith("missing"):
        pytest.skip(run.stdout)
    assert int(run.stdout.split()[-1]) >= 4


BAD_PARAMS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a bare tensor": (p, TypeError, "should be an iterable of Tensors or dicts"),
    "a set in a group": (lambda: [{"params": {p(), p()}}], TypeError, "ordered collections"),
    "a dict of parameters": (lambda: dict(Net().named_parameters()), TypeError, "must be tensors, not a str"),
    "names for some": (lambda: [("one", p()), p()], ValueError, "Some param names are missing"),
    "names in one group": (
        lambda: [{"params": [("one", p())]}, {"params": [p()]}], ValueError, "param groups should be with/without names"
    ),
    "one parameter in two groups": (
        lambda: [{"params": [q]} for q in [p()] * 2], ValueError, "more than one parameter group"
    ),
    "no leaf": (lambda: [p() * 2], ValueError, "non-leaf"),
}  # fmt: skip


@pytest.mark.parametrize("params, error, words", BAD_PARAMS.values(), ids=BAD_PARAMS.keys())
def test_params_that_torch_refuses_are_refused_with_the_same_kind_of_error(
    params: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error):
        torch.optim.SGD(params(), lr=0.1)
    with pytest.raises(error, match=words):
        DAGNaturalGradient(params())


def test_a_group_that_is_refused_later_leaves_the_optimizer_as_it_was() -> None:
    net, twin = Net(), Net()
    opt, other = (built(n, named=True) for n in (net, twin))
    held = next(net.parameters())
    for group in ([p()], {"params": [p()]}, {"params": [held]}, {"params": {p()}}, {"params": [("x", p())], "lr": -1}):
        with pytest.raises((TypeError, ValueError)):
            opt.add_param_group(group)  # type: ignore[arg-type]
    train(net, opt, range(3))
    train(twin, other, range(3))
    assert same(net, twin)
    assert len(opt.param_groups) == 1


# Names

NAMES = [name for name, _ in Mixed().named_parameters()]


@pytest.mark.parametrize("saved", (True, False))
@pytest.mark.parametrize("loaded", (True, False))
def test_names_are_saved_and_loaded_as_torch_does(saved: bool, loaded: bool) -> None:
    net, twin = Mixed(), Mixed()
    opt, other = built(net, saved), built(twin, loaded)
    train(net, opt, range(2))
    state = opt.state_dict()
    assert ("param_names" in state["param_groups"][0]) == saved
    other.load_state_dict(state)
    sgd = torch.optim.SGD(twin.named_parameters() if loaded else twin.parameters())
    sgd.load_state_dict(torch.optim.SGD(net.named_parameters() if saved else net.parameters()).state_dict())
    assert other.param_groups[0].get("param_names") == sgd.param_groups[0].get("param_names")
    assert other.param_groups[0].get("param_names") == (NAMES if saved or loaded else None)


def test_names_of_the_saved_optimizer_win_and_name_errors_stay_readable() -> None:
    net = Net()
    opt = built(net, named=True)
    state = opt.state_dict()
    state["param_groups"][0]["param_names"] = ["a", "b", "c", "d"]
    opt.load_state_dict(state)
    assert opt.param_groups[0]["param_names"] == ["a", "b", "c", "d"]
    opt.add_param_group({"params": [("extra", p())]})
    assert opt.param_groups[1]["param_names"] == ["extra"]
    with pytest.raises(DeclarationError, match="parameter extra belongs to no declared layer"):
        optimizer([*Net().named_parameters(), ("extra", p())], undeclared="error")


# State


@each_configuration
def test_a_state_is_never_empty_and_defaults_are_in_every_group(settings: dict[str, Any]) -> None:
    net = Mixed()
    opt = built(net, **settings)
    opt.add_param_group({"params": [p()]})
    train(net, opt, range(2))
    assert all(len(state) > 0 for state in opt.state.values())
    assert all(key in group for key in opt.defaults for group in opt.param_groups)
    twin = Mixed()
    other = built(twin, **settings)
    other.add_param_group({"params": [p()]})
    other.load_state_dict(opt.state_dict())
    assert all(len(state) > 0 for state in other.state.values())
    assert "DAGNaturalGradient (step 2)" in repr(other)
    assert "param_names" not in repr(built(Net(), named=True))


@each_configuration
def test_a_state_dict_is_deterministic_and_loading_changes_it_not(settings: dict[str, Any]) -> None:
    net = Mixed()
    opt = built(net, **settings)
    train(net, opt, range(3))
    twin = copy.deepcopy(net)
    other = built(twin, **settings)
    state = copy.deepcopy(opt.state_dict())
    keys = {key: id(value) for key, value in state.items()}
    other.load_state_dict(state)
    train(net, opt, range(3, 6))
    train(twin, other, range(3, 6))
    assert same(net, twin)
    assert flat(opt.state_dict()) == flat(other.state_dict())
    assert {key: id(value) for key, value in state.items()} == keys
    assert flat(state) != flat(opt.state_dict())
    fresh = Mixed()
    again = built(fresh, **settings)
    train(fresh, again, range(3))
    assert flat(state) == flat(again.state_dict())


@each_configuration
def test_a_state_dict_goes_through_a_file_with_weights_only(settings: dict[str, Any]) -> None:
    net, file = Mixed(), io.BytesIO()
    opt = built(net, **settings)
    train(net, opt, range(3))
    torch.save(opt.state_dict(), file)
    file.seek(0)
    assert flat(torch.load(file, weights_only=True)) == flat(opt.state_dict())


@each_configuration
def test_a_state_dict_from_before_a_flag_existed_is_loaded(settings: dict[str, Any]) -> None:
    net, twin = Mixed(), Mixed()
    opt, other = built(net, **settings), built(twin, **settings)
    train(net, opt, range(2))
    state = opt.state_dict()
    for group in state["param_groups"]:
        del group["maximize"], group["foreach"]
    other.load_state_dict(state)
    twin.load_state_dict(net.state_dict())
    train(net, opt, range(2, 4))
    train(twin, other, range(2, 4))
    assert same(net, twin)


def test_no_gradients_and_gradients_of_zero_move_nothing() -> None:
    net = Mixed()
    opt = built(net)
    train(net, opt, range(1))
    before = copy.deepcopy(net)
    opt.zero_grad()
    opt.step()
    assert same(net, before)
    opt.zero_grad()
    (0 * loss(net(X))).backward()
    opt.step()
    assert same(net, before)


@pytest.mark.parametrize("schedule", [None, *SCHEDULERS.values()], ids=["none", *SCHEDULERS])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("contiguous", [True, False])
def test_training_goes_in_the_right_direction(
    schedule: Callable[..., Any] | None, maximize: bool, contiguous: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 3).double()
    if not contiguous:
        layer.weight = nn.Parameter(torch.randn(3, 5, 2, dtype=torch.float64)[..., 0])
    model = nn.Sequential(layer, nn.Linear(3, 2).double())
    dagfisher.declare(layer, "gaussian", std=1.0)
    opt = DAGNaturalGradient(model.parameters(), lr=1e-3, damping=0.5, maximize=maximize)
    scheduler = None if schedule is None else schedule(opt)
    x = torch.randn(4, 5, dtype=torch.float64)

    def closure() -> Tensor:
        opt.zero_grad()
        value = model(x).square().sum()
        value.backward()
        return value

    values = []
    for _ in range(15):
        values.append(opt.step(closure).item())
        if scheduler is not None:
            scheduler.step()
    assert values[-1] > values[0] if maximize else values[-1] < values[0]
