"""A process that ends, or that began with other parameters: the others say so, and nothing of theirs moves."""

import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from by_hand import Net, data, loss, optimizer, same
from processes import ENVIRONMENT, Pool, join

from dagfisher.errors import ProcessError

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
