"""A process that ends, or that began with other parameters: the others say so, and nothing of theirs moves."""

import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from by_hand import Net, data, loss, optimizer, same
from processes import ENVIRONMENT, Pool, join
from torch import nn

import dagfisher
from dagfisher.errors import ProcessError
from dagfisher.optim import refresh

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
SECONDS = 10
"""The time-out of the group."""


def left_alone(rank: int, meeting: str, ending: str, answers: Connection) -> None:
    """Steps that the second process does not finish; the first tells what it meets, when, and whether it has moved."""
    torch.set_num_threads(1)
    os.environ.update(ENVIRONMENT)
    join(rank, meeting, 2, timedelta(seconds=SECONDS))
    net = Net()
    opt = optimizer(net.parameters(), lr=0.01, update_every=2)
    before, began = net.state_dict(), time.monotonic()
    try:
        for step in range(5):
            opt.zero_grad()
            loss(net(data(8, 4, seed=step).chunk(2)[rank])).backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
            before, began = {name: value.clone() for name, value in net.state_dict().items()}, time.monotonic()
            if step == 2 and rank == 1:  # the others are in a refresh
                if ending == "dies":
                    os._exit(1)
                time.sleep(3 * SECONDS)
            opt.step()
    except ProcessError as error:
        unmoved = all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        answers.send((str(error), step, unmoved, time.monotonic() - began))
        os._exit(0)


@pytest.mark.parametrize("ending", ["dies", "is late"])
def test_the_others_stop_within_the_time_out_and_have_not_moved(ending: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    members = [
        context.Process(target=left_alone, args=(rank, str(tmp_path / "meeting"), ending, there), daemon=True)
        for rank in range(2)
    ]
    for member in members:
        member.start()
    try:
        assert here.poll(120), "the first process did not answer"
        text, step, unmoved, seconds = here.recv()
    finally:
        for member in members:
            member.kill()
    assert text.startswith("process 0 cannot go on: another process of its group has ended, or did not come")
    assert "\n" not in text
    assert step == 2
    assert unmoved
    assert seconds < 2 * SECONDS


def begun_elsewhere(rank: int) -> None:
    """Gradients are summed, as they should be, but the processes began with different weights."""
    net = Net()
    with torch.no_grad():
        net.head.weight += 0.1 * rank
    start = {name: value.clone() for name, value in net.state_dict().items()}
    opt = optimizer(net.parameters(), lr=0.01)
    loss(net(data(8, 4).chunk(2)[rank])).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    with pytest.raises(ProcessError, match="the parameters of layer 'head' differ between process 0 and process 1"):
        opt.step()
    assert all(torch.equal(value, start[name]) for name, value in net.state_dict().items())
    assert same(net, Net()) == (rank == 0)


def test_processes_that_begin_with_different_parameters_are_told_so(pool: Callable[[int], Pool]) -> None:
    pool(2).run(begun_elsewhere)


class Mistake:
    """What one of two processes does other than the other one; by default nothing."""

    texts = ("", "")
    """How the errors of both begin; empty: the process has none."""
    moved = (False, False)
    """Whether the last step moved something."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.settings: dict[str, Any] = {}
        self.extra = nn.Linear(4, 3)

    def groups(self, net: Net) -> Any:
        return [*net.named_parameters(), *((f"extra.{name}", p) for name, p in self.extra.named_parameters())]

    def before(self, net: Net, step: int) -> None:
        """Between the backward pass and the step."""


class BadSchedule(Mistake):
    """A schedule that gives one process what cannot be: it stops before it could say so to the other."""

    texts = ("ProcessError: process 0 cannot go on", "SettingError: layer 'encoder.0': update_every gave -1")

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.settings = {"update_every": lambda step: -1 if step == 1 and rank == 1 else 1}


class OwnSchedule(Mistake):
    """A schedule that follows something of this process's own."""

    texts = ("ProcessError: the settings of the param groups in process 1 are no longer those in process 0",) * 2

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.settings = {"damping": lambda step: 0.1 + step * rank}


class DeclaredLate(Mistake):
    """One process declares a layer that the other does not."""

    texts = ("ProcessError: the declared layers in process 1 are no longer those in process 0",) * 2

    def before(self, net: Net, step: int) -> None:
        if self.rank == 1 and step == 0:
            dagfisher.declare(self.extra, "bernoulli")


class Frozen(Mistake):
    """One process freezes a bias, and so must make a Fisher anew that the other keeps."""

    texts = ("ProcessError: layer 'head' is due for a refresh in one of process 0 and process 1 only",) * 2

    def groups(self, net: Net) -> Any:
        head = {"params": [("head." + name, p) for name, p in net.head.named_parameters()], "update_every": 9}
        return [{"params": [("encoder." + name, p) for name, p in net.encoder.named_parameters()]}, head]

    def before(self, net: Net, step: int) -> None:
        if self.rank == 1 and step == 1:
            net.head.bias.requires_grad_(False)


class OutOfMemory(Mistake):
    """An error that is none of dagfisher's own."""

    texts = ("ProcessError: process 1 raised OutOfMemoryError: no room", "OutOfMemoryError: no room")

    def before(self, net: Net, step: int) -> None:
        if self.rank == 1 and step == 1:

            def full(*anything: Any) -> Any:
                raise torch.OutOfMemoryError("no room")

            refresh.statistics_of = full


class Replaced(Mistake):
    """An error in a step that reuses: nothing is sent, and the other process takes its step."""

    texts = ("", "DeclarationError: layer 'head': its weight was replaced")
    moved = (True, False)

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.settings = {"update_every": 3}

    def before(self, net: Net, step: int) -> None:
        if self.rank == 1 and step == 1:
            weight = net.head.weight
            net.head.weight = nn.Parameter(weight.detach().clone())
            net.head.weight.grad = torch.zeros_like(weight)


def mistaken(rank: int, kind: type[Mistake]) -> tuple[str, bool]:
    """The error of this process in the second step, and whether that step moved anything."""
    net, mistake = Net(), kind(rank)
    opt = optimizer(mistake.groups(net), **{"lr": 0.01, **mistake.settings})
    before, statistics_of = net.state_dict(), refresh.statistics_of

    def moved() -> bool:
        return any(not torch.equal(value, before[name]) for name, value in net.state_dict().items())

    try:
        for step in range(2):
            opt.zero_grad()
            loss(net(data(8, 4, seed=step).chunk(2)[rank])).backward()
            mistake.before(net, step)
            for p in net.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)
            before = {name: value.clone() for name, value in net.state_dict().items()}
            opt.step()
    except Exception as error:
        assert step == 1
        return f"{type(error).__name__}: {error}", any(
            not torch.equal(v, before[k]) for k, v in net.state_dict().items()
        )
    finally:
        refresh.statistics_of = statistics_of
    return "", moved()


@pytest.mark.filterwarnings("ignore:.*declared after the optimizer was built")
@pytest.mark.parametrize("kind", Mistake.__subclasses__())
def test_what_one_process_does_alone_is_named(kind: type[Mistake], pool: Callable[[int], Pool]) -> None:
    found = pool(2).run(mistaken, kind)
    for (text, moved), expected, may_move in zip(found, kind.texts, kind.moved, strict=True):
        assert text.startswith(expected), text
        assert bool(text) == bool(expected)
        assert "\n" not in text
        assert moved == may_move
