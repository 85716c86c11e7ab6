"""The moving Fisher: blocks of several refreshes with decaying weights, exact continuation, memory."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from exact import exact
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import SettingError
from dagfisher.fisher import statistics

F64 = torch.float64
ALPHA, DECAY = 0.3, 0.6


def undamped(optimizer: DAGNaturalGradient, parameter: Tensor) -> Tensor:
    blocks = optimizer.fisher_blocks(parameter) * (1 + ALPHA)
    return blocks - ALPHA * torch.eye(blocks.shape[1], dtype=F64)


def make(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, the parameter whose blocks are looked at, and six batches of different sizes' worth of data."""
    torch.manual_seed(0)
    if kind == "linear":
        layer = dagfisher.declare(nn.Linear(4, 3).to(F64), "bernoulli")
        return layer, layer.weight, torch.randn(6, 5, 4, dtype=F64)
    if kind == "heads":
        model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]).to(F64)
        dagfisher.declare_gaussian(mean=model[0], log_std=model[1])
        return model, model[0].weight, torch.randn(6, 5, 4, dtype=F64)
    layer = dagfisher.declare(nn.Conv2d(1, 3, 2).to(F64), "bernoulli")
    return layer, layer.weight, torch.randn(6, 5, 1, 4, 4, dtype=F64)


def run(model: nn.Module, x: Tensor) -> Tensor:
    if isinstance(model, nn.ModuleList):
        return model[0](x).square().sum() + model[1](x).square().sum()
    return model(x).square().sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["linear", "heads", "conv", "accumulated conv"])
@pytest.mark.parametrize("size", [2, 3])
def test_blocks_are_means_over_refreshes_with_decaying_weights(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lr 0 every refresh sees the same parameters: Σ decay^age F_age / Σ decay^age, F of each batch alone."""
    if kind == "accumulated conv":
        monkeypatch.setattr(statistics, "ACCUMULATE", 40)
    model, parameter, batches = make(kind.rpartition(" ")[2])
    alone = []
    for x in batches:
        single = exact(model.parameters(), lr=0.0, damping=ALPHA, solver="dense")
        with dagfisher.sample_weights(torch.linspace(1, 2, 5)):
            run(model, x)
        alone.append(undamped(single, parameter))
    optimizer = exact(
        model.parameters(), lr=0.0, damping=ALPHA, solver="dense", update_every=2, window=size, window_decay=DECAY
    )
    seen: list[Tensor] = []
    for i, x in enumerate(batches):
        optimizer.zero_grad()
        with dagfisher.sample_weights(torch.linspace(1, 2, 5)):
            loss = run(model, x)
        loss.backward()
        if i % 2 == 0:
            seen.insert(0, alone[i])
            weights = [DECAY**age for age in range(len(seen[:size]))]
            wanted: Any = sum(w * f for w, f in zip(weights, seen, strict=False))
            torch.testing.assert_close(undamped(optimizer, parameter), wanted / sum(weights), rtol=1e-9, atol=1e-9)
        optimizer.step()


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_a_window_is_saved_and_continues_exactly(kind: str) -> None:
    model, _, batches = make(kind)
    settings: dict[str, Any] = {"lr": 0.01, "damping": ALPHA, "window": 3, "window_decay": DECAY}
    optimizer = exact(model.parameters(), **settings)

    def train(net: nn.Module, opt: DAGNaturalGradient, part: slice) -> None:
        for x in batches[part]:
            opt.zero_grad()
            run(net, x).backward()
            opt.step()

    train(model, optimizer, slice(0, 3))
    twin = copy.deepcopy(model)
    other = exact(twin.parameters(), **settings)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    train(model, optimizer, slice(3, 6))
    train(twin, other, slice(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_its_memory_is_bounded_and_reported() -> None:
    model, _, batches = make("linear")
    optimizer = exact(model.parameters(), lr=0.0, window=3, solver="dense")
    usage = []
    for x in batches:
        optimizer.zero_grad()
        run(model, x).backward()
        optimizer.step()
        usage.append(sum(optimizer.memory_usage().values()))
    per_refresh = 8 * 5 * (4 + 3 + 1)
    assert [u - usage[0] for u in usage] == [0, *[per_refresh] * 5]
    plain = exact(model.parameters(), lr=0.0, solver="dense")
    run(model, batches[0]).backward()
    plain.step()
    assert usage[0] - sum(plain.memory_usage().values()) == per_refresh


@pytest.mark.parametrize("bad", [{"window": 0}, {"window": 1.5}, {"window_decay": 0}, {"window_decay": 1.2}])
def test_bad_windows_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"window(_decay)? must be"):
        exact(make("linear")[0].parameters(), **bad)
