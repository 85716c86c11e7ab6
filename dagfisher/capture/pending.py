"""Fisher weights that are known later than the forward pass: from another head's pass, or from a backward pass.

A Gaussian layer with two heads has the Fisher weights of its mean in the predictor of its scale: `HeadWeights`.

A hidden unit with activation a inside an encoder or decoder has no distribution of its own. Its unit-wise block is
E[(∂ log p/∂a)² u uᵀ], with log p of outputs that are *sampled from the model* (the true Fisher), or of the data at hand
(the empirical one): `Derivative`. Blocks between units are not zero here as they are between stochastic units; leaving
them out is an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .._torch import base_of
from ..declaration import Declaration
from ..errors import MissingStatisticsError
from ..families import Deterministic


class Pending:
    """Fisher weights of one pass that are not known yet; the pass of another head, or a backward pass, tells them."""

    def weights(self, declaration: Declaration, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """q of each group of units, as `Family.fisher_weights` gives it.

        Args:
            declaration: of the layer.
            dtype: of the result.

        Raises:
            MissingStatisticsError: nothing has told them.
        """
        raise NotImplementedError

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are kept here."""
        raise NotImplementedError


class HeadWeights(Pending):
    """The Fisher weights of a Gaussian mean, told by the pass of the scale head; it is true once it knows them."""

    def __init__(self, value: tuple[Tensor, ...] | None = None) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return self.value is not None

    def weights(self, declaration: Declaration, dtype: torch.dtype) -> tuple[Tensor, ...]:
        assert self.value is not None, "Recorder.take refuses passes without their other half"
        return self.value

    def tensors(self) -> tuple[Tensor, ...]:
        return self.value or ()


class Derivative(Pending):
    """∂ log p/∂a of one pass of a deterministic layer, whose square is its Fisher weight.

    Order of life: made with the pass; told the derivative by `sample_fisher`, or by the hook of an ordinary backward
    pass (the empirical Fisher); asked for its weights by the step.
    """

    def __init__(self, family: Deterministic, edge: GradientEdge, samples: int) -> None:
        self.edge = edge
        self.sampled = family.fisher == "sampled"
        self.scale = samples if family.reduction == "mean" and not self.sampled else 1.0
        self.value: Tensor | None = None
        self.paused = False  # the backward pass that runs now is no part of any gradient
        if not self.sampled:
            edge.node.register_prehook(self)

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """A hook of the output's node: keep what an ordinary backward pass brings."""
        gradient = gradients[self.edge.output_nr]
        if gradient is not None and not self.paused:
            self.value = gradient.detach().clone()

    def weights(self, declaration: Declaration, dtype: torch.dtype) -> tuple[Tensor, ...]:
        if self.value is None:
            raise no_derivatives(declaration)
        rows = declaration.map.predictors(declaration.module, self.value).to(dtype)
        return ((rows * self.scale).square(),)

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.value is None else (self.value,)


class NoGraph(Pending):
    """The Fisher weights of a deterministic layer's pass that no backward pass can reach: never known."""

    def weights(self, declaration: Declaration, dtype: torch.dtype) -> tuple[Tensor, ...]:
        raise no_derivatives(declaration)

    def tensors(self) -> tuple[Tensor, ...]:
        return ()


def no_derivatives(declaration: Declaration) -> MissingStatisticsError:
    """What to raise where a deterministic layer has no derivatives."""
    assert isinstance(declaration.family, Deterministic)
    remedy = (
        "call optimizer.sample_fisher() after the forward pass and before backward()"
        if declaration.family.fisher == "sampled"
        else "call backward() through it before step()"
    )
    return MissingStatisticsError(f"it is deterministic and has no derivatives; {remedy}.")


class Draw:
    """One pass of a stochastic layer that outputs may be sampled from: its place in the graph, and its predictor."""

    def __init__(self, edge: GradientEdge, predictor: Tensor, unit_axis: int) -> None:
        self.edge = edge
        self.predictor = predictor.movedim(unit_axis, -1)
        """Units last."""
        self._unit_axis = unit_axis

    def arrange(self, score: Tensor) -> Tensor:
        """A score, units last, with its axes as the layer's output has them."""
        return score.movedim(-1, self._unit_axis)


def edge_of(output: Tensor) -> tuple[GradientEdge, Tensor] | None:
    """The place of an output in the graph, which later operations in place do not move, and the tensor there.

    None if the output has no graph.
    """
    # An operation in place on a view takes the view's own node out of the graph, and leaves its base's in.
    base = base_of(output)
    found = base if base is not None and base.grad_fn is not None else output
    if found.grad_fn is None:
        return None
    return GradientEdge(found.grad_fn, found.output_nr), found
