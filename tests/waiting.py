"""What makes the host wait for an accelerator: refused, or counted while the CPU plays one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
    "equal",
    "allclose",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
)
"""Operations whose result, or the shape of it, the host must wait for on an accelerator."""


class HostWaits(AssertionError):
    """An operation made the host wait for the device."""


class Noticing(TorchDispatchMode):
    """Notices every operation that makes the host wait for the device."""

    def notice(self, operation: str) -> None:
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        moves = (
            name in ("_to_copy", "copy_", "to")
            and len({torch.device(d).type for d in (kwargs.get("device"), *devices(args)) if d is not None}) > 1
        )
        if name in WAITS or masks or moves:
            self.notice(str(func))
        return func(*args, **kwargs)


def devices(args: tuple[Any, ...]) -> list[torch.device]:
    return [a.device for a in args if isinstance(a, Tensor)]


class NoWaiting(Noticing):
    """Raises on any operation that makes the host wait for the device."""

    def notice(self, operation: str) -> None:
        raise HostWaits(operation)


class Waits(Noticing):
    """A list of the operations that made the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def notice(self, operation: str) -> None:
        self.found.append(operation)


class Lists(TorchFunctionMode):
    """Notes every `tolist`, which no dispatch mode sees on a CPU."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            self.found.append("tolist")
        return func(*args, **(kwargs or {}))


@contextmanager
def waits() -> Iterator[list[str]]:
    """The operations that would have made the host wait for an accelerator."""
    with Waits() as mode, Lists(mode.found):
        yield mode.found
