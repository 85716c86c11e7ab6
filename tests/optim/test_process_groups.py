"""Which processes train together, and what must be alike in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from by_hand import Net, backward, data, loss, optimizer, same
from processes import Pool, join
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dagfisher
from dagfisher import DAGNaturalGradient
from dagfisher._processes import LARGE, Processes
from dagfisher.errors import ProcessError, SettingError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
Pools = Callable[[int], Pool]


def as_it_comes(rank: int, world: int, steps: int) -> dict[str, Any]:
    """A model in DistributedDataParallel, with nothing but its parameters given; or all samples in one process."""
    net = Net()
    model = DistributedDataParallel(net) if world > 1 else net
    opt = DAGNaturalGradient(model.parameters())
    for step in range(steps):
        x = data(8, 4, seed=step)
        opt.zero_grad()
        (loss(model(x.chunk(world)[rank])) / (8 // world)).backward()
        opt.step()
    return {**net.state_dict(), "damping": torch.tensor([v["damping"] for v in opt.diagnostics()["layers"].values()])}


@pytest.mark.parametrize("world", [2, 4])
def test_a_model_in_ddp_steps_as_one_process_with_all_samples(pool: Pools, world: int) -> None:
    alone, found = as_it_comes(0, 1, 12), pool(world).run(as_it_comes, world, 12)
    for name, value in alone.items():
        assert all(torch.equal(each[name], found[0][name]) for each in found[1:])
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-11)
    assert (alone["head.weight"] - Net().head.weight).abs().max() > 1e-2


def by_itself(rank: int) -> dict[str, Any]:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), process_group=False)
    if rank == 0:  # the other process would be waited for
        for step in range(4):
            backward(net, opt, data(8, 4, seed=step))
            opt.step()
    return net.state_dict()


def test_a_process_may_train_alone(pool: Pools) -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters())
    for step in range(4):
        backward(net, opt, data(8, 4, seed=step))
        opt.step()
    found = pool(2).run(by_itself)
    for name, value in net.state_dict().items():
        assert torch.equal(found[0][name], value)
        assert torch.equal(found[1][name], Net().state_dict()[name])


def in_pairs(rank: int) -> tuple[dict[str, Any], int]:
    """Four processes train two models, two of them each, on samples of their own; nobody is in the others' group."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    with pytest.raises(SettingError, match="group that this process is a member of"):
        DAGNaturalGradient(Net().parameters(), process_group=pairs[1 - rank // 2])
    net = Net()
    model = DistributedDataParallel(net, process_group=pairs[rank // 2])
    opt = DAGNaturalGradient(model.parameters(), process_group=pairs[rank // 2])
    for step in range(6):
        opt.zero_grad()
        x = data(8, 4, seed=10 * (rank // 2) + step)
        (loss(model(x.chunk(2)[rank % 2])) / 4).backward()
        opt.step()
    return net.state_dict(), opt.communication()["processes"]


def test_some_of_the_processes_may_train_together(pool: Pools) -> None:
    found = pool(4).run(in_pairs)
    for pair in range(2):
        net = Net()
        opt = DAGNaturalGradient(net.parameters())
        for step in range(6):
            opt.zero_grad()
            (loss(net(data(8, 4, seed=10 * pair + step))) / 8).backward()
            opt.step()
        (first, members), (second, _) = found[2 * pair : 2 * pair + 2]
        assert members == 2
        for name, value in net.state_dict().items():
            assert torch.equal(first[name], second[name])
            torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-11)


def narrow(rank: int) -> DAGNaturalGradient:
    return optimizer(nn.Sequential(nn.Linear(4, 3 - rank)).parameters())


def elsewhere(rank: int) -> DAGNaturalGradient:
    layer = nn.Linear(4, 3, device=["cpu", "meta"][rank])
    dagfisher.declare(layer, "bernoulli")
    return optimizer(layer.parameters())


def of_another_family(rank: int) -> DAGNaturalGradient:
    layer = nn.Linear(4, 3)
    dagfisher.declare(layer, ["bernoulli", "poisson"][rank])
    return optimizer(layer.parameters())


def undeclared(rank: int) -> DAGNaturalGradient:
    model = nn.Sequential(nn.Linear(4, 3))
    if rank:
        dagfisher.declare(model[0], "bernoulli")
    return optimizer(model.parameters())


def of_another_torch(rank: int) -> DAGNaturalGradient:
    version = torch.__version__
    try:
        torch.__version__ = ["2.13.0", "2.14.0"][rank]
        return optimizer(Net().parameters())
    finally:
        torch.__version__ = version


DIFFERENT: dict[str, tuple[Callable[[int], DAGNaturalGradient], str]] = {
    "rate": (
        lambda rank: optimizer(Net().parameters(), lr=[0.1, 0.2][rank]),
        "lr of param group 0 is 0.1 in process 0 ",
    ),
    "schedule": (
        lambda rank: optimizer(Net().parameters(), damping=[0.1, float][rank]),
        "damping of param group 0 is 0.1 in process 0 and the callable float in process 1",
    ),
    "shape": (narrow, r"parameter 0.weight is \(3, 4\) torch.float32 on cpu in process 0 and \(2, 4\)"),
    "device": (
        elsewhere,
        r"parameter weight is .* on cpu in process 0 and .* on meta in process 1",
    ),
    "family": (of_another_family, "layer .*Bernoulli.* in process 0 and Poisson.* in process 1"),
    "declaration": (undeclared, "layer '0' is missing in process 0 and Bernoulli"),
    "torch": (of_another_torch, "the version of torch is 2.13.0 in process 0 and 2.14.0 in process 1"),
}


def different(rank: int, case: str) -> None:
    build, sentence = DIFFERENT[case]
    with pytest.raises(ProcessError, match=sentence):
        build(rank)


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_between_processes_is_named_at_construction(pool: Pools, case: str) -> None:
    pool(2).run(different, case)


def joined_late(rank: int, meeting: str) -> None:
    dist.destroy_process_group()
    net = Net()
    opt = optimizer(net.parameters(), lr=[0.1, 0.2][rank])
    join(rank, meeting, 2)
    backward(net, opt, data(8, 4))
    with pytest.raises(ProcessError, match=r"lr of param group 0 is 0\.1 in process 0"):
        opt.step()
    assert same(net, Net())


def test_a_group_that_is_initialised_after_the_optimizer_counts_too(pool: Pools, tmp_path: Path) -> None:
    pool(2).run(joined_late, str(tmp_path / "meeting"))


def gathered(rank: int, count: int, spread: int) -> tuple[list[torch.Tensor], int]:
    """Numbers of each process that say whose they are, and the bytes that were received."""
    processes = Processes()
    own = rank * torch.ones(count + spread * rank) + torch.arange(count + spread * rank)
    sizes = [count + spread * other for other in range(processes.size)]
    return processes.gather(own, sizes if spread else None), processes.traffic.received


def in_ways(rank: int, count: int) -> list[str]:
    """How as many numbers of each process were sent."""
    ways = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather", "broadcast"):
            function = getattr(dist, name)

            def noted(*given: Any, name: str = name, function: Any = function, **more: Any) -> Any:
                ways.append(name)
                return function(*given, **more)

            patch.setattr(dist, name, noted)
        gathered(rank, count, 0)
    return ways


def test_large_parts_are_broadcast_between_cpus(pool: Pools) -> None:
    assert pool(2).run(in_ways, LARGE // 4 - 1) == [["all_gather"]] * 2
    assert pool(2).run(in_ways, LARGE // 4) == [["broadcast"] * 2] * 2


@pytest.mark.parametrize("count", [3, 2**18])
@pytest.mark.parametrize("spread", [0, 1, 2**16])
def test_parts_of_any_size_arrive_in_order(pool: Pools, count: int, spread: int) -> None:
    sizes = [count, count + spread]
    for rank, (parts, received) in enumerate(pool(2).run(gathered, count, spread)):
        for other, part in enumerate(parts):
            assert torch.equal(part, other + torch.arange(sizes[other], dtype=torch.float32))
        assert 4 * sizes[1 - rank] <= received <= 4 * max(sizes)
