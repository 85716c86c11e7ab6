"""What the tests of the optimizer as one of torch's own share: a model, settings, and nested states laid flat."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from by_hand import Net, backward, data, optimizer
from torch import Tensor, nn
from torch.optim import lr_scheduler

from dagfisher import DAGNaturalGradient
from dagfisher.optim.checkpoint import Carried


class Mixed(Net):
    """Two declared layers and one that nobody declared."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(2, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(super().forward(x))


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "adam": {"betas": (0.9, 0.99)},
    "adam of units": {"betas": (0.9, 0.99), "second_moment": "unit"},
    "adam for the undeclared": {"undeclared": "adam"},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "foreach": {"foreach": True, "momentum": 0.5},
    "window": {"window": 2, "update_every": 2, "trust_region": 0.1},
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, gamma=0.9, step_size=2),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, factor=0.4, total_iters=4),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, start_factor=0.4, total_iters=4),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.99),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, power=0.9, total_iters=4),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=5),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2),
}
each_configuration = pytest.mark.parametrize("settings", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())


def built(net: nn.Module, named: bool = False, **settings: Any) -> DAGNaturalGradient:
    return optimizer(net.named_parameters() if named else net.parameters(), **{"lr": 0.01, **settings})


def train(net: nn.Module, opt: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for seed in steps:
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()


def flat(state: Any) -> list[Any]:
    """Everything in a nested state, tensors as lists."""
    if isinstance(state, (Carried, set)):
        return flat(Carried.opened(state))
    if isinstance(state, dict):
        return [item for key, value in state.items() for item in [key, *flat(value)]]
    if isinstance(state, (list, tuple)):
        return [item for value in state for item in flat(value)]
    return [state.dtype, state.tolist()] if isinstance(state, Tensor) else [state]


def p(*shape: int) -> nn.Parameter:
    """Some parameter."""
    return nn.Parameter(torch.ones(*shape or (2,)))
