"""Several processes with a process group step as one process with all of their samples."""

import copy
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from by_hand import (
    SOLVERS,
    Net,
    affine,
    array,
    assert_close,
    backward,
    data,
    loss,
    natural,
    optimizer,
    same,
    scaled,
    shown,
)
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient, sample_weights
from dagfisher.errors import CheckpointError, SettingError
from dagfisher.optim.damping import SHARE

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")

WORLD, LR, STEPS = 2, 0.01, 4
WEIGHTS = torch.arange(1.0, 9.0, dtype=torch.float64)


def share(x: Tensor, rank: int) -> list[Tensor]:
    """The batches of one process: rank 0 has two of 2 and 3 samples, rank 1 has one of 3."""
    return list(x[:5].split([2, 3])) if rank == 0 else [x[5:]]


class Heads(nn.Module):
    """A Gaussian layer with two heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.scale = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()
        dagfisher.declare_gaussian(mean=self.mean, log_std=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.mean(x), self.scale(x)], dim=-1)


def masked() -> nn.Module:
    torch.manual_seed(0)
    return dagfisher.nn.MaskedBernoulliLinear(torch.ones(4, 4).tril(-1)).double()


def coupled() -> nn.Module:
    torch.manual_seed(0)
    return dagfisher.nn.CategoricalLinear(4, 6, classes=3).double()


def constant() -> nn.Module:
    torch.manual_seed(0)
    return Unconcerned(dagfisher.nn.GaussianLinear(4, 2, scale="constant").double())


class Unconcerned(nn.Module):
    """A layer whose scale is part of the output."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.distribution(x).predictor


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], bool]] = {
    **{solver: (Net, {"solver": solver, "tolerance": 1e-13}, False) for solver in SOLVERS},
    "weighted": (Net, {}, True),
    "reused": (Net, {"update_every": 3, "momentum": 0.9}, False),
    "heads": (Heads, {}, False),
    "masked": (masked, {"solver": "conjugate", "tolerance": 1e-13}, True),
    "coupled": (coupled, {"solver": "conjugate", "tolerance": 1e-13}, True),
    "coupled, dense": (coupled, {"solver": "dense"}, False),
    "constant scale": (constant, {}, False),
}


def train(model: nn.Module, opt: torch.optim.Optimizer, rank: int | None, weighted: bool) -> None:
    """Steps on the samples of one process with the gradient of all, or on all samples if there is one process."""
    for step in range(STEPS):
        x = data(8, 4, seed=step)
        opt.zero_grad()
        pairs = [(x, WEIGHTS)] if rank is None else zip(share(x, rank), share(WEIGHTS, rank), strict=True)
        for part, weights in pairs:
            with sample_weights(weights if weighted else torch.ones(len(part))):
                loss(model(part)).backward()
        if rank is not None:
            for p in model.parameters():
                dist.all_reduce(p.grad)
        opt.step()


def find(model: nn.Module, rank: int | None) -> list[list[float]]:
    """The dampings that the layers find, at each refresh, by the samples of all processes."""
    group = None if rank is None else dist.group.WORLD
    opt = optimizer(model.parameters(), lr=LR, damping="auto", trust_region=1.0, process_group=group)
    found = []
    for step in range(STEPS):
        x = data(8, 4, seed=step)
        opt.zero_grad()
        for part in [x] if rank is None else share(x, rank):
            loss(model(part)).backward()
        if rank is not None:
            for p in model.parameters():
                dist.all_reduce(p.grad)
        opt.step()
        found.append([layer["damping"] for layer in opt.diagnostics()["layers"].values()])
    return found


def fall(rank: int) -> list[float]:
    """The dampings that the layers end with where little curvature and a large gradient bring them to their floors."""
    model = Net()
    model.encoder[0].bias.requires_grad_(False)
    opt = optimizer(model.parameters(), lr=0.0, damping="auto", process_group=dist.group.WORLD)
    for _ in range(STEPS):
        opt.zero_grad()
        for part in share(1e-3 * data(600, 4), rank):
            (1e4 * loss(model(part))).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
        opt.step()
    return shown(opt, "damping")


def join(rank: int, folder: str, world: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world, timeout=timedelta(minutes=1)
    )


def work(rank: int, folder: str) -> None:
    """One process: trains every case and saves its parameters."""
    torch.set_num_threads(1)
    join(rank, folder, WORLD)
    results = {}
    try:
        for name, (build, settings, weighted) in CASES.items():
            model = build()
            opt = optimizer(model.parameters(), lr=LR, process_group=dist.group.WORLD, **settings)
            train(model, opt, rank, weighted)
            results[name] = model.state_dict()
        model = Net()
        results["found"] = {"dampings": torch.tensor(find(model, rank)), **model.state_dict()}
        results["floor"] = {"dampings": torch.tensor(fall(rank), dtype=torch.float64)}
    finally:
        dist.destroy_process_group()
    torch.save(results, f"{folder}/{rank}.pt")


def fail(rank: int, folder: str) -> None:
    """A process that meets an error."""
    raise ArithmeticError("seen by the parent")


def run(function: Callable[[int, str], None], folder: Path, processes: int = WORLD) -> None:
    """Run it in processes of their own; an error in any of them is an error here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))  # where torch leaves the errors of children
        mp.spawn(function, args=(str(folder),), nprocs=processes)


@pytest.fixture(scope="module", autouse=True)
def loopback() -> Iterator[None]:
    """Nothing leaves this machine."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("processes")
    run(work, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def test_an_error_in_a_process_is_an_error_here(tmp_path: Path) -> None:
    with pytest.raises(mp.ProcessRaisedException, match="seen by the parent"):
        run(fail, tmp_path, processes=1)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_step_as_one_with_all_samples(case: str, trained: list[dict[str, dict[str, Tensor]]]) -> None:
    build, settings, weighted = CASES[case]
    model, start = build(), build()
    train(model, optimizer(model.parameters(), lr=LR, **settings), None, weighted)
    for name, alone in model.named_parameters():
        first, second = (processes[case][name] for processes in trained)
        assert torch.equal(first, second)
        torch.testing.assert_close(first, alone.detach(), rtol=0, atol=1e-11)
        assert (alone - start.state_dict()[name]).abs().max() > 1e-3


def test_two_processes_find_their_damping_as_one(trained: list[dict[str, dict[str, Tensor]]]) -> None:
    model = Net()
    expected = {"dampings": torch.tensor(find(model, None)), **model.state_dict()}
    first, second = (processes["found"] for processes in trained)
    for name, value in expected.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=1e-6, atol=1e-9)
    ratios = expected["dampings"][1:] / expected["dampings"][:-1]
    assert ((ratios > 0.501) & (ratios < 1.999)).any()  # not only the largest changes


def test_the_floor_of_a_damping_is_that_of_the_samples_of_all_processes(
    trained: list[dict[str, dict[str, Tensor]]],
) -> None:
    for processes in trained:
        assert processes["floor"]["dampings"][0] == SHARE * 4 / 600


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    join(0, str(tmp_path), 1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_of_one_steps_by_the_formula(alone: dist.ProcessGroup) -> None:
    net, heads, x = Net(), Heads(), data(8, 4)
    for model in (net, heads):
        opt = optimizer(model.parameters(), lr=LR, process_group=alone)
        with sample_weights(WEIGHTS):
            backward(model, opt, x)
        if model is net:
            expected = net.natural(x, 0.1, weights=WEIGHTS)
        else:
            precision = np.exp(-2 * affine(heads.scale, x))
            expected = natural(heads.mean, x, 0.1, q=precision, weights=WEIGHTS)
            expected |= natural(heads.scale, x, 0.1, q=np.full((8, 2), 2.0), weights=WEIGHTS)
        vectors = {p: LR * array(v) for p, v in opt.natural_gradient().items()}
        assert_close(vectors, scaled(LR, expected))


def steps(model: nn.Module, opt: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        backward(model, opt, data(8, 4, seed=seed))
        opt.step()


def test_a_copy_keeps_its_group_and_a_pickle_is_refused(alone: dist.ProcessGroup) -> None:
    net = Net()
    opt = optimizer(net.parameters(), lr=LR, process_group=alone, update_every=2)
    steps(net, opt, range(1))
    twin, other = copy.deepcopy((net, opt))
    assert other._processes.given is alone
    for seeds in (range(1, 4), range(4, 6)):
        steps(net, opt, seeds)
        steps(twin, other, seeds)
        assert same(net, twin)
        for given in (opt, (net, opt), other):
            with pytest.raises(CheckpointError, match=r"process_group cannot be pickled.*state_dict\(\)"):
                pickle.dumps(given)


@pytest.mark.parametrize("given", [None, False])
def test_a_pickle_without_a_group_of_its_own_keeps_what_was_said(given: bool | None) -> None:
    net = Net()
    opt = optimizer(net.parameters(), lr=LR, process_group=given)
    for _, other in (copy.deepcopy((net, opt)), pickle.loads(pickle.dumps((net, opt)))):
        assert other._processes.given is given


@pytest.mark.parametrize("given", [True, 2, "gloo", object()])
def test_what_is_no_group_is_refused(given: Any) -> None:
    with pytest.raises(SettingError, match="process_group must be a torch"):
        optimizer(Net().parameters(), process_group=given)


@pytest.mark.parametrize("build", [DAGNaturalGradient, lambda params, **s: DAGNaturalGradient(params, **s)])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "update_every": 2}], ids=str)
def test_an_optimizer_that_parts_weights_from_biases_is_refused(
    alone: dist.ProcessGroup, build: Callable[..., Any], settings: dict[str, Any]
) -> None:
    zero = pytest.importorskip("torch.distributed.optim").ZeroRedundancyOptimizer
    net = Net()
    with pytest.raises(SettingError, match=r"ZeroRedundancyOptimizer cannot shard.*weight and the bias.*process_group"):
        zero(net.parameters(), optimizer_class=build, lr=0.1, **settings)
    zero(net.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    opt = optimizer(net.parameters(), lr=LR, process_group=alone)
    steps(net, opt, range(1))
    assert not same(net, Net())


@pytest.mark.parametrize("way", ["memory", "file", "folder"])
@pytest.mark.parametrize("broadcast", [None, False, True], ids=["each", "full", "broadcast"])
def test_a_distributed_checkpoint_of_a_group_continues_bit_for_bit(
    alone: dist.ProcessGroup, broadcast: bool | None, way: str, tmp_path: Path
) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state_dict = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    options = state_dict.StateDictOptions(full_state_dict=broadcast is not None, broadcast_from_rank0=bool(broadcast))
    net, twin = Net(), Net()
    opt, other = (
        optimizer(n.parameters(), lr=LR, process_group=alone, update_every=4, window=2, momentum=0.9)
        for n in (net, twin)
    )
    steps(net, opt, range(7))
    opt.zero_grad()
    twin.load_state_dict(net.state_dict())
    state = state_dict.get_optimizer_state_dict(net, opt, options=options)
    if way == "file":
        torch.save(state, tmp_path / "optimizer.pt")
        state = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    if way == "folder":
        dcp.async_save({"optimizer": state}, checkpoint_id=tmp_path / "checkpoint").result()
        state = state_dict.get_optimizer_state_dict(twin, other, options=options)
        dcp.load({"optimizer": state}, checkpoint_id=tmp_path / "checkpoint")
    state_dict.set_optimizer_state_dict(twin, other, state, options=options)
    steps(net, opt, range(7, 12))
    steps(twin, other, range(7, 12))
    assert same(net, twin)
