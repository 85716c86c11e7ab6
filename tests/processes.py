"""Processes that train together: a pool that tests give functions to. An error in any of them is an error here."""

import io
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=90)
"""Of every message between the processes, and of every function that is given to them."""


def join(rank: int, meeting: str, world: int, timeout: timedelta = TIMEOUT) -> None:
    """Make this process one of `world`, which meet at a file that does not exist yet."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timeout)


def _serve(rank: int, world: int, calls: Connection) -> None:
    torch.set_num_threads(1)
    while (call := calls.recv()) is not None:
        function, meeting, arguments = call
        try:
            join(rank, meeting, world)
            answer = True, function(rank, *arguments)
        except BaseException:
            answer = False, f"process {rank} of {world}: {traceback.format_exc()}"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        packed = io.BytesIO()
        torch.save(answer, packed)
        calls.send_bytes(packed.getvalue())


class Pool:
    """So many processes, which run one function after another, each time in a new process group."""

    def __init__(self, world: int, folder: Path) -> None:
        # Where it can be had, one server imports torch and is forked for each process.
        kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(kind)
        context.set_forkserver_preload(["processes", "by_hand", "pytest", "torch._dynamo", "dagfisher.helmholtz"])
        self._folder, self._count = folder, 0
        pairs = [context.Pipe() for _ in range(world)]
        self._calls = [here for here, _ in pairs]
        self._members = [
            context.Process(target=_serve, args=(rank, world, there), daemon=True)
            for rank, (_, there) in enumerate(pairs)
        ]
        for member in self._members:
            member.start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function gives for each rank, which is its first argument."""
        self._count += 1
        meeting = str(self._folder / f"meeting-{len(self._members)}-{self._count}")
        for calls in self._calls:
            calls.send((function, meeting, arguments))
        end, answers = time.monotonic() + 2 * TIMEOUT.total_seconds(), []
        for calls in self._calls:
            assert calls.poll(max(0.0, end - time.monotonic())), "a process did not answer in time"
            answers.append(torch.load(io.BytesIO(calls.recv_bytes()), weights_only=False))
        failures = [answer for good, answer in answers if not good]
        assert not failures, "\n".join(failures)
        return [answer for _, answer in answers]

    def close(self) -> None:
        for calls in self._calls:
            calls.send(None)
        for member in self._members:
            member.join(TIMEOUT.total_seconds())
            if member.is_alive():
                member.kill()
        assert all(member.exitcode == 0 for member in self._members), [m.exitcode for m in self._members]


@contextmanager
def pools() -> Iterator[Callable[[int], Pool]]:
    """A function that gives the pool of so many processes, which is started when it is first asked for."""
    made: dict[int, Pool] = {}
    with tempfile.TemporaryDirectory() as folder:

        def pool(world: int) -> Pool:
            if world not in made:
                made[world] = Pool(world, Path(folder))
            return made[world]

        try:
            yield pool
        finally:
            for each in made.values():
                each.close()


ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Nothing leaves this machine."""
