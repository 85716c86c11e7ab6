"""What users get wrong: a typed error with the layer and the remedy, nothing moved, and a run that goes on unharmed."""

import copy
import math

import numpy as np
import pytest
import torch
from by_hand import Net, data, loss, optimizer, same
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm
from ways_wrong import (
    Backwards,
    Bad,
    Convolution,
    Counts,
    Heads,
    WithTable,
    X,
    asked_too_early,
    between,
    build,
    carried,
    cleared,
    complex_parameter,
    damaged,
    declaring,
    factors,
    fresh,
    layer_state,
    moments,
    newer,
    of_another_model,
    often,
    parametrized,
    removed,
    replaced,
    reshaped,
    reused,
    ruined,
    sampled_too_late,
    set_to,
    sparse,
    step,
    two_outputs,
    uncaptured,
    weighted,
    with_gradients,
    with_input,
    with_value,
)

from dagfisher import DAGNaturalGradient, declare_gaussian, observe
from dagfisher.errors import (
    CheckpointError,
    DagFisherError,
    DeclarationError,
    GradientError,
    MissingStatisticsError,
    NonFiniteError,
    SampleWeightError,
    SettingError,
    ShapeError,
)

ENCODER, HEAD = r"layer 'encoder\.0'", r"layer 'head'"
Case = tuple[Bad, type[DagFisherError], str]
NEGATIVE, WORD = -1.0, "often"
NO_STATE = "not a state_dict of DAGNaturalGradient"
CASES: dict[str, Case] = {
    # Numbers that are none
    "a NaN weight": (with_value("head.weight", math.nan), NonFiniteError, rf"{HEAD}: its weight itself.*the data"),
    "an infinite bias": (with_value("head.bias", math.inf), NonFiniteError, rf"{HEAD}: its bias itself.*the data"),
    "a NaN loss": (lambda n, o: step(n, o, factor=math.nan), NonFiniteError, rf"{HEAD}: its gradient.*the loss"),
    "an infinite loss": (lambda n, o: step(n, o, factor=math.inf), NonFiniteError, rf"{HEAD}: its gradient"),
    "gradients too large to add": (with_gradients(1.7e308), NonFiniteError, "(overflows|infinity).*no parameter"),
    "data too large": (lambda n, o: step(n, o, 1e308 * X), NonFiniteError, rf"{ENCODER}: .*Look at the data"),
    # Sample weights
    "complex weights": (weighted(torch.ones(6, dtype=torch.complex64)), SampleWeightError, "real numbers"),
    "one weight for all": (weighted(torch.tensor(1.0)), SampleWeightError, rf"{ENCODER}: .*\(\).*one weight per"),
    "too many weights": (weighted(torch.ones(7)), SampleWeightError, rf"{ENCODER}: .*\(7,\).*\(6,\).*one weight per"),
    "weights of another rank": (weighted(torch.ones(6, 1)), SampleWeightError, rf"{ENCODER}: .*\(6, 1\).*per sample"),
    "weights that are a number": (weighted(1.0), SampleWeightError, "must be a tensor, not a float"),
    "weights that are an array": (weighted(np.ones(6)), SampleWeightError, "must be a tensor, not a ndarray"),
    "weights too large to add": (
        weighted(torch.full((6,), 1.7e308, dtype=torch.float64)), SampleWeightError, rf"{ENCODER}: .*must be finite"
    ),
    # Passes
    "gradients put back after zero_grad": (cleared, MissingStatisticsError, rf"{ENCODER}: .*zero_grad\(\)\. Call the"),
    "only passes in no_capture": (uncaptured, MissingStatisticsError, rf"{ENCODER}: .*outside no_capture\(\)"),
    "parameters of another model": (of_another_model, MissingStatisticsError, rf"{ENCODER} has never run.*leave them"),
    "a removed layer": (removed, MissingStatisticsError, "layer 'removed' has never run.*leave them out"),
    "two optimizers of one layer": (newer, MissingStatisticsError, rf"{ENCODER}: a newer optimizer.*build this anew"),
    "a layer with two outputs": (two_outputs, ShapeError, r"layer 'pair': its output is a tuple.*one tensor"),
    "observed predictors of other units": (
        lambda n, o: observe(n.head, data(6, 3), data(6, 5)), ShapeError, rf"{HEAD}: .*\(6, 5\).*2 units.*new module"
    ),
    "observed predictors of other samples": (
        lambda n, o: observe(n.head, data(6, 3), data(5, 2)), ShapeError, rf"{HEAD}: 6 rows of parents.*5 rows"
    ),
    "observed parents in a list": (
        lambda n, o: observe(n.head, [1.0], data(1, 2)), ShapeError, rf"{HEAD}: .*one tensor, not a list"
    ),
    "no observed parents": (
        lambda n, o: observe(n.head, None, data(6, 2)), ShapeError, rf"{HEAD}: .*one tensor, not a NoneType"
    ),
    "observed parents without an axis": (
        lambda n, o: observe(n.head, torch.tensor(1), data(1, 2)), ShapeError, rf"{HEAD}: .*\(\) do not end in 3"
    ),
    "an observed predictor in a list": (
        lambda n, o: observe(n.head, data(6, 3), [1.0]), ShapeError, rf"{HEAD}: its output is a list.*one tensor"
    ),
    # Parameters that change under the optimizer
    "a replaced weight": (replaced("weight", torch.clone), DeclarationError, rf"{HEAD}: its weight was replaced.*anew"),
    "a replaced bias": (replaced("bias", torch.zeros_like), DeclarationError, rf"{HEAD}: its bias was replaced.*anew"),
    "more units than declared": (reshaped((5, 3), 5), ShapeError, rf"{HEAD}: .*2 units.*declare a new module"),
    "more parents than declared": (reshaped((2, 7), 2), ShapeError, rf"{HEAD}: parents of shape.*end in 3 features"),
    "spectral_norm in the middle": (parametrized, DeclarationError, rf"{HEAD}: its weight is computed.*Remove the"),
    "weight_norm": (fresh(parametrizations.weight_norm), DeclarationError, "layer 'fc': its weight is comp.*Remove"),
    "the older weight_norm": (fresh(weight_norm), DeclarationError, "layer 'fc': its weight is computed.*undeclared"),
    "a pruned weight": (fresh(lambda fc: prune.random_unstructured(fc, "weight", 0.5)), DeclarationError, "'fc'.*weig"),
    "a pruned bias": (fresh(lambda fc: prune.random_unstructured(fc, "bias", 0.5)), DeclarationError, "'fc': its bias"),
    "a weight with a norm before it is declared": (
        declaring(layer=lambda: parametrizations.orthogonal(nn.Linear(3, 3))), DeclarationError, "weight is computed"
    ),
    "a complex parameter": (complex_parameter, GradientError, "phase has a complex.*; keep real and.*torch.optim"),
    # Settings in the middle of a run
    "a NaN rate": (set_to(lr=math.nan), SettingError, "lr must be a finite number of at least 0, not nan"),
    "a rate in words": (set_to(lr="fast"), SettingError, "lr must be a finite number of at least 0, not 'fast'"),
    "momentum of one": (set_to(momentum=1.0), SettingError, r"momentum must be in \[0, 1\)"),
    "an infinite decay": (set_to(weight_decay=math.inf), SettingError, "weight_decay must be a finite number"),
    "a negative l1": (set_to(l1=NEGATIVE), SettingError, "l1 must be a finite number of at least 0"),
    "a NaN tolerance": (set_to(tolerance=math.nan), SettingError, "tolerance must be a finite number"),
    "another solver": (set_to(solver="lu"), SettingError, "solver must be one of auto, dense.*not 'lu'"),
    "one beta": (set_to(betas=0.9, momentum=0.0), SettingError, "betas must be two numbers"),
    "betas in words": (set_to(betas=("a", "b"), momentum=0.0), SettingError, "betas must be two numbers"),
    "negative updates": (set_to(update_every=-3), SettingError, "update_every must be at least 1.*not -3"),
    "updates in words": (set_to(update_every=lambda t: WORD), SettingError, rf"{ENCODER}: update_every gave 'often'"),
    "updates of None": (set_to(update_every=lambda t: None), SettingError, rf"{ENCODER}: update_every gave None"),
    "damping of None": (set_to(damping=lambda t: None), SettingError, rf"{ENCODER}: damping gave None.*at least 0"),
    "an infinite damping": (set_to(damping=lambda t: math.inf), SettingError, rf"{ENCODER}: damping gave inf.*finite"),
    # Questions and calls at the wrong time
    "blocks before any pass": (asked_too_early, MissingStatisticsError, rf"{HEAD} has no blocks yet.*Run the model in"),
    "a sample after backward": (sampled_too_late, MissingStatisticsError, "came after backward.*retain_graph=True"),
    "a rate of two numbers": (set_to(lr=torch.ones(2)), SettingError, r"Tensor lr must be 1-element.*\(2,\)"),
    "damping of two numbers": (set_to(damping=lambda t: torch.ones(2)), SettingError, "damping gave tensor"),
    "a NaN tensor": (set_to(lr=torch.tensor(math.nan)), SettingError, "lr must be a finite number of at least 0"),
    "a fused step": (set_to(fused=True), SettingError, "fused=True is not supported.*no fused kernel.*leave it out"),
    "a step in a graph": (set_to(capturable=True), SettingError, "capturable=True is not supported.*CUDA graph"),
    "maximize in words": (set_to(maximize=WORD), SettingError, "maximize must be True or False, not 'often'"),
    "a copy without its model": (
        lambda n, o: copy.deepcopy(o).step(), DeclarationError, "without its model.*together, as one tuple"
    ),
    # Building an optimizer
    "a module for parameters": (build(nn.Linear(2, 2)), SettingError, r"give model\.parameters\(\)"),
    "names for parameters": (build({"fc": torch.ones(2)}), SettingError, "params must be tensors, not a str"),
    "a differentiable step": (build(differentiable=True), SettingError, "differentiable=True is not supp.*no graph"),
    "numbers for parameters": (build([1.0, 2.0]), SettingError, "params must be tensors, not a float"),
    "a group without parameters": (build([{"lr": 0.1}]), SettingError, "needs the key 'params'; this one has 'lr'"),
    "groups and parameters": (build([{"params": []}, torch.ones(2)]), SettingError, "not both"),
    "a misspelt setting": (
        lambda n, o: o.add_param_group({"params": [torch.ones(2)], "dampening": 0.1}), SettingError, "mean 'damping'"
    ),
    "three betas": (build(betas=(0.9, 0.9, 0.9)), SettingError, "betas must be two numbers"),
    "a damping in words": (build(damping="some"), SettingError, "damping must be a finite.*least 0, a call.*or 'auto'"),
    "an undeclared parameter": (
        lambda n, o: DAGNaturalGradient([*Net().named_parameters(), ("extra", nn.Parameter(torch.ones(2)))],
                                        undeclared="error"),
        DeclarationError, "parameter extra belongs to no declared layer; declare its module"
    ),
    # Declarations
    "rows of 0": (declaring(max_rows=0), DeclarationError, "max_rows must be a whole number of at.*inf, not 0"),
    "rows and a half": (declaring(max_rows=2.5), DeclarationError, "max_rows must be a whole number.*not 2.5"),
    "rows in words": (declaring(max_rows="all"), DeclarationError, "max_rows must be a whole number.*not 'all'"),
    "a std of 0": (declaring("gaussian", std=0), DeclarationError, "std must be a positive finite number, not 0"),
    "a NaN std": (declaring("gaussian", std=math.nan), DeclarationError, "std must be a positive finite number"),
    "a std in words": (declaring("gaussian", std="one"), DeclarationError, "does not take these settings"),
    "a negative min_std": (declaring("gaussian", min_std=NEGATIVE), DeclarationError, "min_std must be a finite"),
    "an unknown scale": (declaring("gaussian", scale="std"), DeclarationError, "must be 'log_std' or 'log_var'"),
    "states in a list": (declaring(states=[0, 2]), DeclarationError, r"must be \(0, 1\) or \(-1, 1\)"),
    "classes that leave a rest": (declaring("categorical", classes=3), DeclarationError, "4 outputs cannot be divided"),
    "one class": (declaring("categorical", classes=1), DeclarationError, "variables of 1 classes"),
    "classes in words": (declaring("categorical", classes="two"), DeclarationError, "variables of two classes"),
    "a lazy layer": (declaring(layer=lambda: nn.LazyLinear(4)), DeclarationError, "has no parameters yet; run it on"),
    "a name for a module": (declaring(layer=lambda: "head"), DeclarationError, "only an nn.Module.*not a str"),
    "a container": (declaring(layer=nn.Sequential), DeclarationError, "Declare the linear map inside"),
    "a name for a head": (
        lambda n, o: declare_gaussian(mean=nn.Linear(3, 2), log_std="s"), DeclarationError, "a str cannot be declared"
    ),
    "a head that is a layer already": (
        lambda n, o: declare_gaussian(mean=n.head, log_var=nn.Linear(3, 2)), DeclarationError, rf"{HEAD} is already"
    ),
    # Checkpoints
    "no checkpoint": (lambda n, o: o.load_state_dict(None), CheckpointError, NO_STATE),
    "no groups": (damaged(lambda s: s.update(param_groups=None)), CheckpointError, NO_STATE),
    "infinite steps": (damaged(lambda s: s["dagfisher"].update(step=math.inf)), CheckpointError, NO_STATE),
    "negative steps": (damaged(lambda s: s["dagfisher"].update(step=-1)), CheckpointError, "damaged.*-1 steps"),
    "a refresh to come": (layer_state(lambda s: s.update(refreshed=9)), CheckpointError, f"{HEAD}: .*damaged"),
    "a short layout": (layer_state(lambda s: s.update(layout=[True])), CheckpointError, f"{HEAD}: .*damaged"),
    "a NaN damping": (layer_state(lambda s: s.update(damping=math.nan)), CheckpointError, f"{HEAD}: .*damaged"),
    "factors of another shape": (factors(torch.ones(2, 3, 3).double()), CheckpointError, f"{HEAD}: .*damaged"),
    "NaN factors": (factors(torch.full((2, 4, 4), math.nan).double()), CheckpointError, f"{HEAD}: .*not finite"),
    "factors in words": (factors(WORD), CheckpointError, f"{HEAD}: .*damaged"),
    "NaN moments": (
        moments(momentum_buffer=torch.tensor([1.0, math.nan])), CheckpointError, r"momentum_buffer of parameter head\.b"
    ),
    "moments in words": (moments(momentum_buffer=WORD), CheckpointError, r"parameter head\.bias is damaged"),
    "half of the moments": (moments(momentum_buffer=None, step=3), CheckpointError, r"head\.bias are not complete"),
    "layers that nobody carries": (
        carried(lambda s: [entry.pop("dagfisher") for entry in s.values()]), CheckpointError, NO_STATE
    ),
    "a layer that nobody carries": (
        carried(lambda s: s["head.weight"].pop("dagfisher")), CheckpointError, "1 declared layers.*2; declare the same"
    ),
    "a word for a layer": (carried(lambda s: s["head.bias"].update(dagfisher=WORD)), CheckpointError, NO_STATE),
    "moments in a list": (damaged(lambda s: s.update(state=[1])), CheckpointError, "does not fit this optimizer"),
}  # fmt: skip
OTHERS: dict[str, tuple[type[nn.Module], Bad, type[DagFisherError], str]] = {
    "rates too large": (Counts, with_value("rate.bias", 800.0), NonFiniteError, "layer 'rate': .*an exponential"),
    "scales too small": (Heads, with_value("scale.bias", -800.0), NonFiniteError, "layer 'mean': .*an exponential"),
    "a mean that runs more often": (
        Heads, often, MissingStatisticsError, "layer 'mean': its mean head ran 2 times.*1 times.*equally often"
    ),
    "a second scale for a mean": (
        Heads, lambda n, o: declare_gaussian(mean=n.mean, log_std=nn.Linear(4, 2)), DeclarationError,
        "layer 'scale' is already the scale head of 'mean'.*Build a new module",
    ),
    "a second mean for a scale": (
        Heads, lambda n, o: declare_gaussian(mean=nn.Linear(4, 2), log_std=n.scale), DeclarationError,
        "layer 'scale' is already the scale head of 'mean'.*Build a new module",
    ),
    "a convolution without samples": (
        Convolution, lambda n, o: step(n, o, X[:0]), MissingStatisticsError, "layer 'conv': .*no sample.*a batch"
    ),
    "images of another rank": (
        Convolution, lambda n, o: observe(n.conv, data(4), data(6, 2, 3)), ShapeError, r"'conv': .*\(4,\) are no batch"
    ),
    "a NaN in the data": (Backwards, with_input(math.nan), NonFiniteError, "layer 'first': its captured parents.*data"),
    "an infinity in the data": (Backwards, with_input(math.inf), NonFiniteError, "layer 'first': its captured parents"),
    "a NaN weight of the first layer": (
        Backwards, with_value("first.weight", math.nan), NonFiniteError, "layer 'first': its weight itself.*checkpoint"
    ),
    "a NaN bias of the last layer": (
        Backwards, with_value("last.bias", math.nan), NonFiniteError, "layer 'last': its bias itself.*checkpoint"
    ),
    "a NaN weight that nobody declared": (
        Backwards, with_value("norm.weight", math.nan), NonFiniteError, "parameter norm.weight itself holds.*checkpoint"
    ),
    "a NaN between two layers": (
        Backwards, between(torch.log), NonFiniteError, "layer 'last': its captured parents.*no layer before it does"
    ),
    "a NaN in the gradient between two layers": (
        Backwards, between(ruined), NonFiniteError, "layer 'first': its gradient holds.*Look at the loss"
    ),
    "a NaN in every gradient": (
        Backwards, lambda n, o: step(n, o, factor=math.nan), NonFiniteError, "layer 'last': its gradient.*the loss"
    ),
    "a NaN in the gradient, later": (
        Backwards, reused(between(ruined)), NonFiniteError, "layer 'first': its gradient holds.*Look at the loss"
    ),
    "a NaN in every gradient, later": (
        Backwards, reused(lambda n, o: step(n, o, factor=math.nan)), NonFiniteError, "layer 'last': its gradient"
    ),
    "a NaN weight, later": (
        Backwards, reused(with_value("first.weight", math.nan)), NonFiniteError, "layer 'first': its weight itself"
    ),
    "a NaN asked for": (
        Backwards, lambda n, o: (loss(n(X * math.nan)).backward(), o.natural_gradient()), NonFiniteError,
        "layer 'first': its captured parents",
    ),
    "a sparse gradient": (WithTable, sparse, GradientError, r"parameter table\.weight has a sparse.*sparse=False"),
}  # fmt: skip
ALL = {name: (Net, *case) for name, case in CASES.items()} | OTHERS


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("model, bad, error, words", ALL.values(), ids=ALL.keys())
def test_bad_input_is_refused_by_name_moves_nothing_and_leaves_no_trace(
    model: type[nn.Module], bad: Bad, error: type[DagFisherError], words: str
) -> None:
    net, twin = model(), model()
    opt, other = (optimizer(n.named_parameters(), lr=0.01, momentum=0.9, update_every=2) for n in (net, twin))
    for seed in range(2):
        step(net, opt, data(6, 4, seed=seed))
        step(twin, other, data(6, 4, seed=seed))
    with pytest.raises(error, match=words):
        bad(net, opt)
    assert same(net, twin)
    for seed in range(2, 6):
        step(net, opt, data(6, 4, seed=seed))
        step(twin, other, data(6, 4, seed=seed))
        assert same(net, twin)
    assert not same(net, model())


TORCH: dict[str, tuple[type[nn.Module], torch.Tensor]] = {
    "whole numbers": (Net, torch.ones(6, 4, dtype=torch.int64)),
    "another precision": (Net, X.float()),
    "too few features": (Net, data(6, 3)),
    "no axis": (Net, torch.tensor(1.0, dtype=torch.float64)),
    "a rank too many": (Convolution, data(2, 6, 4)),
    "too many features": (Heads, torch.cat([X, X], 1)),
}


@pytest.mark.parametrize("model, x", TORCH.values(), ids=TORCH.keys())
def test_what_torch_itself_refuses_leaves_no_trace(model: type[nn.Module], x: torch.Tensor) -> None:
    net, twin = model(), model()
    opt, other = (optimizer(n.named_parameters(), lr=0.01, momentum=0.9) for n in (net, twin))
    for seed in range(3):
        with pytest.raises(RuntimeError):
            step(net, opt, x)
        step(net, opt, data(6, 4, seed=seed))
        step(twin, other, data(6, 4, seed=seed))
        assert same(net, twin)
