"""From vectors (natural gradients) to new parameters: momentum, Nesterov, Adam, decoupled decay and L1.

Nesterov's look-ahead is written for the step −lr·v, as `torch.optim.SGD` does; Adam's second moment adds
(1−β₂)x², or 1−β₂ times the squared length that it is given, and both moments are corrected for their start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch import (
    foreach_add,
    foreach_add_,
    foreach_addcmul_,
    foreach_div,
    foreach_div_,
    foreach_lerp_,
    foreach_mul_,
    foreach_neg,
    foreach_sqrt,
)

ADAM_EPS = 1e-8


def apply_update(
    parameters: list[Tensor],
    vectors: list[Tensor],
    states: list[dict[str, Any]],
    group: Mapping[str, Any],
    gates: Sequence[Tensor | None] = (),
    squares: Sequence[Tensor | None] = (),
) -> None:
    """Move the parameters of one group by −lr·(accelerated vector + weight_decay·p + l1·sign p), in place.

    A parameter whose gate is false stays where it is; its moments forget as if the vector were 0. `states` is read only
    if the group `keeps_moments`. With `maximize` the vectors count with the opposite sign, and the decay as before.
    Adam's second moment averages the `squares` of a parameter where they are given, and else those of its vector.
    """
    lr: float = group["lr"]
    if group.get("maximize"):
        vectors = list(foreach_neg(vectors))
    if keeps_moments(group):
        begin_moments(vectors, states, group)
    if group["betas"] is not None:
        moves = _adam(vectors, states, group["betas"], squares)
    elif group["momentum"]:
        moves = _momentum(vectors, states, group["momentum"], group["nesterov"])
    else:
        moves = vectors
    if group["weight_decay"]:
        moves = list(foreach_add(moves, parameters, alpha=group["weight_decay"]))
    if group["l1"]:
        moves = list(foreach_add(moves, [p.sign() for p in parameters], alpha=group["l1"]))
    if any(gate is not None for gate in gates):
        moves = [move if gate is None else move * gate for move, gate in zip(moves, gates, strict=True)]
    foreach_add_(parameters, moves, alpha=-lr)


def keeps_moments(group: Mapping[str, Any]) -> bool:
    """Whether an update with these settings keeps something of each parameter for the next one."""
    return group["betas"] is not None or bool(group["momentum"])


def begin_moments(vectors: Sequence[Tensor], states: Sequence[dict[str, Any]], group: Mapping[str, Any]) -> None:
    """Moments of zero for the vectors that have none yet."""
    for vector, state in zip(vectors, states, strict=True):
        if group["betas"] is None:
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(vector)
        elif "step" not in state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(vector)
            state["exp_avg_sq"] = torch.zeros_like(vector)


def _momentum(vectors: list[Tensor], states: list[dict[str, Any]], beta: float, nesterov: bool) -> list[Tensor]:
    buffers: list[Tensor] = [state["momentum_buffer"] for state in states]
    foreach_mul_(buffers, beta)
    foreach_add_(buffers, vectors)
    return list(foreach_add(vectors, buffers, alpha=beta)) if nesterov else buffers


def _adam(
    vectors: list[Tensor],
    states: list[dict[str, Any]],
    betas: tuple[float, float],
    squares: Sequence[Tensor | None],
) -> list[Tensor]:
    first_beta, second_beta = betas
    for state in states:
        state["step"] += 1
    first: list[Tensor] = [state["exp_avg"] for state in states]
    second: list[Tensor] = [state["exp_avg_sq"] for state in states]
    foreach_lerp_(first, vectors, 1 - first_beta)
    foreach_mul_(second, second_beta)
    given = {i: square for i, square in enumerate(squares) if square is not None}
    if given:
        foreach_add_([second[i] for i in given], list(given.values()), alpha=1 - second_beta)
    each = [i for i in range(len(vectors)) if i not in given]
    if each:
        own = [vectors[i] for i in each]
        foreach_addcmul_([second[i] for i in each], own, own, value=1 - second_beta)
    denominators = list(foreach_sqrt(second))
    foreach_div_(denominators, [(1 - second_beta ** state["step"]) ** 0.5 for state in states])
    foreach_add_(denominators, ADAM_EPS)
    moves = list(foreach_div(first, denominators))
    foreach_div_(moves, [1 - first_beta ** state["step"] for state in states])
    return moves
