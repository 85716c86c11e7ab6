"""Every private name of torch that dagfisher uses, each with a fallback for a torch that no longer has it.

No other file of the package reaches for a name with a leading underscore inside torch.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor


def graph_task() -> int:
    """Which call of backward() runs this code; −1: none does, or torch cannot say."""
    task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)
    return -1 if task is None else task()


def inside_backward() -> bool:
    """Whether this code runs because of a backward pass, as a recomputed checkpoint does; False if torch cannot say."""
    return graph_task() != -1


def inside_transform() -> bool:
    """Whether this code runs inside vmap, grad or jvp of torch.func; False if torch cannot say."""
    functorch = getattr(torch._C, "_functorch", None)
    peek: Callable[[], Any] | None = getattr(functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor that this one is a view of, as autograd knows it; None if it is no view, or torch cannot say."""
    base: Tensor | None = getattr(tensor, "_base", None)
    return base


def runs_as(module: torch.nn.Module, kind: type[torch.nn.Module], hooks: int) -> bool:
    """Whether a call of the module does what torch's `kind` does, and nothing else; False if torch cannot say.

    Args:
        module: of this kind or of a class derived from it.
        kind: a class of torch.nn.
        hooks: how many forward hooks of the module are known to change nothing.
    """
    if "forward" in vars(module) or not kind.__module__.startswith("torch.nn."):
        return False
    same = all(getattr(type(module), name, None) is getattr(kind, name, None) for name in ("forward", "_conv_forward"))
    everywhere = torch.nn.modules.module
    others = [getattr(module, "_forward_pre_hooks", None)]
    others += [getattr(everywhere, f"_global_forward_{name}hooks", None) for name in ("", "pre_")]
    own = getattr(module, "_forward_hooks", None)
    return same and own is not None and len(own) == hooks and all(each is not None and not each for each in others)


def outside_graphs(function: Callable[..., None], reason: str) -> Callable[..., None]:
    """The function, always run outside the graphs of torch.compile; `reason` is shown where that is not possible."""
    outside: Any = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    outside._torchdynamo_disable_msg = reason
    if "reason" not in inspect.signature(torch.compiler.disable).parameters:
        outside.__qualname__ = reason  # all that an older torch shows of it
    return outside  # type: ignore[no-any-return]


def optimizer_hooks(optimizer: torch.optim.Optimizer, kind: str) -> list[Callable[..., Any]]:
    """The hooks of an optimizer, in torch's order; `kind` is "state_dict_post" or the like. None if torch has none."""
    return list(getattr(optimizer, f"_optimizer_{kind}_hooks", {}).values())


@contextmanager
def holding_hooks(optimizer: torch.optim.Optimizer, *kinds: str) -> Iterator[None]:
    """Torch does not run these hooks of an optimizer meanwhile."""
    names = [f"_optimizer_{kind}_hooks" for kind in kinds]
    held = {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}
    for name in held:
        setattr(optimizer, name, OrderedDict())
    try:
        yield
    finally:
        for name, hooks in held.items():
            setattr(optimizer, name, hooks)


def inside_sharding_optimizer() -> bool:
    """Whether this code runs because of a `ZeroRedundancyOptimizer`, as the constructor of what it shards does."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    kind = getattr(module, "ZeroRedundancyOptimizer", None)
    return kind is not None and any(isinstance(frame.f_locals.get("self"), kind) for frame in _callers())


def sharded_by(parameter: Tensor) -> str | None:
    """What keeps only a part of a parameter in each process, or puts it into another one; None if it is whole."""
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    if kind is not None and isinstance(parameter, kind):
        return "FSDP2 (fully_shard) or another use of DTensor"
    if getattr(parameter, "_is_flat_param", False) or getattr(parameter, "_fsdp_flattened", False):
        return "FSDP1 (FullyShardedDataParallel)"
    return None


def inside_distributed_checkpoint() -> bool:
    """Whether this code runs because `torch.distributed.checkpoint` saves or loads."""
    name = "torch.distributed.checkpoint"
    return name in sys.modules and any(str(f.f_globals.get("__name__")).startswith(name) for f in _callers())


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _looped(name: str) -> Callable[..., list[Tensor]]:
    """What `torch._foreach_<name>` does, one tensor after another."""
    single: Callable[..., Tensor] = getattr(Tensor, name)

    def loop(tensors: list[Tensor], *operands: Any, **settings: Any) -> list[Tensor]:
        found = []
        for i, tensor in enumerate(tensors):
            mine = [each[i] if isinstance(each, (list, tuple)) else each for each in operands]
            found.append(single(tensor, *mine, **settings))
        return found

    return loop


def _foreach(name: str) -> Callable[..., list[Tensor]]:
    fused: Callable[..., list[Tensor]] | None = getattr(torch, f"_foreach_{name}", None)
    return _looped(name) if fused is None else fused


# The same operation on every tensor of a list, in one call where torch has it.
foreach_add = _foreach("add")
foreach_add_ = _foreach("add_")
foreach_mul_ = _foreach("mul_")
foreach_lerp_ = _foreach("lerp_")
foreach_addcmul_ = _foreach("addcmul_")
foreach_neg = _foreach("neg")
foreach_norm = _foreach("norm")
foreach_sqrt = _foreach("sqrt")
foreach_div = _foreach("div")
foreach_div_ = _foreach("div_")
