"""Linear probes: how well a linear classifier can tell the classes from what each layer of a frozen machine says.

A probe is softmax(W h + b) on the means h of a layer's units, fitted by natural steps with the coupled Fisher of a
categorical variable, which are Newton's steps. Nothing of the probe reaches the machine.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ._files import replacing
from .capture import no_capture
from .datasets import DataError, Dataset
from .declare import declare
from .errors import ShapeError
from .helmholtz import HelmholtzMachine
from .optim import DAGNaturalGradient
from .plots import draw_places

__all__ = ["LayerProbe", "Probe", "draw_probes", "fit_probe", "layer_means", "probe_layers", "write_probes"]

LEAST_GAIN = 1e-7
"""A fit has converged where a step gains less than this, in nats for each example."""


@dataclass(frozen=True)
class Probe:
    """A linear classifier of features, fitted."""

    weight: Tensor
    """(classes × features)."""
    bias: Tensor
    """(classes)."""
    loss: float
    """The mean of −log p(class) over the training examples, with the penalty."""
    steps: int
    """Of Newton's method."""
    converged: bool

    def error(self, features: Tensor, labels: Tensor) -> float:
        """The share of examples that are given another class than theirs.

        Args:
            features: (n × features).
            labels: (n,), whole numbers.
        """
        found = features.to(self.weight) @ self.weight.T + self.bias
        return float((found.argmax(1) != labels).double().mean())


def fit_probe(features: Tensor, labels: Tensor, *, penalty: float = 1e-3, steps: int = 30) -> Probe:
    """Softmax regression of the labels on the features, by coupled natural steps.

    The loss is the mean of −log p(label) and ½ · penalty · (Σw² + Σb²). With a damping that is the penalty, a natural
    step is Newton's; it is halved as long as the loss would rise.

    Args:
        features: (n × features).
        labels: (n,), whole numbers from 0.
        penalty: on the squares of weights and biases, above 0: classes that a line can separate have no best line.
        steps: at most.
    """
    if features.dim() != 2 or labels.shape != features.shape[:1]:
        raise ShapeError(f"features {tuple(features.shape)} and labels {tuple(labels.shape)} do not fit each other.")
    x = features.detach().double()
    layer = nn.Linear(x.shape[1], int(labels.max()) + 1, dtype=torch.float64, device=x.device)
    declare(layer, "categorical", max_rows=math.inf)  # all examples: a Fisher of some of them is not Newton's matrix
    parameters = [layer.weight, layer.bias]
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    opt = DAGNaturalGradient(parameters, lr=1 / (1 + penalty), damping=penalty, solver="conjugate", tolerance=1e-3)

    def loss() -> Tensor:
        squares = layer.weight.square().sum() + layer.bias.square().sum()
        return F.cross_entropy(layer(x), labels) + 0.5 * penalty * squares

    now, taken, converged = float("inf"), 0, False
    while taken < steps and not converged:
        opt.zero_grad()
        value = loss()
        before, now = [p.detach().clone() for p in parameters], value.item()
        torch.autograd.backward(value)
        opt.step()
        taken += 1
        with torch.no_grad():
            for _ in range(20):
                reached = loss().item()
                if reached <= now:
                    break
                for p, old in zip(parameters, before, strict=True):
                    p.copy_((p + old) / 2)
        converged = now - reached < LEAST_GAIN
        now = reached
    return Probe(layer.weight.detach(), layer.bias.detach(), now, taken, converged)


@torch.no_grad()
def layer_means(machine: HelmholtzMachine, x: Tensor) -> list[Tensor]:
    """The data and the means of each recognition layer given the means below it, (n × units) each, from the data up.

    Layers with lateral connections have draws of their own states in place of means.
    """
    means = [machine.encode(x)]
    with no_capture():
        for i, layer in enumerate(machine.recognition_layers()):
            drawn = machine.draw_up(i, means[-1], Generator(x.device).manual_seed(0))
            means.append(layer.family.mean(drawn.predictor))
    return means


@dataclass(frozen=True)
class LayerProbe:
    """What the probe of one layer found."""

    layer: int
    """0: the data; then the hidden layers from the bottom up."""
    units: int
    train_error: float
    test_error: float
    untrained_error: float
    """The test error of the same layer in a machine with the same shape that never learned."""


def probe_layers(
    machine: HelmholtzMachine,
    data: Dataset,
    *,
    examples: int = 10_000,
    penalty: float = 1e-3,
    untrained: HelmholtzMachine | None = None,
) -> list[LayerProbe]:
    """A probe of the data and of every hidden layer of a machine, and of one that never learned beside it.

    Args:
        machine: stays as it is.
        data: with labels.
        examples: of the training images, from their start, that the probes are fitted to.
        penalty: as of `fit_probe`.
        untrained: the machine to compare with, of the same shape; by default a copy with parameters drawn anew.
    """
    train_labels, test_labels = data.labels("train"), data.labels("test")
    if train_labels is None or test_labels is None:
        raise DataError(f"{data.label} has no labels; probes need the classes of its training and test images.")
    train, test = data.evaluation("train")[:examples], data.evaluation("test")
    train_labels = train_labels[: len(train)]
    other = _anew(machine) if untrained is None else untrained
    rows = []
    layers = zip(*(layer_means(each, x) for each in (machine, other) for x in (train, test)), strict=True)
    for i, (here, there, never, never_there) in enumerate(layers):
        probe = fit_probe(here, train_labels, penalty=penalty)
        beside = fit_probe(never, train_labels, penalty=penalty) if i else probe
        rows.append(
            LayerProbe(
                layer=i,
                units=here.shape[1],
                train_error=probe.error(here, train_labels),
                test_error=probe.error(there, test_labels),
                untrained_error=beside.error(never_there, test_labels),
            )
        )
    return rows


def write_probes(rows: Sequence[LayerProbe], path: Path) -> None:
    """Write what `probe_layers` found as a CSV file, one line for each layer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(LayerProbe))
    writer.writerows(dataclasses.astuple(row) for row in rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def draw_probes(rows: Sequence[LayerProbe], path: Path, *, title: str) -> None:
    """Write a picture of the errors of each layer, trained and not."""
    places = [f"layer {row.layer}\n{row.units} units" if row.layer else f"data\n{row.units} pixels" for row in rows]
    lines = {
        "trained, test": [100 * row.test_error for row in rows],
        "untrained, test": [100 * row.untrained_error for row in rows],
        "trained, training examples": [100 * row.train_error for row in rows],
    }
    draw_places(lines, places, path, title=title, quantity="error of a linear probe (%)")


def _anew(machine: HelmholtzMachine) -> HelmholtzMachine:
    copy = deepcopy(machine)
    copy.reset_parameters(generator=Generator().manual_seed(0))
    return copy
