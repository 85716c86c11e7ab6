"""How long the gradients of the examples of a minibatch are, and what drawing the examples by that would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..importance import sampling_variance
from ..optim.examples import ExampleNorms
from ..plots import COLOURS, INK, blank, tidy

LABELS = {"gradient": "‖g‖, plain", "natural": "‖F̃⁻¹g‖, natural", "fisher": "√gᵀF̃⁻¹g, Fisher metric"}
"""The three norms and how the figure calls them."""


@dataclass(frozen=True)
class Norms:
    """The norm of the gradient of each example, in three metrics; see :meth:`DAGNaturalGradient.example_norms`."""

    gradient: Tensor
    """‖g_n‖, (n)."""
    natural: Tensor
    """‖F̃⁻¹g_n‖, (n)."""
    fisher: Tensor
    """√(g_nᵀF̃⁻¹g_n), (n)."""

    @property
    def shares(self) -> dict[str, float]:
        """By the name of the norm, the share of the examples that a step of the same variance needs at best.

        It is (mean norm)² over the mean of the squares: 1 if all examples matter alike, and near 0 if few of them do.
        """
        norms = {name: getattr(self, name) for name in LABELS}
        return {name: sampling_variance(n, n) / sampling_variance(n) if n.any() else 1.0 for name, n in norms.items()}

    def figure(self) -> Any:
        """A matplotlib figure: the norms in order over their mean, and what drawing by them would save."""
        figure = blank(8, 4.2)
        axes = figure.subplots()
        for i, (name, label) in enumerate(LABELS.items()):
            values = getattr(self, name).double().sort(descending=True).values
            values = (values / values.mean().clamp_min(1e-300)).clamp_min(1e-6).tolist()
            places = [(j + 0.5) / len(values) for j in range(len(values))]
            label = f"{label}: {self.shares[name]:.0%} would do"
            axes.plot(places, values, label=label, color=COLOURS[i], linewidth=2, linestyle=("-", "--", ":")[i])
        axes.axhline(1, color=INK, linewidth=1, linestyle="--")
        axes.set_yscale("log")
        axes.set_xlabel("examples, from the longest to the shortest gradient (share)", color=INK)
        axes.set_ylabel("norm over the mean norm", color=INK)
        tidy(axes)
        figure.legend(loc="outside lower center", ncols=1, frameon=False)
        return figure


def norms(found: ExampleNorms) -> Norms:
    """The norms that a block of :meth:`~dagfisher.DAGNaturalGradient.example_norms` has found, to be looked at.

    Args:
        found: after its block, and after a step or more, so that the optimizer has a Fisher.
    """
    return Norms(*(getattr(found, name).detach().cpu() for name in LABELS))
