"""Unknown pixels filled in from known ones, by alternating between the two networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..capture import no_capture
from ..errors import SettingError, ShapeError
from ..nn import LateralBernoulliLinear
from .sampling import Networks, dream, joint, wake


@dataclass
class Completion:
    """What a machine makes of unknown pixels; known ones are as they were given. Images are (n, pixels) in [0, 1]."""

    mean: Tensor
    """The expectation of each pixel, averaged over the second half of the sweeps."""
    sample: Tensor
    """A draw: the states of the last sweep."""
    exact: bool
    """Whether many sweeps end in p(unknown | known) of the machine, whatever its q is."""
    moved: float
    """The share of sweeps, over the images, in which the hidden state changed; near 0, many more sweeps are needed."""


@torch.no_grad()
def complete(
    machine: Networks,
    x: Tensor,
    known: Tensor,
    *,
    sweeps: int = 100,
    candidates: int = 5,
    generator: Generator | None = None,
) -> Completion:
    """Fill in unknown pixels, which start as a dream.

    A sweep draws h given all pixels, and then the unknown pixels given h. With no candidates, h is a draw of q(h|x).
    With some, so many draws of q compete with the h of the sweep before, each with the weight p(x, h)/q(h|x), and one
    is chosen: a step that leaves p(h|x) as it is, whatever q is, so that the limit is exact.

    Args:
        machine: whose bottom generative layer has no lateral connections.
        x: data in [0, 1], (n, pixels); unknown pixels may be anything.
        known: true or 1 where a pixel is known, (pixels) or (n, pixels).
        sweeps: at least 1.
        candidates: draws of q in each sweep; 0: alternate between q and p.
        generator: of the draws.
    """
    if isinstance(machine.generative_layers()[0], LateralBernoulliLinear):
        raise SettingError(
            "pixels with lateral connections depend on each other given h, so that unknown ones cannot be drawn given "
            "known ones; complete needs a machine without lateral connections in its bottom generative layer."
        )
    if sweeps < 1 or candidates < 0:
        raise SettingError("sweeps must be at least 1 and candidates at least 0.")
    given = machine.encode(torch.nan_to_num(x))
    if known.shape not in (given.shape, given.shape[1:]):
        raise ShapeError(
            f"known has the shape {tuple(known.shape)}; give (pixels) or (n, pixels) of {tuple(given.shape)}."
        )
    known = known.to(given.device).bool().expand_as(given)
    family = machine.generative_layers()[0].family
    visible = torch.where(known, given, dream(machine, len(given), generator).path[0])
    hidden = wake(machine, visible, 1, generator).hidden
    total, moves = torch.zeros_like(given), 0.0
    for sweep in range(sweeps):
        if candidates:
            hidden, moved = _chosen(machine, visible, hidden, candidates, generator)
            moves += moved
        else:
            hidden, moves = wake(machine, visible, 1, generator).hidden, moves + 1
        with no_capture():
            predictor = machine.down(0, hidden[0])
        visible = torch.where(known, given, family.sample(predictor, generator))
        if sweep >= sweeps // 2:
            total += family.mean(predictor)
    mean = torch.where(known, given, total / (sweeps - sweeps // 2))
    return Completion(machine.decode(mean), machine.decode(visible), candidates > 0, moves / sweeps)


def _chosen(
    machine: Networks, x: Tensor, hidden: list[Tensor], candidates: int, generator: Generator | None
) -> tuple[list[Tensor], float]:
    """One of the old hidden states and some new ones for each image, and the share of images that took a new one."""
    fresh = wake(machine, x, candidates, generator)
    log_q = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    with no_capture():
        for i, (layer, below, states) in enumerate(
            zip(machine.recognition_layers(), [x, *hidden], hidden, strict=False)
        ):
            log_q = log_q + layer.family.log_prob(states, machine.up(i, below, states)).sum(-1)
    old = joint(machine, x, hidden, 1)[1] - log_q
    weights = torch.softmax(torch.cat([old, fresh.log_ratio]), 0)
    pick = torch.multinomial(weights.T, 1, generator=generator).squeeze(1)
    rows = torch.arange(len(x), device=x.device)
    pools = [
        torch.cat([kept, new]).reshape(candidates + 1, len(x), -1)
        for kept, new in zip(hidden, fresh.hidden, strict=True)
    ]
    return [pool[pick, rows] for pool in pools], float((pick > 0).double().mean())
