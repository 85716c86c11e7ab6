"""The processes that train together, through `torch.distributed`: which they are, and what they tell each other.

Every message is counted, so that an optimizer can say what it sends. A message that fails, because a process has ended
or is late, is one `ProcessError`. An error of one process is told to the others (`Processes.agree`), so that all stop.
"""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ProcessError, SettingError

Result = TypeVar("Result")

PADDED = 1.2
"""Parts of different sizes are filled up to the largest and gathered at once, if that is at most so many times the
bytes."""
LARGE = 2**17
"""Bytes from which on CPUs broadcast each part, which copies less than gathering."""


@dataclass
class Traffic:
    """What one process received in some messages."""

    messages: int = 0
    received: int = 0
    """Bytes, by the ring algorithms: (W − 1)/W of all that is gathered, and twice that of what is summed."""


def launched(given: Any = None, *, timeout: timedelta = timedelta(minutes=10)) -> Processes:
    """The processes of a group, as `Processes` takes it; the default one is initialised where torchrun started this.

    Args:
        given: as for `Processes`.
        timeout: of every message, in a group that is initialised here.
    """
    if given is None and is_launched() and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        dist.init_process_group(store=_meeting(rank, world, timeout), rank=rank, world_size=world, timeout=timeout)
        atexit.register(leave)
    return Processes(given)


def _meeting(rank: int, world: int, timeout: timedelta) -> Any:
    """Where the processes that torchrun started find each other.

    After a restart torchrun may still serve what the processes before it left there, so each attempt has a place of its
    own.
    """
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world, not served and rank == 0, timeout, multi_tenant=True)  # type: ignore[attr-defined]
    return dist.PrefixStore(f"dagfisher, attempt {_attempt()}", store)  # type: ignore[attr-defined]


def is_first() -> bool:
    """Whether this is the first of the processes that torchrun started, or the only one."""
    return not is_launched() or os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """Whether torchrun started this process, among others."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return several and dist.is_available() and dist.is_torchelastic_launched()


def is_restarted() -> bool:
    """Whether torchrun has started this process again after one of the group failed."""
    return _attempt() > 0


def _attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def is_shared(error: BaseException) -> bool:
    """Whether all processes have raised this error, or say whose it is."""
    return getattr(error, "shared", False)


def leave() -> None:
    """End the default process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class Processes:
    """The members of a process group, as one of them sees it.

    Args:
        given: a group; None: the default group, if one with more than one process is initialised; False: this process
            alone.
    """

    def __init__(self, given: Any = None) -> None:
        if not (given is None or given is False or (dist.is_available() and isinstance(given, dist.ProcessGroup))):
            raise SettingError(
                f"process_group must be a torch.distributed group that this process is a member of, None for the "
                f"default group, or False for this process alone, not {given!r}."
            )
        self.given = given
        self.traffic = Traffic()

    @property
    def group(self) -> Any:
        """The group of more than one process; None: this process is alone."""
        if self.given is False or not dist.is_available() or not dist.is_initialized():
            return None
        group = dist.group.WORLD if self.given is None else self.given
        return group if dist.get_world_size(group) > 1 else None

    @property
    def size(self) -> int:
        """How many there are."""
        group = self.group
        return 1 if group is None else dist.get_world_size(group)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        group = self.group
        return 0 if group is None else dist.get_rank(group)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and shows what is the same for all."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """The numbers below `count` that are this process's: consecutive, and as many for each process as can be."""
        return self.shares(count)[self.rank]

    def shares(self, count: int) -> list[range]:
        """The shares of all processes, in the order of their ranks."""
        size = self.size
        return [range(count * rank // size, count * (rank + 1) // size) for rank in range(size)]

    # Messages

    def gather(self, own: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        """The flat tensors of all processes, in the order of their ranks, on each of them.

        Args:
            own: (n), the part of this process.
            sizes: n of each process, if they differ.
        """
        group, size = self.group, self.size
        if group is None:
            return [own]
        sizes = [own.numel()] * size if sizes is None else sizes
        most, total = max(sizes), sum(sizes)
        large = own.device.type == "cpu" and most * own.element_size() >= LARGE
        if large or size * most > PADDED * total:
            return self._broadcast(own, sizes)
        parts = [own.new_empty(most) for _ in range(size)]
        if own.numel() < most:
            own = torch.cat([own, own.new_zeros(most - own.numel())])
        with self._talking():
            dist.all_gather(parts, own.contiguous(), group=group)
        self._count((size - 1) * most * own.element_size())
        return [part[:n] for part, n in zip(parts, sizes, strict=True)]

    def _broadcast(self, own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """As `gather`, each part in a message of its own, so that small ones are not filled up."""
        group, rank = self.group, self.rank
        parts = [own.contiguous() if r == rank else own.new_empty(n) for r, n in enumerate(sizes)]
        with self._talking():
            works = [
                dist.broadcast(part, dist.get_global_rank(group, r), group=group, async_op=True)
                for r, part in enumerate(parts)
                if part.numel()
            ]
            for work in works:
                work.wait()
        for r, part in enumerate(parts):
            if r != rank and part.numel():
                self._count(part.numel() * part.element_size())
        return parts

    def gather_numbers(self, own: Sequence[float], device: torch.device) -> list[list[float]]:
        """As many numbers of each process, in the order of their ranks; one message."""
        mine = torch.tensor(own, dtype=torch.float64, device=device)
        found: list[list[float]] = torch.stack(self.gather(mine)).tolist()
        return found

    def any(self, own: Sequence[bool], device: torch.device) -> list[bool]:
        """For each of some questions, whether any process says yes; one message."""
        if self.group is None:
            return list(own)
        answers = self.gather_numbers([float(each) for each in own], device)
        return [any(column) for column in zip(*answers, strict=True)]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Add up the tensors of all processes, in place; one message for each dtype and device."""
        if (group := self.group) is not None:
            part = 2 * (self.size - 1) / self.size
            self._bundled(tensors, lambda flat: dist.all_reduce(flat, group=group), part)

    def broadcast_(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Give all processes the tensors of one, in place; one message for each dtype and device."""
        if (group := self.group) is not None:
            source = dist.get_global_rank(group, rank)
            part = float(rank != self.rank)
            self._bundled(tensors, lambda flat: dist.broadcast(flat, source, group=group), part)

    def _bundled(self, tensors: Sequence[Tensor], message: Callable[[Tensor], Any], part: float) -> None:
        """Send tensors in as few messages as there are dtypes and devices; `part` of the bytes are received."""
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for members in kinds.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in members])
            with self._talking():
                message(flat)
            self._count(int(part * flat.numel() * flat.element_size()))
            for tensor, own in zip(members, torch.split(flat, [t.numel() for t in members]), strict=True):
                tensor.copy_(own.reshape(tensor.shape))

    def gather_objects(self, own: Any) -> list[Any]:
        """A picklable object of each process, in the order of their ranks."""
        group = self.group
        if group is None:
            return [own]
        found: list[Any] = [None] * self.size
        with self._talking():
            dist.all_gather_object(found, own, group=group)
        self._count((self.size - 1) * len(pickle.dumps(own)))
        return found

    def wait(self) -> None:
        """Return once all processes have come here."""
        if (group := self.group) is not None:
            with self._talking():
                dist.barrier(group=group)

    # Errors

    def agree(self, error: Exception | None) -> None:
        """Raise on every process if one of them has an error: its own, or a `ProcessError` that says whose.

        All processes must call it.
        """
        if self.group is not None:
            told = self.gather_objects(None if error is None else (type(error).__name__, str(error)))
            raised = [(rank, *each) for rank, each in enumerate(told) if each is not None]
            if error is None and raised:
                rank, kind, text = raised[0]
                error = ProcessError(f"process {rank} raised {kind}: {text} The others stop with it.")
            if error is not None:
                error.shared = True  # type: ignore[attr-defined]
        if error is not None:
            raise error

    def together(self, function: Callable[[], Result]) -> Result:
        """What the function gives; an error in any process is an error in all of them."""
        result, error = None, None
        try:
            result = function()
        except Exception as raised:  # raised again, in all processes
            error = raised
        self.agree(error)
        return result  # type: ignore[return-value]

    def only_first(self, function: Callable[[], Result]) -> Result | None:
        """What the function gives in the first process, None in the others; its error is an error in all of them."""
        return self.together(lambda: function() if self.first else None)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, pickle.UnpicklingError) as error:  # torch's own errors of groups are RuntimeErrors
            reason = str(error).strip().partition("\n")[0]
            raise ProcessError(
                f"process {dist.get_rank(self.given or None)} cannot go on: another process of its group has ended, or "
                f"did not come to the same step within the group's time-out ({reason}). No parameter has moved; start "
                f"all processes again from the last checkpoint."
            ) from error

    def _count(self, received: int) -> None:
        self.traffic.messages += 1
        self.traffic.received += received
