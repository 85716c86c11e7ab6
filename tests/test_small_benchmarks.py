"""Parts of benchmarks that compute something by themselves are right."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def prototypes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("prototypes")


def test_products_with_masked_blocks_undo_their_dense_solution(prototypes: ModuleType) -> None:
    torch.manual_seed(0)
    mask = torch.cat([torch.ones(6, 6).tril(-1), torch.ones(6, 1)], 1)
    blocks = prototypes.Blocks(torch.randn(30, 7), torch.rand(30, 6) / 30, mask)
    g = mask * torch.randn(6, 7)
    torch.testing.assert_close(blocks.product(blocks.solved(g)), g, rtol=1e-4, atol=1e-5)
    for how in (blocks.in_a_basis(), blocks.by_diagonal()):
        assert 1 < prototypes.iterations(blocks, g, how) <= 7  # the width of a block is enough for an exact solution
    assert prototypes.coupled_product() < 1e-14


def test_every_way_of_the_second_moment_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("second_moment")
    monkeypatch.setattr(benchmark, "STEPS", {"mini-vae": 3})
    found = {way: benchmark.run("mini-vae", way, 0.1, 0) for way in benchmark.WAYS}
    values = [benchmark.height(record) for record in found.values()]
    assert all(map(math.isfinite, values)) and len(set(values)) == len(values)
    shown = benchmark.show([{**record, "seed": 1} for record in found.values()])
    assert all(f"{value:.2f}" in shown for value in values)
