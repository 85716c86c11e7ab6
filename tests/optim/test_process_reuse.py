"""Steps that reuse, in several processes: nothing waits for an accelerator, and what is sent is what is said."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from by_hand import Net, data, loss, optimizer
from processes import Pool
from waiting import waits

from dagfisher.solvers import rates

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "as it is": ({}, 0),
    "summed loss": ({"loss_reduction": "sum"}, 1),
    "solutions are gathered": ({"solver": "dense"}, 1),
}
"""Settings, and the messages of a step that reuses."""


def reused(rank: int, world: int, case: str) -> tuple[list[str], list[dict[str, Any]]]:
    """What a step that reuses would have waited for, and what was sent; asked again after one more gradient."""
    net = Net()
    opt = optimizer(net.parameters(), lr=0.01, update_every=3, **CASES[case][0])
    if case == "solutions are gathered":  # messages cost less than nothing
        rates._RATES["cpu"] = replace(rates._CPU, message=-1e12, sent=0.0)
    try:
        for step in range(2):
            opt.zero_grad()
            loss(net(data(8, 4, seed=step).chunk(world)[rank])).backward()
            for p in net.parameters():
                if world > 1:
                    dist.all_reduce(p.grad)
            with waits() as found:
                opt.step()
        sent = opt.communication()
        loss(net(data(8, 4, seed=9).chunk(world)[rank])).backward()
        for p in net.parameters():
            if world > 1:
                dist.all_reduce(p.grad)
        opt.natural_gradient()
        return list(found), [sent, opt.communication()]
    finally:
        rates._RATES["cpu"] = rates._CPU


@pytest.mark.parametrize("case", CASES)
def test_a_step_that_reuses_waits_for_nothing_more_than_one_process_does(
    case: str, pool: Callable[[int], Pool]
) -> None:
    (alone, _), messages = reused(0, 1, case), CASES[case][1]
    for found, (sent, again) in pool(2).run(reused, 2, case):
        assert found == alone
        assert sent["reuse"]["messages"] == messages
        assert (sent["reuse"]["bytes"] > 0) == (messages > 0)
        assert sent["refresh"]["messages"] > messages
        assert again == sent  # looking at a natural gradient is no step


def test_numbers_of_samples_are_summed_on_the_device(pool: Callable[[int], Pool]) -> None:
    """The mean over the processes of 1 and 3 samples is 2, whatever else is in the message."""
    for step in pool(2).run(of_few_samples):
        torch.testing.assert_close(step, torch.full_like(step, 0.5))


def of_few_samples(rank: int) -> torch.Tensor:
    net = Net()
    opt = optimizer(net.parameters(), lr=1.0, solver="diagonal", damping=1e9, loss_reduction="sum")
    loss(net(data(1 + 2 * rank, 4))).backward()
    before = net.head.bias.detach().clone()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    return before - net.head.bias.detach()
