"""The worked examples of `docs/extending.rst`: each keeps its contract, and its step is the one of the theory."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from registries import TABLES, registrations_forgotten
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import testing
from dagfisher.declaration import declaration_of
from dagfisher.errors import SingularBlockError
from dagfisher.helmholtz import Settings
from dagfisher.solvers import Cost

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.rst").read_text(encoding="utf-8")
PROGRAMS = sorted((ROOT / "examples" / "extending").glob("*.py"))

pytestmark = pytest.mark.usefixtures("registries")


def program(name: str, *, run_name: str = "example") -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "extending" / f"{name}.py"), run_name=run_name)


# The page


def test_all_code_of_the_page_comes_from_these_programs() -> None:
    included = {(ROOT / "docs" / path).resolve() for path in re.findall(r"literalinclude:: (\S+)", PAGE)}
    assert included == set(PROGRAMS)
    assert "code-block:: python" not in PAGE


def test_the_page_names_every_extension_point_and_every_check() -> None:
    points = [name for name in dagfisher.__all__ if name.startswith("register_")] + ["helmholtz.register_algorithm"]
    for name in [*points, *(f"testing.{check}" for check in testing.__all__)]:
        assert f":func:`~dagfisher.{name}`" in PAGE, name


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_each_program_runs_and_uses_public_names_only(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(path.stem, run_name="__main__")
    assert capsys.readouterr().out
    assert not re.search(r"\._[a-z]", path.read_text(encoding="utf-8"))


def test_what_a_program_registers_is_forgotten() -> None:
    before = [dict(table) for table in TABLES]
    with registrations_forgotten():
        for path in PROGRAMS:
            program(path.stem)
        added = [len(table) - len(entries) for table, entries in zip(TABLES, before, strict=True)]
        assert added == [1, 1, 1, 2]
    assert [dict(table) for table in TABLES] == before


# A family


def test_the_family_is_the_negative_binomial_distribution() -> None:
    made = program("negative_binomial")
    made["check"]()
    family = made["NegativeBinomial"](dispersion=0.5)
    predictor = torch.linspace(-20, 20, 9, dtype=torch.float64)
    count = torch.arange(9, dtype=torch.float64)
    known = torch.distributions.NegativeBinomial(2.0, logits=predictor + torch.tensor(0.5).double().log())
    torch.testing.assert_close(family.log_prob(count, predictor), known.log_prob(count), rtol=1e-12, atol=1e-12)
    mean = torch.exp(predictor)
    torch.testing.assert_close(family.fisher_weights(predictor)[0], mean / (1 + 0.5 * mean), rtol=1e-12, atol=0)


def test_fisher_scoring_ends_at_the_most_likely_regression() -> None:
    made = program("negative_binomial")
    layer, lengths = made["fit"]()
    assert lengths[0] > 1 and lengths[-1] < 1e-8
    x, counts = made["make_data"](made["NegativeBinomial"](dispersion=0.5))
    known = torch.distributions.NegativeBinomial(2.0, logits=layer(x) + torch.tensor(0.5).double().log())
    for gradient in torch.autograd.grad(known.log_prob(counts).mean(), layer.parameters()):
        assert float(gradient.abs().max()) < 1e-9
    torch.testing.assert_close(layer.weight[0], torch.tensor([0.5, -0.3, 0.2]).double(), rtol=0, atol=0.1)


def test_its_name_works_in_declarations_of_whole_models(capsys: pytest.CaptureFixture[str]) -> None:
    family = program("negative_binomial")["NegativeBinomial"]
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    rules = {"0": "deterministic", "2": {"family": "negative_binomial", "dispersion": 2.0}}
    dagfisher.declare_model(model, rules)
    assert "negative_binomial" in capsys.readouterr().out
    declared = declaration_of(model[2])
    assert declared is not None and declared.family == family(dispersion=2.0)
    opt = dagfisher.DAGNaturalGradient(model.parameters())
    predictor = model(torch.randn(5, 4))
    opt.sample_fisher()  # draws counts from the family and back-propagates their scores
    (-family(dispersion=2.0).log_prob(torch.ones(5, 2), predictor).sum(-1).mean()).backward()
    opt.step()


# A map


def test_a_step_of_the_layer_is_the_natural_one_of_its_features() -> None:
    made = program("feature_linear")
    made["check"]()
    layer = made["make_layer"](units=2)
    generator = torch.Generator().manual_seed(0)
    nn.init.normal_(layer.weight, generator=generator)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = torch.bernoulli(torch.full((40, 2), 0.5, dtype=torch.float64), generator=generator)
    dagfisher.declare(layer, "bernoulli")
    opt = dagfisher.DAGNaturalGradient(layer.parameters(), lr=0.3, damping=0.2, solver="dense")
    logits = layer(x)
    (binary_cross_entropy_with_logits(logits, y, reduction="sum") / 40).backward()
    rows = torch.cat([layer.features(x), torch.ones(40, 1).double()], dim=1)
    before = torch.cat([layer.weight, layer.bias.unsqueeze(0)]).detach().clone()
    opt.step()
    after = torch.cat([layer.weight, layer.bias.unsqueeze(0)]).detach()
    rho = torch.sigmoid(logits.detach())
    for j in range(2):
        gradient = rows.T @ (rho[:, j] - y[:, j]) / 40
        block = rows.T @ ((rho * (1 - rho))[:, j : j + 1] * rows) / 40
        step = 1.2 * torch.linalg.solve(0.2 * torch.eye(26).double() + block, gradient)
        torch.testing.assert_close(before[:, j] - after[:, j], 0.3 * step, rtol=1e-9, atol=1e-12)


def test_it_learns_a_ring() -> None:
    layer, right = program("feature_linear")["learn"]()
    assert right > 0.95
    assert "26×26" in dagfisher.summary(nn.ModuleList([layer]))


# A solver


def test_the_solver_takes_the_shortest_solution_where_there_are_many() -> None:
    made = program("eigen_solver")
    made["check"]()
    layer, length = made["fit"]("eigen")
    assert length < 1e-12
    assert layer.weight[0, 0].item() == pytest.approx(layer.weight[0, 3].item(), abs=1e-12)
    x, labels = made["make_data"]()
    once = nn.Linear(3, 1, dtype=torch.float64)
    dagfisher.declare(once, "bernoulli")
    opt = dagfisher.DAGNaturalGradient(once.parameters(), lr=1.0, damping=0.0, solver="dense")
    for _ in range(12):
        opt.zero_grad()
        binary_cross_entropy_with_logits(once(x[:, :3]), labels).backward()
        opt.step()
    torch.testing.assert_close(layer(x), once(x[:, :3]), rtol=1e-9, atol=1e-9)
    with pytest.raises(SingularBlockError):
        made["fit"]("dense")


def test_auto_considers_it_and_takes_it_where_it_is_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    made = program("eigen_solver")
    choice = made["explain"]()
    assert choice.name == "dense" and choice.costs["eigen"].step > choice.costs["dense"].step
    assert textwrap.indent(str(choice), "   ") in PAGE
    monkeypatch.setattr(made["Eigen"], "cost", lambda shape, device: Cost(1.0, 1.0))
    assert made["explain"]().name == "eigen"
    layer, _ = made["fit"]("auto")
    assert layer.weight[0, 0].item() == pytest.approx(layer.weight[0, 3].item(), abs=1e-12)


def test_its_name_works_in_checkpoints_and_settings() -> None:
    program("eigen_solver")
    assert Settings.resolve(algorithm="nrws", solver="eigen").solver == "eigen"
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    dagfisher.declare(layer, "bernoulli")
    opt = dagfisher.DAGNaturalGradient(layer.parameters(), solver="eigen", update_every=100)
    x = torch.randn(8, 3)
    layer(x).square().sum().backward()
    opt.step()
    other = dagfisher.DAGNaturalGradient(layer.parameters(), update_every=100)
    other.load_state_dict(opt.state_dict())
    for mine, theirs in zip(opt.natural_gradient().values(), other.natural_gradient().values(), strict=True):
        assert torch.equal(mine, theirs)


# An algorithm: its gradient, its name and its files are tested in tests/helmholtz/test_own_algorithm.py


def test_the_algorithm_learns_and_its_natural_form_learns_faster() -> None:
    learn = program("vimco")["learn"]
    before, plain = learn("vimco")
    _, natural = learn("nvimco")
    assert before + 0.8 < plain < natural - 0.1
