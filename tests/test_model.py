"""Whole models declared by rules, and the table that shows them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import declare_model, summary
from dagfisher.bypass import bypassed
from dagfisher.declaration import declaration_of
from dagfisher.errors import DeclarationError


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 8), nn.Tanh())
        self.mean, self.log_var = nn.Linear(8, 2), nn.Linear(8, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 10, bias=False))
        self.norm = nn.LayerNorm(10)


RULES = {
    "mean": {"family": "gaussian", "log_var": "log_var"},
    "decoder.2": {"family": "bernoulli", "states": (-1, 1)},
    "decoder.*": None,
    nn.Linear: "deterministic",
}


def families(model: nn.Module) -> dict[str, str]:
    found = {name: declaration_of(module) for name, module in model.named_modules()}
    return {name: d.family.name for name, d in found.items() if d is not None}


def test_names_come_before_types_and_the_first_rule_that_fits_counts(capsys: pytest.CaptureFixture[str]) -> None:
    model = VAE()
    assert declare_model(model, RULES) is model  # type: ignore[arg-type]
    assert families(model) == {
        "encoder.0": "deterministic",
        "mean": "gaussian mean",
        "log_var": "gaussian scale",
        "decoder.2": "bernoulli",
    }
    declaration = declaration_of(model.decoder[2])
    assert declaration is not None and declaration.family == dagfisher.families.Bernoulli((-1, 1))
    assert capsys.readouterr().out.strip() == summary(model)


def test_the_table_counts_units_parents_parameters_and_blocks() -> None:
    model = VAE()
    dagfisher.declare(model.decoder[2], "bernoulli")
    dagfisher.declare(model.encoder[0], "bernoulli")
    lines = {line.split()[0]: line.split() for line in summary(model).splitlines()[2:]}
    assert lines["encoder.0"] == ["encoder.0", "Linear", "bernoulli", "8", "10", "88", "11×11"]
    assert lines["decoder.2"] == ["decoder.2", "Linear", "bernoulli", "10", "8", "80", "8×8"]
    assert lines["norm"] == ["norm", "LayerNorm", "not", "declared", "20"]
    assert list(lines) == ["encoder.0", "mean", "log_var", "decoder.0", "decoder.2", "norm"]


def test_with_an_optimizer_the_table_has_solvers_and_bytes() -> None:
    model = nn.Sequential(dagfisher.nn.BernoulliConv2d(1, 4, 3), nn.Flatten(), dagfisher.nn.BernoulliLinear(16, 2))
    optimizer = exact(model[0].parameters(), solver="dense")
    assert "not yet" in summary(model, optimizer)
    model(torch.randn(3, 1, 4, 4)).sum().backward()
    optimizer.step()
    lines = [line.split() for line in summary(model, optimizer).splitlines()[2:]]
    assert lines[0] == ["0", "BernoulliConv2d", "bernoulli", "4", "9", "40", "10×10", "dense", "1,600"]
    assert lines[1][-2:] == ["not", "trained"]


def test_a_model_without_parameters_has_an_empty_table() -> None:
    assert len(summary(nn.Tanh()).splitlines()) == 2


class Attentive(nn.Module):
    """An attention, a lazy layer, containers, a parameter of its own and a layer that is declared already."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh()))
        self.odd, self.mean, self.log_var = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(4, 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.norm, self.table = nn.LayerNorm(4), nn.Embedding(3, 4)
        self.late = nn.LazyLinear(2)
        self.prior = nn.Parameter(torch.zeros(3))
        self.known = dagfisher.declare(nn.Linear(4, 2), "bernoulli", max_rows=3)


def traces(model: nn.Module) -> dict[str, Any]:
    """All that declaring could leave at the modules of a model."""
    found = {}
    for name, module in model.named_modules():
        declaration = declaration_of(module)
        told = None if declaration is None else {"id": id(declaration), **vars(declaration)}
        hooks = list(module._forward_hooks.values()), list(module._forward_hooks_with_kwargs)
        found[name] = (told, hooks, sorted(module.__dict__))
    return found


GAUSSIAN = {"family": "gaussian"}
WRONG: dict[str, tuple[Any, str]] = {
    "no such name": ({"body.9": "bernoulli"}, "no module fits the rule 'body.9'; there are .*'body.0', .*mean 'body.0"),
    "a name like nothing": ({"zzz": "bernoulli"}, "no module fits the rule 'zzz'; there are 'attention', .*'known'.$"),
    "no such type": ({nn.Conv2d: "bernoulli"}, "no module fits the rule 'Conv2d'; there are 'attention', 'atten"),
    "a container": ({"body": "bernoulli"}, r"'body' fits only 'body', which has no par.*Write 'body\.\*'.*'body.0'"),
    "a type of containers": ({nn.Sequential: None}, r"'Sequential' fits only 'body', 'body.1', which .*'body\.\*'"),
    "a container of nothing": ({"body.1": "bernoulli"}, "'body.1' fits only 'body.1'.*none inside either"),
    "a parameter": ({"prior": "bernoulli"}, "'prior' is a parameter, not a module; declare it with declare_parameter"),
    "a number for a key": ({3: "bernoulli"}, "a rule is for a name, a pattern or a type of modules, not for 3"),
    "a module for a key": ({nn.Tanh(): "bernoulli"}, r"a rule is for a name.*not for Tanh\(\)"),
    "a number for a rule": ({"mean": 3}, "the rule 'mean' must be a family, a dict with a family, or None, not 3"),
    "no family": ({"mean": {"std": 1.0}}, "the rule 'mean' needs a 'family'; None leaves"),
    "nothing at all": ({"mean": {}}, "the rule 'mean' needs a 'family'; None leaves"),
    "a number for a family": ({"mean": {"family": 3}}, "the rule 'mean' needs a 'family'"),
    "familly": ({"mean": {"familly": "bernoulli"}}, "the rule 'mean' needs a 'family'; did you mean it by 'familly'"),
    "log_vr": ({"mean": {**GAUSSIAN, "log_vr": "log_var"}}, "the rule 'mean' has no setting 'log_vr'.*mean 'log_var'"),
    "stdd": ({nn.Linear: {**GAUSSIAN, "stdd": 1}}, "the rule 'Linear' has no setting 'stdd'; did you mean 'std'"),
    "max_row": ({"mean": {"family": "poisson", "max_row": 1}}, "'mean' has no setting 'max_row'.*mean 'max_rows'"),
    "states of a count": ({"mean": {"family": "poisson", "states": (0, 1)}}, "no setting 'states'; there are 'family'"),
    "settings twice": ({"mean": {"family": dagfisher.families.Poisson(), "std": 1}}, "has no setting 'std'"),
    "heads of counts": ({"mean": {"family": "poisson", "log_var": "log_var"}}, "must have the family 'gaussian'"),
    "two scales": ({"mean": {**GAUSSIAN, "log_var": "log_var", "log_std": "odd"}}, "exactly one of 'log_std'"),
    "a scale and a std": ({"mean": {**GAUSSIAN, "log_var": "log_var", "std": 1.0}}, "exactly one of 'log_std'"),
    "a head nowhere": ({"mean": {**GAUSSIAN, "log_var": "logvar"}}, "'mean' names 'logvar', .*did you mean 'log_var'"),
    "a head with a rule": (
        {"mean": {**GAUSSIAN, "log_var": "log_var"}, "log_var": "bernoulli"}, "names 'log_var', which has a rule of its"
    ),
    "heads of two sizes": ({"mean": {**GAUSSIAN, "log_var": "odd"}}, "layer 'mean': the mean has 2 units.*has 3"),
    "one head": ({"mean": {**GAUSSIAN, "log_var": "mean"}}, "layer 'mean': mean and scale are one module"),
    "an unknown family": ({"mean": "bernouilli"}, "layer 'mean': unknown family 'bernouilli'"),
    "no map": ({"norm": "bernoulli"}, "layer 'norm': a LayerNorm cannot be declared"),
    "no map by type": ({nn.Embedding: "bernoulli"}, "layer 'table': a Embedding cannot be declared"),
    "an odd number": ({"odd": "gaussian"}, "layer 'odd': .*it has 3 outputs; give it an even number"),
    "a norm": ({"normed": "bernoulli"}, "^layer 'normed': its weight is computed from other parameters"),
    "a lazy layer": ({"late": "bernoulli"}, "layer 'late': a LazyLinear has no parameters yet; run it on one batch"),
    "a lazy layer by type": ({nn.LazyLinear: "bernoulli"}, "layer 'late': a LazyLinear has no parameters yet"),
    "another family": ({"known": "poisson"}, "^layer 'known' is already declared as Bernoulli.*cannot also be Poisson"),
    "a bypassed module": ({"attention.out_proj": "bernoulli"}, "fits only 'attention.out_proj', which Multihead"),
    "a bad std": ({"mean": {**GAUSSIAN, "std": -1.0}}, "layer 'mean': std must be a positive finite number"),
}  # fmt: skip


@pytest.mark.parametrize("first", [{}, {"body.0": "bernoulli", "known": {"family": "bernoulli", "max_rows": 7}}])
@pytest.mark.parametrize(("rules", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_wrong_rules_are_named_and_leave_the_model_as_it_was(rules: Any, sentence: str, first: Any) -> None:
    model = Attentive()
    before = traces(model)
    with pytest.raises(DeclarationError, match=sentence):
        declare_model(model, {**rules, **{key: rule for key, rule in first.items() if key not in rules}})
    assert traces(model) == before


def test_a_table_that_cannot_be_printed_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Attentive()
    before = traces(model)

    def broken(model: nn.Module) -> str:
        raise UnicodeError

    monkeypatch.setattr("dagfisher.rules.summary", broken)
    with pytest.raises(UnicodeError):
        declare_model(model, {"mean": {"family": "gaussian", "log_var": "log_var"}, "odd": "poisson"})
    assert traces(model) == before


@pytest.mark.parametrize("rules", [{"mean": "bernoulli", "late": None}, {"mean": "bernoulli"}])
def test_a_lazy_module_that_stays_undeclared_is_a_line_of_the_table(rules: Any) -> None:
    model = Attentive()
    lines = {line.split()[0]: line.split() for line in summary(declare_model(model, rules)).splitlines()[2:]}
    assert lines["late"] == ["late", "LazyLinear", "not", "declared", "not", "yet"]
    assert families(model) == {"mean": "bernoulli", "known": "bernoulli"}


def test_a_module_that_is_never_called_is_skipped_and_the_table_says_why() -> None:
    model = Attentive()
    declare_model(model, {"late": None, "normed": None, "odd": None, nn.Linear: dagfisher.families.Bernoulli()})
    assert families(model) == dict.fromkeys(["body.0", "mean", "log_var", "known"], "bernoulli")
    line = next(line for line in summary(model).splitlines() if line.startswith("attention.out_proj"))
    assert "not declared: MultiheadAttention never calls it" in line
    parameters = [p for name, p in model.named_parameters() if not name.startswith("late")]
    optimizer = exact(parameters, lr=0.1)
    x = torch.randn(5, 4)
    hidden = model.attention(x, x, x)[0]
    sum(layer(hidden).square().sum() for layer in (model.body, model.mean, model.log_var, model.known)).backward()
    before = model.attention.out_proj.weight.clone()
    optimizer.step()
    moved = before - model.attention.out_proj.weight
    torch.testing.assert_close(moved, 0.1 * model.attention.out_proj.weight.grad)


class Projects(nn.Module):
    """Uses the weight of 'direct' itself, that of 'both' both ways, calls 'called', and asks for 'asked's device."""

    def __init__(self) -> None:
        super().__init__()
        self.direct, self.both, self.called, self.asked = (nn.Linear(2, 2) for _ in range(4))
        nn.init.zeros_(self.called.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x.to(self.asked.weight.device), self.direct.weight, self.direct.bias)
        return F.linear(self.both(y), self.both.weight) + self.called(y)


class Loops(Projects):
    """Reaches its children without naming them."""

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_only_what_is_used_by_its_weight_alone_is_bypassed() -> None:
    assert bypassed(nn.Sequential(Projects())) == {"0.direct": "Projects"}
    assert bypassed(Loops()) == {}
    layer = nn.TransformerEncoderLayer(4, 2, 4)
    assert bypassed(layer) == {"self_attn.out_proj": "MultiheadAttention"}
    assert bypassed(type("Unreadable", (nn.Linear,), {})(2, 2)) == {}
