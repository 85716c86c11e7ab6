"""What the rows of a run say of its optimizer, and a backward pass without a step."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from dagfisher import inspect
from dagfisher.helmholtz import HelmholtzMachine, Run, Settings, Trainer
from dagfisher.helmholtz.metrics import read_rows


def test_the_rows_of_a_run_have_rate_damping_and_divergence_of_the_last_step(tmp_path: Any) -> None:
    settings = {"data": "three-by-three", "layers": (4, 2), "epochs": 2, "eval_samples": 5, "threads": 1}
    run = Run.create(tmp_path / "a", Settings.resolve(**settings, batch_size=400, samples=4, lr=0.3))
    seen: list[dict[str, float]] = []
    run.train(on_step=lambda run: seen.append(inspect.numbers(run.trainer.optimizer)))
    per_epoch = run.batches
    for row, told in zip(read_rows(tmp_path / "a"), seen[per_epoch - 1 :: per_epoch], strict=True):
        dampings = [value for name, value in told.items() if re.match("damping/(?!group)", name)]
        assert row.damping == pytest.approx(float(np.exp(np.log(dampings).mean())))
        assert row.divergence == max(told["divergence/group 0"], told["divergence/group 1"]) > 0
        assert row.factor == min(told["factor/group 0"], told["factor/group 1"])
    assert [row.lr for row in run.rows] == [0.3, 0.0]
    assert run.rows[-1].divergence is not None and run.rows[-1].divergence > 0  # of the step, not of the rate to come


def test_plain_algorithms_have_a_rate_and_no_damping(tmp_path: Any) -> None:
    trainer = Trainer(HelmholtzMachine([4, 2]), "rws", lr=0.25)
    assert trainer.optimizer_values() == {"lr": 0.25}


def test_backward_leaves_the_gradients_that_a_step_would_use() -> None:
    x = torch.randint(2, (8, 4), generator=torch.Generator().manual_seed(0)).float()
    found = []
    for look in (True, False):
        torch.manual_seed(0)
        machine = HelmholtzMachine([4, 2])
        trainer = Trainer(machine, "rws", lr=1.0, seed=1)
        before = [p.detach().clone() for p in machine.parameters()]
        value = trainer.backward(x) if look else trainer.step(x)
        moved = [p.detach() - b for p, b in zip(machine.parameters(), before, strict=True)]
        assert look is not any(bool(m.any()) for m in moved)
        found.append((value, [-p.grad for p in machine.parameters()] if look else moved))
    assert torch.equal(found[0][0], found[1][0])
    for gradient, move in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(gradient, move, atol=1e-6)
