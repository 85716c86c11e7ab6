"""Numbers that the host must know before it can go on; those of many tasks are read from an accelerator at once.

A task that needs such numbers is a generator: it yields them as a tensor and is sent their values. ::

    def rows_that_count(weights: Tensor) -> Asking[int]:
        (count,) = yield (weights > 0).sum()
        return int(count)

    counts = answered(joint([rows_that_count(weights) for weights in of_all_layers]))  # one reading
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Asking = Generator[Tensor, list[float], Result]
"""A task that yields the numbers it must know, in a tensor of any shape, and is sent them as a list."""


READ_FREELY = frozenset({"cpu"})
"""Types of devices whose memory the host reads without waiting."""


def reads_freely(device: torch.device) -> bool:
    """Whether the host reads this device's memory without waiting for it."""
    return device.type in READ_FREELY


def read(numbers: Tensor) -> list[float]:
    """The numbers in a tensor; an accelerator makes the host wait."""
    # tolist() of a CPU tensor reads memory: no dispatch, no synchronisation.
    found: list[float] = numbers.reshape(-1).tolist()
    return found


def told(numbers: Tensor) -> Asking[list[float]]:
    """The task that asks for these numbers and gives them."""
    return (yield numbers)


def answered(task: Asking[Result]) -> Result:
    """What a task gives once it was told what it asked for."""
    try:
        wanted = next(task)
        while True:
            wanted = task.send(read(wanted))
    except StopIteration as done:
        result: Result = done.value
        return result


def joint(tasks: Iterable[Asking[Result]]) -> Asking[list[Result]]:
    """All tasks as one, which asks for what they wait for in one go, as often as the one that asks most often.

    A task on a device that is read freely waits for nobody. The first error of a task, in their order, ends all.
    """
    results: dict[int, Result] = {}
    waiting: list[tuple[int, Asking[Result], Tensor]] = []

    def go_on(number: int, task: Asking[Result], answer: list[float] | None) -> None:
        try:
            wanted = next(task) if answer is None else task.send(answer)
            while reads_freely(wanted.device):
                wanted = task.send(read(wanted))
            waiting.append((number, task, wanted.reshape(-1)))
        except StopIteration as done:
            results[number] = done.value

    for number, task in enumerate(tasks):
        go_on(number, task, None)
    while waiting:
        asked, waiting = waiting, []
        answers = yield _one_vector([wanted for _, _, wanted in asked])
        for number, task, wanted in asked:
            own, answers = answers[: len(wanted)], answers[len(wanted) :]
            go_on(number, task, own)
    return [results[number] for number in sorted(results)]


def _one_vector(vectors: list[Tensor]) -> Tensor:
    """All numbers on the first vector's device, in float64 if some are, otherwise in float32."""
    dtype = torch.float64 if any(v.dtype == torch.float64 for v in vectors) else torch.float32
    return torch.cat([v.to(vectors[0].device, dtype) for v in vectors])
