"""Norms of examples, the damping of groups, and loggers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import DAGNaturalGradient, inspect
from dagfisher.helmholtz import HelmholtzMachine, Trainer


def regression() -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = dagfisher.declare(nn.Linear(5, 3).double(), "bernoulli")
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    return layer, x, (torch.rand(30, 3, generator=generator, dtype=torch.float64) < 0.5).double()


def looked_at() -> tuple[nn.Linear, Tensor, Tensor, inspect.Examples]:
    layer, x, y = regression()
    opt = DAGNaturalGradient(layer.parameters(), lr=0.0, damping=0.1)
    for _ in range(2):
        opt.zero_grad()
        with opt.example_norms() as found:
            binary_cross_entropy_with_logits(layer(x), y, reduction="none").sum(1).mean().backward()
        opt.step()
    return layer, x, y, inspect.examples(found)


def test_norms_are_those_of_each_example_alone_and_their_share_is_what_the_best_drawing_needs() -> None:
    layer, x, y, found = looked_at()
    alone = []
    for one, target in zip(x, y, strict=True):
        loss = binary_cross_entropy_with_logits(layer(one), target, reduction="none").sum()
        gradient = torch.autograd.grad(loss, list(layer.parameters()))
        alone.append(math.sqrt(sum(float(g.square().sum()) for g in gradient)))
    assert found.norms["gradient"].tolist() == pytest.approx(alone)
    mean, square = sum(alone) / len(alone), sum(a * a for a in alone) / len(alone)
    assert found.ideal["gradient"] == pytest.approx(mean**2 / square)
    assert all(0 < share < 1 for share in found.ideal.values())


def test_the_damping_of_a_group_is_the_geometric_mean_over_its_layers() -> None:
    trainer = Trainer(HelmholtzMachine([6, 4, 2]), "nrws", samples=3)
    assert "damping" not in trainer.optimizer.diagnostics()["groups"][0]  # type: ignore[attr-defined]
    for seed in range(3):
        trainer.step(torch.rand(20, 6, generator=torch.Generator().manual_seed(seed)).round())

    def check(trainer: Trainer) -> None:
        found = trainer.optimizer.diagnostics()  # type: ignore[attr-defined]
        for group, networks in zip(found["groups"], (("generative", "prior"), ("recognition",)), strict=True):
            logs = [math.log(d["damping"]) for name, d in found["layers"].items() if name.startswith(networks)]
            assert len(logs) > 1 and group["damping"] == pytest.approx(math.exp(sum(logs) / len(logs)))

    check(trainer)
    other = Trainer(HelmholtzMachine([6, 4, 2]), "nrws", samples=3)
    other.load_state_dict(trainer.state_dict())
    check(other)


def test_a_logger_gets_a_dict_and_tensorboard_its_scalars() -> None:
    class Writer:
        def __init__(self) -> None:
            self.rows: list[tuple[str, float, int]] = []

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.rows.append((name, value, step))

    layer, x, y = regression()
    opt = DAGNaturalGradient(layer.parameters(), lr=0.1, damping=0.25)
    logged: list[dict[str, Any]] = []
    writer = Writer()
    followers = [inspect.follow(opt, logged.append), inspect.follow(opt, inspect.scalars(writer))]
    for _ in range(2):
        opt.zero_grad()
        binary_cross_entropy_with_logits(layer(x), y, reduction="none").sum(1).mean().backward()
        opt.step()
    for follower in followers:
        follower.close()
    assert [row["step"] for row in logged] == [1, 2]
    expected = [(name, value, row["step"]) for row in logged for name, value in row.items() if name != "step"]
    assert writer.rows == expected
    assert ("damping/group 0", 0.25, 2) in writer.rows
