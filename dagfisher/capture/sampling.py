"""Derivatives for deterministic layers: outputs are drawn from the model, and their scores back-propagated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, Tensor
from torch.autograd.graph import GradientEdge

from ..declaration import Declaration, declarations
from ..errors import MissingStatisticsError
from ..families import Family, GaussianScale
from .pending import Derivative, Draw
from .records import Recorder


def sample(layers: Iterable[tuple[Declaration, Recorder]], generator: Generator | None) -> None:
    """Tell every `Derivative` of these layers what outputs that are drawn from the model bring it.

    The score of a stochastic layer's sample is not passed on through the next stochastic layer below: given the sample
    of that layer, nothing below it has a part in the score.

    Args:
        layers: the declared layers of an optimizer, each with its recorder.
        generator: of the draws.
    """
    pairs = list(layers)
    weights = [p.fisher_weights for _, recorder in pairs for p in recorder.passes]
    wanted = [w for w in weights if isinstance(w, Derivative) and w.sampled and w.value is None]
    if not wanted:
        return
    with torch.no_grad():
        scores = _scores(pairs, generator)
    if not scores:
        raise MissingStatisticsError(
            "sample_fisher() found no captured pass of a stochastic layer to sample from; declare the output layers of "
            "the model, run it in training mode, and call sample_fisher() before backward()."
        )
    handles = [edge.node.register_prehook(_Replace(edge.output_nr, score)) for edge, score in scores]
    try:
        with _paused():
            found = torch.autograd.grad(
                [edge for edge, _ in scores],
                [derivative.edge for derivative in wanted],
                [score for _, score in scores],
                retain_graph=True,
                allow_unused=True,
            )
    except RuntimeError as error:
        if not any(p.backward is not None and p.backward.ran for _, recorder in pairs for p in recorder.passes):
            raise
        raise MissingStatisticsError(
            "sample_fisher() came after backward(), which frees the graph that it needs; call it between the forward "
            "pass and backward(), or call backward(retain_graph=True)."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    for derivative, gradient in zip(wanted, found, strict=True):
        derivative.value = gradient


@contextmanager
def _paused() -> Iterator[None]:
    """Backward passes inside this context are no part of any gradient, for the hooks of every captured pass."""
    recorders: list[Recorder] = [d.recorder for d in declarations() if d.recorder is not None]
    hooks = [hook for recorder in recorders for hook in recorder.hooks()]
    for hook in hooks:
        hook.paused = True
    try:
        yield
    finally:
        for hook in hooks:
            hook.paused = False


class _Replace:
    """Puts a score in the place of what comes from above."""

    def __init__(self, output: int, score: Tensor) -> None:
        self.output, self.score = output, score

    def __call__(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(self.score if i == self.output else g for i, g in enumerate(gradients))


def _scores(
    pairs: list[tuple[Declaration, Recorder]], generator: Generator | None
) -> list[tuple[GradientEdge, Tensor]]:
    """The edge of each stochastic pass, and the score of a sample drawn from it, with the axes of its output."""
    draws: dict[int, list[Draw]] = {id(d): [p.draw for p in r.passes if p.draw is not None] for d, r in pairs}
    scores: list[tuple[GradientEdge, Tensor]] = []
    for declaration, _ in pairs:
        family, own = declaration.family, draws[id(declaration)]
        if isinstance(family, GaussianScale):
            means = draws.get(id(declaration.mean_head), [])
            for mean, scale in zip(means, own, strict=False):
                about_mean, about_scale = family.sampled_scores(scale.predictor, generator)
                scores.append((mean.edge, mean.arrange(about_mean)))
                scores.append((scale.edge, scale.arrange(about_scale)))
        elif isinstance(family, Family):
            for draw in own:
                value = family.sample(draw.predictor, generator)
                scores.append((draw.edge, draw.arrange(family.score(value, draw.predictor))))
    return scores
