"""Whole models declared by rules, and the table that shows them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dagfisher
from dagfisher import DAGNaturalGradient, declare_model, summary
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
    optimizer = DAGNaturalGradient(model[0].parameters(), solver="dense")
    assert "not yet" in summary(model, optimizer)
    model(torch.randn(3, 1, 4, 4)).sum().backward()
    optimizer.step()
    lines = [line.split() for line in summary(model, optimizer).splitlines()[2:]]
    assert lines[0] == ["0", "BernoulliConv2d", "bernoulli", "4", "9", "40", "10×10", "dense", "1,600"]
    assert lines[1][-2:] == ["not", "trained"]


def test_a_model_without_parameters_has_an_empty_table() -> None:
    assert len(summary(nn.Tanh()).splitlines()) == 2


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"decoder.9": "bernoulli"}, "no module fits the rule 'decoder.9'; there are encoder.0, mean"),
        ({nn.Conv2d: "bernoulli"}, "no module fits the rule 'Conv2d'"),
        ({"mean": {"family": "gaussian", "log_var": "nowhere"}}, "names 'nowhere', which is not in the model"),
        ({"mean": "bernouilli"}, "unknown family"),
        ({"norm": "bernoulli"}, "a LayerNorm cannot be declared"),
    ],
)
def test_wrong_rules_are_named(rules: dict[str | type[nn.Module], object], sentence: str) -> None:
    model = VAE()
    with pytest.raises(DeclarationError, match=sentence):
        declare_model(model, rules)  # type: ignore[arg-type]
    assert families(model) == {}
