"""The optimizers that natural gradients are compared with, and the four learning rates that each may choose from.

SOAP and Muon are those of the package pytorch_optimizer (`pip install 'dagfisher[benchmarks]'`). Nobody decays weights.
SGD is plain for machines, which is reweighted wake-sleep as it was published, and has momentum 0.9 for the others. Muon
orthogonalises every parameter of two or more axes, with the scale that makes a learning rate mean what it means for
Adam, and leaves the others to its AdamW at the same rate.
"""

from __future__ import annotations

from typing import Any

import torch
from models import MakeOptimizer, Model

METHODS = ("natural", "sgd", "adam", "soap", "muon")
LABELS = {"natural": "natural", "sgd": "SGD", "adam": "Adam", "soap": "SOAP", "muon": "Muon"}
Rates = tuple[float, float, float, float]
LOW, MIDDLE, HIGH = (0.0003, 0.001, 0.003, 0.01), (0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.1)
RATES: dict[str, dict[str, Rates]] = {
    "machine": {"sgd": (0.03, 0.06, 0.1, 0.2), "adam": MIDDLE, "soap": HIGH, "muon": HIGH},
    "vae": {"sgd": (0.0003, 0.001, 0.003, 0.006), "adam": MIDDLE, "soap": HIGH, "muon": HIGH},
    "regression": {"sgd": (0.03, 0.1, 0.3, 1.0), "adam": HIGH, "soap": HIGH, "muon": HIGH},
}
"""By the kind of the model and the method; chosen so that the best of short runs is not at an end."""
OTHER_RATES: dict[tuple[str, str], Rates] = {
    ("mini-machine", "sgd"): (0.05, 0.1, 0.2, 0.3),
    ("grey-machine", "sgd"): (0.0003, 0.001, 0.003, 0.006),
    ("grey-machine", "adam"): LOW,
    ("conv-machine", "sgd"): (0.005, 0.01, 0.02, 0.04),
    ("large-vae", "adam"): LOW,
    ("norm-vae", "adam"): LOW,
    ("poisson", "sgd"): (0.0003, 0.001, 0.002, 0.004),
    ("poisson", "adam"): MIDDLE,
    ("poisson", "soap"): MIDDLE,
    ("poisson", "muon"): MIDDLE,
}
"""Where a model wants rates of its own, by its name and the method."""


def rates(model: Model, method: str) -> Rates:
    """The four learning rates of a method on a model."""
    return OTHER_RATES.get((model.name, method), RATES[model.kind][method])


def methods(model: Model) -> tuple[str, ...]:
    """The methods that are compared on a model."""
    return ("natural", "adam") if model.safety else METHODS


def maker(model: Model, method: str, rate: float | None) -> MakeOptimizer:
    """What builds the optimizer of a method; the natural one has no rate to give, it comes with its defaults."""

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if method == "natural":
            from dagfisher import DAGNaturalGradient

            return DAGNaturalGradient(groups)
        assert rate is not None
        if method == "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=0.0 if model.kind == "machine" else 0.9)
        if method == "adam":
            return torch.optim.Adam(groups, lr=rate)
        import pytorch_optimizer

        found: torch.optim.Optimizer
        if method == "soap":
            found = pytorch_optimizer.SOAP(groups, lr=rate, weight_decay=0.0)
        elif method == "muon":
            found = pytorch_optimizer.Muon(by_axes(groups, rate), use_adjusted_lr=True)
        else:
            raise SystemExit(f"there is no method {method!r}; choose from {', '.join(METHODS)}.")
        return found

    return make


def by_axes(groups: list[dict[str, Any]], rate: float) -> list[dict[str, Any]]:
    """Each group as two, the parameters of two or more axes and the others, as Muon wants them."""
    parted = []
    for group in groups:
        for matrices in (True, False):
            parameters = [p for p in group["params"] if (p.ndim >= 2) == matrices]
            if parameters:
                parted.append({"params": parameters, "use_muon": matrices, "lr": rate})
    return parted
