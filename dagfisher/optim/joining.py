"""`torch.distributed.algorithms.Join`: processes that are out of batches take the steps of those that have some.

Inside ``with Join([model, optimizer]):`` each step begins with one message that says who is out of batches. If anybody
is, the first process that is not sends the gradients to all, and those without a batch have no samples in the Fisher.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ProcessError
from .saving import SavedOptimizer


class OutOfBatches:
    """What a process does while others go on: the hooks that `Join` asks for."""

    def __init__(self, optimizer: JoinableOptimizer) -> None:
        self.optimizer = optimizer

    def main_hook(self) -> None:
        """Take the step that the others take."""
        self.optimizer._out_of_batches = True
        try:
            self.optimizer.zero_grad()
            self.optimizer.step()
        finally:
            self.optimizer._out_of_batches = False

    def post_hook(self, is_last_joiner: bool) -> None:
        """All processes have the same parameters already."""


class JoinableOptimizer(SavedOptimizer):
    """An optimizer that `Join` takes beside a model in DistributedDataParallel."""

    _join_config: Any = None  # `Join` gives it
    _out_of_batches = False

    def join_hook(self, **settings: Any) -> OutOfBatches:
        """What this process does when it is out of batches; `torch.distributed.algorithms.Join` calls it."""
        return OutOfBatches(self)

    @property
    def join_device(self) -> torch.device:
        """Of the first parameter."""
        return self._parameters()[0].device

    @property
    def join_process_group(self) -> Any:
        """Of the processes that train together."""
        return self._processes.group or dist.group.WORLD

    def _share_gradients(self) -> None:
        """Give the gradients to the processes that are out of batches."""
        config = self._join_config
        if config is None or not config.enable or self._processes.size == 1:
            return
        if config.is_first_joinable:
            raise ProcessError("give Join the model before its optimizer: Join([model, optimizer]).")
        parameters = self._parameters()
        has = [float(p.grad is not None) for p in parameters]
        told = self._processes.gather_numbers([float(self._out_of_batches), *has], self.join_device)
        going_on = [rank for rank, (out, *_) in enumerate(told) if not out]
        if len(going_on) == len(told):
            return
        first = going_on[0]
        sent: list[Tensor] = []
        for p, given in zip(parameters, told[first][1:], strict=True):
            if given and (self._out_of_batches or p.grad is None):
                p.grad = torch.zeros_like(p)
            if given and p.grad is not None:
                sent.append(p.grad)
        self._processes.broadcast_(sent, first)
