"""An algorithm of one's own, VIMCO (Mnih and Rezende, 2016), from public names alone: its gradient and its name."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from registries import registrations_forgotten
from torch import Tensor

from dagfisher import DAGNaturalGradient, datasets
from dagfisher.app import main
from dagfisher.errors import SettingError, ShapeError
from dagfisher.helmholtz import (
    ALGORITHMS,
    Algorithm,
    Figure,
    HelmholtzMachine,
    Run,
    Settings,
    Step,
    Trainer,
    Wake,
    register_algorithm,
)
from dagfisher.helmholtz import train as train_module
from dagfisher.helmholtz.algorithms import importance_weights

from .enumeration import gradients, hidden_states, log_joint, log_recognition, tiny_machine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STATES = (-1.0, 1.0)
X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)


# The algorithm is the one that the documentation shows.
with registrations_forgotten():
    VIMCO: Algorithm = runpy.run_path(str(EXAMPLES / "extending" / "vimco.py"))["VIMCO"]


@pytest.fixture
def registered() -> Iterator[Algorithm]:
    before = dict(ALGORITHMS)
    ALGORITHMS.pop("vimco", None)
    yield register_algorithm(VIMCO)
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


@pytest.mark.parametrize("samples", [2, 3])
def test_its_expected_gradients_are_those_of_the_multi_sample_bound(samples: int) -> None:
    """Enumeration: every S-tuple of hidden states is one example, which counts with its probability under q."""
    machine = tiny_machine(STATES)
    hidden = hidden_states(machine, STATES)
    x = machine.encode(X)[0]
    log_p, log_q = log_joint(machine, x, hidden), log_recognition(machine, x, hidden)
    tuples = torch.tensor(list(itertools.product(range(len(log_p)), repeat=samples))).T
    probability = log_q[tuples].sum(0).exp()
    bound = (probability * ((log_p - log_q)[tuples].logsumexp(0) - math.log(samples))).sum()

    wake = Wake(x, [], [], [], log_p[tuples].detach(), log_q[tuples].detach())
    weights = VIMCO.weights(wake)
    assert VIMCO.recognition is not None
    coefficients = VIMCO.recognition(Step(wake, weights, baseline=True, number=0))
    share = probability.detach() * len(probability)
    for parameters, factor, log_prob in (
        (machine.generative_parameters(), weights, log_p),
        (machine.recognition_parameters(), coefficients, log_q),
    ):
        found = gradients((share * factor * log_prob[tuples]).sum(), parameters)
        wanted = gradients(bound, parameters)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_a_step_leaves_its_gradient_on_the_samples_that_it_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    """p's by finite differences of the bound with these samples; q's by autograd with coefficients from loops."""
    machine = tiny_machine(STATES)
    seen: list[Wake] = []
    real = train_module.wake
    monkeypatch.setattr(train_module, "wake", lambda *args: (seen.append(real(*args)), seen[-1])[1])
    Trainer(machine, VIMCO, lr=0.0, samples=4, seed=1).step(X)
    samples, batch = 4, len(X)
    drawn = [layer.reshape(samples, batch, -1) for layer in seen[0].hidden]

    def bound() -> Tensor:
        """The mean over the examples of log mean p/q, with q as it was."""
        log_p = torch.stack([log_joint(machine, x, [h[:, b] for h in drawn]) for b, x in enumerate(machine.encode(X))])
        return ((log_p - seen[0].log_q.T).logsumexp(1) - math.log(samples)).mean()

    for p in machine.generative_parameters():
        flat, gradient = p.data.view(-1), p.grad.view(-1)  # type: ignore[union-attr]
        for k in range(len(flat)):
            values = []
            for move in (1e-5, -1e-5):
                flat[k] += move
                values.append(bound().item())
                flat[k] -= move
            assert -float(gradient[k]) == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-8, rel=1e-5)

    objective = torch.zeros((), dtype=torch.float64)
    for b, x in enumerate(machine.encode(X)):
        log_q = log_recognition(machine, x, [h[:, b] for h in drawn])
        ratios = seen[0].log_ratio[:, b].tolist()
        whole = math.log(sum(map(math.exp, ratios)))
        for s in range(samples):
            rest = ratios[:s] + ratios[s + 1 :]
            without = math.log(sum(map(math.exp, rest)) + math.exp(sum(rest) / len(rest)))
            objective = objective + (whole - without - math.exp(ratios[s] - whole)) * log_q[s] / batch
    for p, wanted in zip(
        machine.recognition_parameters(), gradients(-objective, machine.recognition_parameters()), strict=True
    ):
        torch.testing.assert_close(p.grad, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("solver", [None, "auto"])
def test_it_learns_with_plain_and_with_natural_gradients(solver: str | None) -> None:
    data = datasets.load("three-by-three")
    torch.manual_seed(0)
    machine = HelmholtzMachine([9, 6, 1], states=(0, 1))
    before = machine.exact_log_likelihood(data.means("test")).mean()
    name = "vimco" if solver is None else "nvimco"
    trainer = Trainer(machine, dataclasses.replace(VIMCO, name=name, solver=solver, update_every=10), samples=5)
    trainer.fit(data, 3, batch_size=50)
    assert isinstance(trainer.optimizer, DAGNaturalGradient) == (solver is not None)
    assert machine.exact_log_likelihood(data.means("test")).mean() > before + 0.5


def test_its_name_works_in_trainers_settings_runs_and_on_the_command_line(
    registered: Algorithm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Trainer(tiny_machine(STATES), "vimco").algorithm is registered
    settings = Settings.resolve(data="three-by-three", algorithm="vimco")
    assert (settings.lr, settings.damping, settings.chosen_algorithm) == (0.05, None, registered)
    flags = ["--data=three-by-three", "--batch-size=100", "--eval-samples=5", "--threads=1", "--epochs=1"]
    assert main(["train", "--out", str(tmp_path / "a"), "--algorithm=vimco", "--samples=3", *flags]) == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["algorithm"] == "vimco"
    resumed = Run.resume(tmp_path / "a", epochs=2)
    assert resumed.train() and resumed.trainer.algorithm is registered
    capsys.readouterr()
    assert main(["algorithms"]) == 0
    listed = capsys.readouterr().out.partition("\n\n")[0].splitlines()  # the table; what its columns mean follows
    assert listed[-1].startswith("vimco               multi-sample bound")
    assert main(["train", "--out", str(tmp_path / "b"), "--algorithm=vimco", "--samples=1", *flags]) == 2
    assert "vimco needs at least 2 samples" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "nreinforce-optimal, vimco" in " ".join(capsys.readouterr().out.split()).replace("- ", "-")


def test_its_own_figures_and_initialisation_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ones(machine: HelmholtzMachine, generator: torch.Generator | None) -> None:
        for p in machine.parameters():
            torch.nn.init.ones_(p)

    figure = Figure("least", "least log p", lambda estimate: estimate.log_p.min().expand(2), "over the examples")
    register_algorithm(dataclasses.replace(VIMCO, name="own", initialise=ones, figures=(figure,)))
    try:
        settings = Settings.resolve(data="three-by-three", algorithm="own", threads=1, eval_samples=5)
        run = Run.create(tmp_path / "a", settings)
        assert all(bool((p == 1).all()) for p in run.machine.parameters())
        run.train(enough=lambda: True)
        assert main(["evaluate", str(run.folder), "--samples=10"]) == 0
        assert main(["evaluate", str(run.folder), "--samples=10", "--json"]) == 0
        printed, _, rest = capsys.readouterr().out.partition("{")
        assert f"least log p        {json.loads('{' + rest)['least']:.4f} (over the examples)" in printed
    finally:
        del ALGORITHMS["own"]


def test_a_checkpoint_belongs_to_the_name(registered: Algorithm) -> None:
    state = Trainer(tiny_machine(STATES), registered).state_dict()
    assert state["algorithm"] == "vimco"
    Trainer(tiny_machine(STATES), "vimco").load_state_dict(state)


def test_what_cannot_be_an_algorithm_is_refused(registered: Algorithm) -> None:
    with pytest.raises(SettingError, match="there is an algorithm 'vimco' already"):
        register_algorithm(dataclasses.replace(VIMCO, lr=0.1))
    assert register_algorithm(dataclasses.replace(VIMCO, lr=0.1), replace=True) is ALGORITHMS["vimco"]
    for change, words in [
        ({"name": "VIMCO"}, "lower case"),
        ({"dreams": 1.5}, "from 0 to 1"),
        ({"dreams": 1.0}, "from dreams alone"),
        ({"recognition": None}, "from dreams alone"),
        ({"least_samples": 0}, "at least 1"),
    ]:
        with pytest.raises(SettingError, match=words):
            dataclasses.replace(VIMCO, **change)
    for change, words in [
        ({"weights": lambda wake: importance_weights(wake).sum(1)}, r"weights of vimco must be \(10, 3\)"),
        ({"recognition": lambda step: step.weights[0]}, r"recognition coefficients of vimco must be \(10, 3\)"),
    ]:
        with pytest.raises(ShapeError, match=words):
            Trainer(tiny_machine(STATES), dataclasses.replace(VIMCO, **change)).step(X)
