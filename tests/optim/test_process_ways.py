"""Ways to train with several processes: no_sync, Join, sharding, distributed checkpoints, errors."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from by_hand import Net, data, loss, optimizer, same
from processes import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher.errors import DagFisherError, ProcessError, SettingError, SingularBlockError

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed"),
    pytest.mark.filterwarnings("ignore:.*the gradient looks like:dagfisher.errors.DagFisherWarning"),
]
Pools = Callable[[int], Pool]


# Gradients over several passes, and batches that run out


def accumulated(rank: int, world: int) -> dict[str, Tensor]:
    """Two passes before each step; only the second sends gradients."""
    net = Net()
    model = DistributedDataParallel(net) if world > 1 else net
    opt = optimizer(model.parameters(), lr=0.01, update_every=2)
    for step in range(5):
        own = data(8, 4, seed=step).chunk(world)[rank]
        opt.zero_grad()
        if world > 1:
            first, second = own.chunk(2)
            with model.no_sync():
                (loss(model(first)) * world).backward()
            own = second
        (loss(model(own)) * world).backward()
        opt.step()
    return net.state_dict()


def test_passes_without_synchronisation_count(pool: Pools) -> None:
    alone, found = accumulated(0, 1), pool(2).run(accumulated, 2)
    for name, value in alone.items():
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-11)


BATCHES = [4, 2]
"""How many batches each process has."""


def run_out(rank: int, world: int, update_every: int) -> dict[str, Tensor]:
    """Steps on batches of four samples; the second process is out of them after two."""
    from torch.distributed.algorithms import Join

    net = Net()
    model = DistributedDataParallel(net) if world > 1 else net
    opt = optimizer(model.parameters(), lr=0.01, update_every=update_every)

    def step(x: Tensor) -> None:
        opt.zero_grad()
        (loss(model(x)) * world).backward()
        opt.step()

    def batch(rank: int, number: int) -> Tensor:
        return data(4, 4, seed=10 * rank + number)

    if world == 1:
        for number in range(max(BATCHES)):
            step(torch.cat([batch(r, number) for r in range(2) if number < BATCHES[r]]))
    else:
        with Join([model, opt]):
            for number in range(BATCHES[rank]):
                step(batch(rank, number))
    return net.state_dict()


@pytest.mark.parametrize("update_every", [1, 2])
def test_processes_that_are_out_of_batches_go_on_with_the_others(pool: Pools, update_every: int) -> None:
    alone, found = run_out(0, 1, update_every), pool(2).run(run_out, 2, update_every)
    for name, value in alone.items():
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-11)


def wrong_order(rank: int) -> None:
    from torch.distributed.algorithms import Join

    net = Net()
    model, opt = DistributedDataParallel(net), optimizer(net.parameters())
    with pytest.raises(ProcessError, match="the model before its optimizer"), Join([opt, model]):
        loss(model(data(4, 4))).backward()
        opt.step()
    assert same(net, Net())


def test_join_wants_the_model_first(pool: Pools) -> None:
    pool(2).run(wrong_order)


# Sharding


def sharded(rank: int, way: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no accelerator
        if way == "FSDP2":
            fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        else:
            strategy, original = way.split()[1:]
            net = FullyShardedDataParallel(
                net,
                sharding_strategy=ShardingStrategy[strategy],
                use_orig_params=original == "original",
                device_id=torch.device("cpu"),
            )
    with pytest.raises(SettingError, match=rf"is sharded by {way.split()[0]} .*DistributedDataParallel"):
        DAGNaturalGradient(net.named_parameters())


@pytest.mark.parametrize(
    "way", ["FSDP2", "FSDP1 FULL_SHARD flat", "FSDP1 FULL_SHARD original", "FSDP1 NO_SHARD original"]
)
def test_sharded_parameters_are_refused_by_name(pool: Pools, way: str) -> None:
    pool(2).run(sharded, way)


class Tower(nn.Module):
    """A plain network, which may be sharded, below a declared layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).double()
        self.head = nn.Linear(6, 2).double()
        dagfisher.declare(self.head, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.below(x))


def beside(rank: int, world: int) -> dict[str, Tensor]:
    """The network below is sharded by FSDP2 and trained by SGD; the declared layer is whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    tower = Tower()
    if world > 1:
        fully_shard(tower.below, mesh=init_device_mesh("cpu", (world,)))
    opt = optimizer(tower.head.parameters(), lr=0.01)
    plain = torch.optim.SGD(tower.below.parameters(), lr=0.01)
    for step in range(4):
        opt.zero_grad()
        plain.zero_grad()
        (loss(tower(data(8, 4, seed=step).chunk(world)[rank])) * world).backward()
        if world > 1:
            for p in tower.head.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        opt.step()
        plain.step()
    return tower.head.state_dict()


def test_layers_that_are_whole_train_beside_sharded_ones(pool: Pools) -> None:
    alone, found = beside(0, 1), pool(2).run(beside, 2)
    for name, value in alone.items():
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-10)


# Checkpoints


def steps(net: nn.Module, opt: torch.optim.Optimizer, seeds: range) -> None:
    """Steps on this process's samples among twelve."""
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    for seed in seeds:
        opt.zero_grad()
        loss(net(data(12, 4, seed=seed).chunk(world)[rank])).backward()
        if world > 1:
            for p in net.parameters():
                dist.all_reduce(p.grad)
        opt.step()


def saved(rank: int, folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    net, opt = checkpointed()
    steps(net, opt, range(5))
    opt.zero_grad()
    model, state = get_state_dict(net, opt)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder)


def checkpointed() -> tuple[Net, DAGNaturalGradient]:
    net = Net()
    return net, optimizer(net.parameters(), lr=0.01, update_every=3, momentum=0.9, window=2)


def continued(rank: int, folder: str) -> dict[str, Tensor]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    net, opt = checkpointed()
    steps(net, opt, range(20, 22))  # so that there is something to be replaced
    opt.zero_grad()
    model, state = get_state_dict(net, opt)
    whole = {"model": model, "optimizer": state}
    dcp.load(whole, checkpoint_id=folder)
    set_state_dict(net, opt, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"])
    steps(net, opt, range(5, 10))
    return net.state_dict()


def test_a_distributed_checkpoint_continues_with_any_number_of_processes(pool: Pools, tmp_path: Path) -> None:
    net, opt = checkpointed()
    steps(net, opt, range(10))
    for before, after in ((2, 4), (4, 2)):
        folder = str(tmp_path / f"from-{before}")
        pool(before).run(saved, folder)
        for world in (before, after):
            found = pool(world).run(continued, folder)
            for name, value in net.state_dict().items():
                assert all(torch.equal(each[name], found[0][name]) for each in found)
                torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        found = [continued(0, str(tmp_path / "from-2"))]
    for name, value in net.state_dict().items():
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-10)


# Errors


def one_raises(rank: int, way: str) -> tuple[str, bool]:
    """The error that this process raises in a step that only one process cannot do, and whether nothing moved."""
    net = Net()
    opt = optimizer(net.parameters(), lr=0.01, damping=(lambda step: 0.1) if way != "singular" else 0.0)
    x = data(12, 4).chunk(2)[rank]
    if way == "not finite" and rank == 1:
        x = x.clone()
        x[0] = torch.inf
    if way == "singular":
        x = torch.zeros_like(x)
    output = net(x)
    torch.where(output.isfinite(), output, 0.0).square().sum().backward()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    if way == "another optimizer" and rank == 1:
        optimizer(net.parameters(), process_group=False)
    try:
        opt.step()
    except DagFisherError as error:
        return f"{type(error).__name__}: {error}", same(net, Net())
    return "nothing", same(net, Net())


WAYS = {
    "not finite": ["NonFiniteError: layer 'encoder.0'"] * 2,
    "another optimizer": [
        "ProcessError: process 1 raised MissingStatisticsError: layer 'encoder.0': a newer",
        "Missing",
    ],
    "singular": [f"{SingularBlockError.__name__}: layer 'encoder.0': "] * 2,
}


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_one_process_is_one_sentence_in_all(pool: Pools, way: str) -> None:
    for (text, unmoved), expected in zip(pool(2).run(one_raises, way), WAYS[way], strict=True):
        assert text.startswith(expected), text
        assert "\n" not in text
        assert unmoved


# Gram matrices


def gram_sums(rank: int, world: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Many samples of a layer with few parents: its Gram matrices are fewer bytes than its rows."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    dagfisher.declare(layer, "bernoulli")
    opt = optimizer(layer.parameters(), lr=0.01, solver="dense")
    for step in range(3):
        opt.zero_grad()
        (loss(layer(data(400, 3, seed=step).chunk(world)[rank])) / 400).backward()
        if world > 1:
            for p in layer.parameters():
                dist.all_reduce(p.grad)
        opt.step()
    return layer.state_dict(), opt.communication()


def test_gram_matrices_are_summed_where_they_are_fewer_bytes(pool: Pools) -> None:
    alone, found = gram_sums(0, 1)[0], pool(2).run(gram_sums, 2)
    for name, value in alone.items():
        assert torch.equal(found[0][0][name], found[1][0][name])
        torch.testing.assert_close(found[0][0][name], value, rtol=0, atol=1e-11)
    rows = 0.5 * 8 * 400 * (3 + 2 + 1)
    assert 0 < found[0][1]["refresh"]["bytes"] < rows / 2


# Long runs


def fifty(rank: int, world: int) -> dict[str, Tensor]:
    net = Net()
    model = DistributedDataParallel(net) if world > 1 else net
    opt = DAGNaturalGradient(model.parameters())
    for step in range(50):
        opt.zero_grad()
        (loss(model(data(8, 4, seed=step).chunk(world)[rank])) * world / 8).backward()
        opt.step()
    return net.state_dict()


def test_all_processes_have_the_same_bits_after_fifty_steps(pool: Pools) -> None:
    alone, found = fifty(0, 1), pool(4).run(fifty, 4)
    for name, value in alone.items():
        assert all(torch.equal(each[name], found[0][name]) for each in found)
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-7)
