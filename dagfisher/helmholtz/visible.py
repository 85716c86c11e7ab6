"""An experiment: the Fisher information of the *visible* distribution p(x), with the hidden units summed out.

The Fisher of the joint p(x, h), which the optimizer uses, is that of an observer who sees the hidden units too. The
score of p(x) is the posterior mean of the joint score, ∇log p(x) = E[∇log p(x, h) | x]; its second moment is the Fisher
of p(x). It is not block diagonal; here its block of each unit is taken.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Generator, Tensor

from ..capture import no_capture
from ..errors import SettingError
from ..nn import LateralBernoulliLinear, StochasticConvolution
from .machine import HelmholtzMachine
from .sampling import Wake, by_sample, hidden_layers, wake

Scores = list[Tensor]
"""∇log p(x) of each example about each generative layer, the prior last, (n × outputs × parents and bias)."""


@torch.no_grad()
def visible_scores(machine: HelmholtzMachine, x: Tensor, samples: int, generator: Generator | None = None) -> Scores:
    """∇log p(x) of each example, by importance-weighted samples of q(h|x).

    Args:
        machine: of dense layers.
        x: data in [0, 1], (n, pixels).
        samples: of q for each example.
        generator: of the draws.
    """
    layers = [*machine.generative_layers(), machine.prior]
    if any(isinstance(layer, (StochasticConvolution, LateralBernoulliLinear)) for layer in layers):
        raise SettingError("the Fisher of p(x) is for machines of dense layers without lateral connections.")
    with no_capture():
        state = wake(machine, machine.encode(x), samples, generator)
    weights = torch.softmax(state.log_ratio, 0)
    return [
        torch.einsum("sb,sbl,sbd->bld", weights, score, parents)
        for score, parents in _scores_and_parents(machine, state)
    ]


def _scores_and_parents(machine: HelmholtzMachine, state: Wake) -> list[tuple[Tensor, Tensor]]:
    """The joint scores about the predictors, (S, B, outputs), and the parents with a 1, (S, B, d), of each layer."""
    families = [machine.generative_layers()[0].family, *(layer.family for layer in hidden_layers(machine))]
    children = [state.x.expand(state.samples, -1, -1), *(by_sample(h, state.samples) for h in state.hidden)]
    found = []
    for i, (family, child) in enumerate(zip(families, children, strict=True)):
        above = children[i + 1] if i + 1 < len(children) else child[..., :0]
        predictor = by_sample(state.generative[i].detach(), state.samples)
        found.append(
            (
                family.score(child, predictor),
                torch.cat([above, torch.ones_like(above[..., :1] if above.shape[-1] else child[..., :1])], -1),
            )
        )
    return found


def visible_natural_gradient(gradients: Scores, scores: Scores, damping: float) -> Scores:
    """(1 + α)(αI + F_j)⁻¹ g_j of every unit, with F_j = mean of s sᵀ over the examples of `scores`.

    Solved in the space of the examples, n × n for each unit (Woodbury's identity).

    Args:
        gradients: of each layer, (outputs × d), as the mean of `visible_scores` over a minibatch is.
        scores: what `visible_scores` gave, for examples drawn from the machine; from data, it is the empirical Fisher.
        damping: α, above 0.
    """
    solved = []
    for gradient, score in zip(gradients, scores, strict=True):
        rows = score.transpose(0, 1) / len(score) ** 0.5  # (outputs × n × d)
        gram = rows @ rows.transpose(1, 2) + damping * torch.eye(len(score), dtype=rows.dtype, device=rows.device)
        factor = torch.linalg.cholesky(gram)
        inner = torch.cholesky_solve(rows @ gradient.unsqueeze(-1), factor)
        solved.append((1 + damping) / damping * (gradient - (rows.transpose(1, 2) @ inner).squeeze(-1)))
    return solved


@torch.no_grad()
def ascend(machine: HelmholtzMachine, vectors: Scores, lr: float) -> None:
    """Move the generative parameters by lr times the vectors of each layer, the prior last."""
    for layer, vector in zip(machine.generative_layers(), vectors[:-1], strict=True):
        cast(Tensor, layer.weight).add_(vector[:, :-1], alpha=lr)
        cast(Tensor, layer.bias).add_(vector[:, -1], alpha=lr)
    machine.prior.bias.add_(vectors[-1][:, -1], alpha=lr)
