"""Deterministic units between stochastic ones: their Fisher weights are squared back-propagated derivatives.

A hidden unit with activation a inside an encoder or decoder has no distribution of its own. Its unit-wise block is
E[(∂ log p/∂a)² u uᵀ], with log p of outputs that are *sampled from the model* (the true Fisher), or of the data at hand
(the empirical one). Blocks between units are not zero here as they are between stochastic units; leaving them out is an
approximation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.autograd.graph import GradientEdge

from .declare import Declaration
from .errors import MissingStatisticsError
from .families import Deterministic, GaussianMean, GaussianScale, gaussian_sample
from .records import Record, Recorder, sampling


class Derivative:
    """∂ log p/∂a of one pass of a deterministic layer, as soon as it is known."""

    def __init__(self, edge: GradientEdge, scale: float) -> None:
        self.edge = edge
        self.scale = scale
        self.value: Tensor | None = None

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """A hook of the output's node: keep what an ordinary backward pass brings (the empirical Fisher)."""
        gradient = gradients[self.edge.output_nr]
        if gradient is not None and not sampling.active:
            self.value = gradient.detach().clone()


class Draw:
    """One pass of a stochastic layer: where its predictor stands in the graph, and the predictor."""

    def __init__(self, edge: GradientEdge, predictor: Tensor, channels: int) -> None:
        self.edge = edge
        self.predictor = predictor.movedim(channels, -1)
        self.channels = channels

    def arrange(self, score: Tensor) -> Tensor:
        """A score as the layer's output stands."""
        return score.movedim(-1, self.channels)


def edge_of(output: Tensor) -> tuple[GradientEdge, Tensor] | None:
    """Where an output stands in the graph, whatever is done to it in place later; None if it has no graph."""
    # An operation in place on a view takes the view's own node out of the graph, and leaves its base's in.
    base = output._base
    stands = base if base is not None and base.grad_fn is not None else output
    if stands.grad_fn is None:
        return None
    return GradientEdge(stands.grad_fn, stands.output_nr), stands


def follow(declaration: Declaration, edge: GradientEdge, stands: Tensor, samples: int) -> Derivative | Draw:
    """What a pass of so many samples must leave for `sample`, or for the empirical Fisher."""
    family: Any = declaration.family
    if isinstance(family, Deterministic):
        derivative = Derivative(edge, samples if family.reduction == "mean" else 1.0)
        if family.fisher == "empirical":
            edge.node.register_prehook(derivative)
        return derivative
    channels = -len(getattr(declaration.module, "kernel_size", ())) - 1
    return Draw(edge, stands.detach().clone(), channels)


def with_weights(declaration: Declaration, record: Record) -> Record:
    """The record of a deterministic layer's pass, with its Fisher weights (∂ log p/∂a)²."""
    if not isinstance(declaration.family, Deterministic):
        return record
    derivative = record.followed
    if not isinstance(derivative, Derivative) or derivative.value is None:
        remedy = (
            "call optimizer.sample_fisher() after the forward pass and before backward()"
            if declaration.family.fisher == "sampled"
            else "call backward() through it before step()"
        )
        raise MissingStatisticsError(f"it is deterministic and has no derivatives; {remedy}.")
    scale = 1.0 if declaration.family.fisher == "sampled" else derivative.scale
    rows = declaration.map.predictors(declaration.module, derivative.value).to(record.rows.dtype)
    return record._replace(fisher_weights=((rows * scale).square(),))


def sample(layers: Iterable[tuple[Declaration, Recorder]], generator: Generator | None) -> None:
    """Draw the outputs of every captured pass from the model, and back-propagate their scores to deterministic layers.

    A score stops at the next stochastic layer below: given that layer's sample, what lies below it has no part.
    """
    pairs = list(layers)
    wanted = [
        r.followed
        for d, recorder in pairs
        if isinstance(d.family, Deterministic) and d.family.fisher == "sampled"
        for r in recorder.records
        if isinstance(r.followed, Derivative) and r.followed.value is None
    ]
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
    sampling.active = True
    try:
        found = torch.autograd.grad(
            [edge for edge, _ in scores],
            [derivative.edge for derivative in wanted],
            [score for _, score in scores],
            retain_graph=True,
            allow_unused=True,
        )
    finally:
        sampling.active = False
        for handle in handles:
            handle.remove()
    for derivative, gradient in zip(wanted, found, strict=True):
        derivative.value = gradient


class _Replace:
    """Puts a score in the place of what comes from above."""

    def __init__(self, output: int, score: Tensor) -> None:
        self.output, self.score = output, score

    def __call__(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(self.score if i == self.output else g for i, g in enumerate(gradients))


def _scores(
    pairs: list[tuple[Declaration, Recorder]], generator: Generator | None
) -> list[tuple[GradientEdge, Tensor]]:
    """The edge of each stochastic pass, and the score of a sample drawn from it, as its output stands."""
    passes = {id(d): [r.followed for r in rec.records if isinstance(r.followed, Draw)] for d, rec in pairs}
    scores: list[tuple[GradientEdge, Tensor]] = []
    for declaration, _ in pairs:
        family: Any = declaration.family
        if isinstance(family, (Deterministic, GaussianMean)):
            continue
        draws = passes[id(declaration)]
        if isinstance(family, GaussianScale):
            mean = declaration.mean_head
            assert mean is not None
            for location, scale in zip(passes.get(id(mean), []), draws, strict=False):
                about_mean, about_scale = gaussian_sample(scale.predictor, family.scale, generator)
                scores.append((location.edge, location.arrange(about_mean)))
                scores.append((scale.edge, scale.arrange(about_scale)))
            continue
        for draw in draws:
            value = family.sample(draw.predictor, generator)
            scores.append((draw.edge, draw.arrange(family.score(value, draw.predictor))))
    return scores
