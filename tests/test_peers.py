"""The peers learn the same models, and what another package computes of a Fisher is what our blocks are."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import dagfisher

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
NEEDS = {"soap": "pytorch_optimizer", "muon": "pytorch_optimizer", "shampoo": "pytorch_optimizer"}
NEEDS |= {"kron": "pytorch_optimizer", "singd": "singd", "kfac": "curvlinops", "pyro": "pyro"}
NAMES = ("sgd", "momentum", "adam", "nadam", "soap", "muon", "shampoo", "kron", "singd", "kfac", "lbfgs", "pyro")
EVERY = (*NAMES, "natural", "natural-k1", "natural-diagonal")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers")


def learner_of(peers: ModuleType, model: str, method: str) -> Any:
    """With the middle of its learning rates and the last of its second settings."""
    peer, entry = peers.BY_NAME[method], peers.named(model)
    tuned = method not in peers.NATURAL
    batch = entry.batch_sizes[0] if tuned else entry.natural_batch
    rate, other = (peer.rates[entry.kind][1], peer.others[-1]) if tuned else (None, None)
    spec = peers.Spec(model, method, rate, batch.size, batch.samples, 0, 1.0, "quarter", None, other)
    return peers.start(spec)


def test_every_peer_chooses_from_equally_many_settings(peers: ModuleType, tmp_path: Path) -> None:
    assert tuple(peers.BY_NAME) == EVERY
    results = peers.Results(tmp_path / "none.jsonl")
    for name in peers.SECONDS:
        model = peers.named(name)
        for method in peers.tried(model, list(NAMES)):
            chain = peers.PeerChain(model, method, peers.PeerPlan(), results)
            assert len(set(chain.missing())) == 12, (name, method)


@pytest.mark.parametrize("model", ["mini-machine", "mini-vae", "logistic"])
@pytest.mark.parametrize("method", EVERY)
def test_every_peer_learns(peers: ModuleType, model: str, method: str) -> None:
    if method not in peers.tried(peers.named(model), list(EVERY)):
        pytest.skip("is not tried on this model")
    if model == "mini-machine" and method not in ("sgd", "singd", "kfac", "pyro", "natural-diagonal"):
        pytest.skip("is given the parameters alone, as for the VAE")
    if method in NEEDS:
        pytest.importorskip(NEEDS[method])
    learner = learner_of(peers, model, method)
    before = learner.value("valid")
    for _ in range(10):
        learner.step()
    assert learner.value("valid") > before + (0.01 if model == "logistic" else 0.5), method
    assert (peers.look(learner)["kept_bytes"] > 0) == (method != "sgd")


def test_a_spec_starts_all_peers_at_the_same_parameters(peers: ModuleType) -> None:
    for model in ("mini-machine", "mini-vae"):
        starts = []
        for method in ("sgd", "adam", "natural"):
            parameters = learner_of(peers, model, method).model.parameters()
            starts.append(torch.cat([p.detach().flatten() for p in parameters]))
        assert all(torch.equal(starts[0], start) for start in starts)


def test_kept_bytes_are_those_of_the_tensors(peers: ModuleType) -> None:
    parameter = nn.Parameter(torch.zeros(10, 7))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert sum(peers.kept(optimizer)) == 2 * 70 * 4 + 4  # both moments, and the count of steps


def test_peers_resume_and_report(peers: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "peers.jsonl"
    command = [sys.executable, str(BENCHMARKS / "peers.py"), "--quick", "--models", "logistic", "--out", str(out)]

    def run(*more: str) -> str:
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("--peers", "adam,natural", "--minutes", "0")
    assert not out.exists()
    run("--peers", "adam,natural")
    lines = out.read_text().splitlines()
    assert [json.loads(line)["stage"] for line in lines] == ["final"] + ["quarter"] * 12 + ["full"] * 2 + ["final"]
    shown = run("--peers", "adam,natural")
    assert out.read_text().splitlines() == lines
    assert "Adam" in shown and "natural, as it comes" in shown and out.with_suffix(".png").stat().st_size > 10_000
    last = json.loads(lines[-1])
    assert last["ms_per_step"] > 0 and last["kept_bytes"] > 0 and {"cpu", "torch", "commit"} <= last["on"].keys()


@pytest.mark.parametrize("family", ["bernoulli", "categorical", "gaussian"])
def test_the_blocks_of_an_output_layer_are_those_of_curvlinops(family: str) -> None:
    """The Gauss–Newton matrix of a canonical likelihood is its Fisher: its blocks are ours, and the rest is 0."""
    curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(9, 5).double()
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), layer).double()
    losses = {"bernoulli": nn.BCEWithLogitsLoss, "categorical": nn.CrossEntropyLoss, "gaussian": nn.MSELoss}
    y = torch.randint(3, (9,)) if family == "categorical" else torch.zeros(9, 3).double()
    operator = curvlinops.GGNLinearOperator(net, losses[family](reduction="sum"), list(layer.parameters()), [(x, y)])
    dense = (operator @ torch.eye(15).double()).detach() / len(x)
    if family == "gaussian":
        dense = dense / 2  # its loss is the square; a unit of standard deviation 1 has half of it
        dagfisher.declare_gaussian(mean=layer, std=1.0)
    elif family == "categorical":
        dagfisher.declare(layer, "categorical", classes=3)
    else:
        dagfisher.declare(layer, "bernoulli")
    order = [[4 * j + i for i in range(4)] + [12 + j] for j in range(3)]  # weights and bias of unit j
    damping = 0.1
    optimizer = dagfisher.DAGNaturalGradient(layer.parameters(), damping=damping, update_every=1, solver="dense")
    optimizer.zero_grad()
    net(x).square().sum().backward()
    gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
    found = optimizer.natural_gradient()
    natural = torch.cat([found[layer.weight], found[layer.bias][:, None]], 1)
    whole = torch.cat([torch.tensor(rows) for rows in order])
    matrix = dense[whole][:, whole]
    expected = (1 + damping) * torch.linalg.solve(matrix + damping * torch.eye(15).double(), gradient.flatten())
    torch.testing.assert_close(natural.flatten(), expected)
    damped = optimizer.fisher_blocks(layer.weight)
    ours = (1 + damping) * damped - damping * torch.eye(damped.shape[-1]).double()
    theirs = matrix[None] if family == "categorical" else torch.stack([dense[rows][:, rows] for rows in order])
    torch.testing.assert_close(ours, theirs)
    if family != "categorical":
        torch.testing.assert_close(matrix, torch.block_diag(*theirs))
