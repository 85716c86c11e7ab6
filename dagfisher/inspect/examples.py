"""How unequal the gradients of examples are, and what drawing examples by their norms could save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..importance import sampling_variance
from ..optim.examples import ExampleNorms
from ..plots import COLOURS, INK, NATURAL, PLAIN, blank, tidy

METRICS = {"gradient": "‖g‖", "natural": "‖F̃⁻¹g‖", "fisher": "√gᵀF̃⁻¹g"}
"""The norms that there are, and how they are written."""
STYLES = {"gradient": (PLAIN, "-"), "natural": (NATURAL, "-"), "fisher": (COLOURS[5], "--")}
"""The colours of their lines, plain and natural as in all pictures, and their dashes."""


@dataclass(frozen=True)
class Examples:
    """The norms of the gradients of examples, by metric: "gradient", "natural" and "fisher"."""

    norms: dict[str, Tensor]
    """(n), of each example."""
    ideal: dict[str, float]
    """The mean square of what a drawn example adds to a step, drawn in proportion to its norm, over uniform drawing."""
    stale: dict[str, float]
    """The same, drawn in proportion to the weights that were given; empty if there were none."""

    def figure(self) -> Any:
        """A matplotlib figure: the share of all norms that the examples with the longest gradients have."""
        figure = blank(6.5, 4.2)
        axes = figure.subplots()
        for metric, norms in self.norms.items():
            total = norms.double().sort(descending=True).values.cumsum(0)
            places = torch.arange(len(total) + 1) / len(total)
            shares = torch.cat([total.new_zeros(1), total / total[-1].clamp_min(1e-300)])
            label = f"{METRICS[metric]}: ideal weights leave {self.ideal[metric]:.2f}"
            label += (
                f",\ngiven ones {self.stale[metric]:.2f} of the mean square" if self.stale else " of the mean square"
            )
            colour, dashes = STYLES[metric]
            axes.plot(places.tolist(), shares.tolist(), dashes, label=label, color=colour, linewidth=2)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--")
        axes.set_xlabel("examples, from the longest gradient to the shortest (share)", color=INK)
        axes.set_ylabel("share of the sum of the norms", color=INK)
        tidy(axes)
        figure.legend(loc="outside lower center", frameon=False)
        return figure


def examples(norms: ExampleNorms, weights: Tensor | None = None) -> Examples:
    """How unequal the gradients of the examples of a minibatch are, and what importance sampling could save.

    Args:
        norms: of :meth:`dagfisher.DAGNaturalGradient.example_norms`, after its block, with a Fisher in the optimizer.
        weights: (n), what examples would be drawn in proportion to, for example the norms of some steps ago.
    """
    found = {metric: getattr(norms, metric).detach().cpu() for metric in METRICS}
    uniform = {metric: sampling_variance(each) for metric, each in found.items()}

    def shares(drawn: dict[str, Tensor]) -> dict[str, float]:
        return {m: sampling_variance(found[m], each) / uniform[m] if uniform[m] else 1.0 for m, each in drawn.items()}

    given = None if weights is None else weights.detach().cpu()
    return Examples(found, shares(found), {} if given is None else shares(dict.fromkeys(found, given)))
