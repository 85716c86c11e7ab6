"""Linear probes: the fit is that of an independent solver, and the errors are those of the layers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dagfisher import datasets
from dagfisher.app import main
from dagfisher.datasets import DataError
from dagfisher.errors import ShapeError
from dagfisher.helmholtz import HelmholtzMachine
from dagfisher.probes import draw_probes, fit_probe, layer_means, probe_layers, write_probes


def clusters(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=generator)
    centres = 1.5 * torch.randn(4, 5, generator=torch.Generator().manual_seed(9))
    return centres[labels] + torch.randn(n, 5, generator=generator), labels


def test_a_probe_is_the_minimum_that_lbfgs_finds_in_few_steps_of_newton() -> None:
    x, labels = clusters(300, 0)
    probe = fit_probe(x, labels, penalty=0.01)
    assert probe.converged and probe.steps <= 8
    w = torch.zeros(4, 6, dtype=torch.float64, requires_grad=True)
    opt = torch.optim.LBFGS([w], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        value = F.cross_entropy(x.double() @ w[:, :5].T + w[:, 5], labels) + 0.005 * w.square().sum()
        opt.zero_grad()
        value.backward()
        return value

    opt.step(loss)
    assert probe.loss == pytest.approx(loss().item(), abs=1e-7)
    torch.testing.assert_close(torch.cat([probe.weight, probe.bias[:, None]], 1), w.detach(), atol=1e-3, rtol=1e-3)
    other, truth = clusters(500, 1)
    assert probe.error(other, truth) == float(
        ((other.double() @ w[:, :5].T + w[:, 5]).argmax(1) != truth).double().mean()
    )


def test_all_examples_are_in_the_fisher_however_many_they_are() -> None:
    torch.manual_seed(0)
    x = torch.randn(9000, 80)
    labels = (x @ torch.randn(80, 3)).argmax(1)
    probe = fit_probe(x, labels, penalty=0.01)  # more numbers than an optimizer keeps rows for by itself
    assert probe.converged and probe.steps <= 7


def test_a_step_that_would_climb_is_shortened() -> None:
    x = 30 * torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    probe = fit_probe(x, (x[:, 0] > 0).long(), penalty=1e-6, steps=60)
    assert probe.loss < 0.1 and probe.error(x, (x[:, 0] > 0).long()) == 0


def test_the_means_of_the_layers_follow_the_recognition_network() -> None:
    torch.manual_seed(0)
    machine = HelmholtzMachine([6, 4, 3], states=(-1, 1))
    x = torch.rand(7, 6).round()
    data, first, second = layer_means(machine, x)
    below = 2 * x - 1
    assert torch.equal(data, below)
    for layer, found in zip(machine.recognition, (first, second), strict=True):
        below = torch.tanh((below @ layer.weight.T + layer.bias) / 2)  # the mean of states ±1
        torch.testing.assert_close(found, below)


def test_probes_of_a_machine_and_of_an_untrained_one(tmp_path: Path) -> None:
    data = datasets.load("mini-mnist")
    machine = HelmholtzMachine([196, 30, 5])
    before = [p.clone() for p in machine.parameters()]
    rows = probe_layers(machine, data, examples=1000)
    assert [row.units for row in rows] == [196, 30, 5]
    assert rows[0].test_error == rows[0].untrained_error and 0.1 < rows[0].test_error < 0.3
    assert rows[0].train_error < rows[0].test_error
    assert rows[2].test_error > rows[0].test_error  # five units that know nothing
    assert all(torch.equal(p, q) for p, q in zip(machine.parameters(), before, strict=True))
    write_probes(rows, tmp_path / "probes.csv")
    with (tmp_path / "probes.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["test_error"]) for line in lines] == [row.test_error for row in rows]
    draw_probes(rows, tmp_path / "probes.png", title="probes")
    assert (tmp_path / "probes.png").read_bytes().startswith(b"\x89PNG")


def test_the_program_probes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["--layers=8", "--epochs=1", "--eval-samples=2", "--eval-examples=10", "--batch-size=5000", "--samples=1"]
    assert main(["train", "--out", "a", "--data", "mini-mnist", "--threads=1", *tiny]) == 0
    capsys.readouterr()
    assert main(["probe", "a", "--examples", "500"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:2] == ["probe", "of"] and table[2].startswith("data") and table[3].startswith("layer 1")
    assert Path("a/probes.csv").exists() and Path("a/probes.png").exists()
    with pytest.raises(SystemExit):
        main(["probe", "a", "--penalty", "0"])


def test_what_cannot_be_probed_is_said() -> None:
    with pytest.raises(ShapeError, match="do not fit"):
        fit_probe(torch.zeros(3, 2), torch.zeros(4))
    with pytest.raises(DataError, match="no labels"):
        probe_layers(HelmholtzMachine([9, 3]), datasets.load("three-by-three"))
