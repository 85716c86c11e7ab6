"""Test problems from a network that has really been trained: what the solvers meet in practice.

    python benchmarks/trained_layer.py         # one or two minutes; needs MNIST, see `dagfisher data`

Trains the 12-layer MNIST machine with natural reweighted wake-sleep (B = 32, S = 10, rate 0.05, damping 0.2, K = 10)
and writes, for chosen layers, all that a solver is given on one minibatch: the parents U with the constant 1, the
Fisher weights w·q (w the importance weights for generative layers, 1/n for recognition layers), and the gradient; and
the gradient of the next minibatch, which a solver that is reused meets without having seen it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dagfisher import datasets
from dagfisher._reading import answered
from dagfisher.fisher import Columns, Rows
from dagfisher.fisher.segments import RowSegment
from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.helmholtz.objectives import Terms, generative_terms, recognition_terms, sleep_terms
from dagfisher.helmholtz.sampling import wake

SIZES = (300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10)
LAYERS = ("generative.0", "recognition.0", "recognition.1")
DATA = Path(__file__).parent / "data"
DAMPING, SAMPLES, BATCH = 0.2, 10, 32


@dataclass
class LayerProblem:
    """One layer on one minibatch."""

    name: str
    parents: Tensor
    """U, (n × d), the constant 1 last."""
    weights: Tensor
    """w_k q_jk, (n × l)."""
    gradient: Tensor
    """(l × d), of the minibatch that the Fisher comes from."""
    later: Tensor
    """(l × d), of another minibatch."""
    damping: float
    samples: Tensor
    """The weights w of the samples before equal parents were merged; their sum is 1."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, d, l)."""
        return self.parents.shape[0], self.parents.shape[1], self.weights.shape[1]

    @property
    def segments(self) -> list[RowSegment]:
        """The same, as the library's solvers take it."""
        return [RowSegment(self.parents, self.weights, self.weights.shape[1])]

    @property
    def effective_samples(self) -> float:
        """1 / Σ w²: how many samples carry the weight."""
        return float(1 / self.samples.square().sum())

    @property
    def saturated(self) -> float:
        """The share of units whose Fisher information, averaged over the samples, is below 1 % of its maximum 1/4."""
        return float((self.weights.sum(0) < 0.0025).double().mean())

    def describe(self) -> str:
        """One line: sizes, effective sample size, saturated units."""
        n, d, l = self.shape
        return (
            f"{self.name}: l = {l}, d = {d}, n = {n}, damping {self.damping:g}; effective sample size "
            f"{self.effective_samples:.0f} of {len(self.samples)}; {self.saturated:.0%} of the units saturated"
        )

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers."""
        return dict(vars(self))


def train(data: datasets.Dataset, hidden: tuple[int, ...], steps: int, seed: int = 0) -> HelmholtzMachine:
    """A machine after that many NRWS steps."""
    machine = HelmholtzMachine([data.pixels, *hidden])
    machine.reset_parameters(generator=torch.Generator().manual_seed(seed))
    trainer = Trainer(machine, "nrws", lr=0.05, damping=DAMPING, update_every=10, samples=SAMPLES, seed=seed)
    value = torch.tensor(float("nan"))
    epoch = 0
    while steps > 0:
        for x in data.batches(BATCH, seed=seed, epoch=epoch):
            value = trainer.step(x)
            steps -= 1
            if steps == 0:
                break
        epoch += 1
    print(f"{data.label}, {machine.extra_repr()}: log-likelihood of the last minibatch {float(value):.1f}")
    return machine


def extract(machine: HelmholtzMachine, data: datasets.Dataset, names: tuple[str, ...]) -> list[LayerProblem]:
    """The problems that these layers pose on a minibatch of the validation images."""
    generator = torch.Generator().manual_seed(1)
    images = data.evaluation("valid")
    first = _minibatch(machine, images[:BATCH], generator)
    second = _minibatch(machine, images[BATCH : 2 * BATCH], generator)
    problems = []
    for name in names:
        rows, gradient = first[name]
        (segment,) = answered(rows.segments((len(gradient),), Columns(weight=True, bias=True)))
        samples = rows.sample_weights / rows.total
        later = second[name][1]
        problems.append(LayerProblem(name, segment.parents, segment.weights, gradient, later, DAMPING, samples))
    return problems


def _minibatch(machine: HelmholtzMachine, x: Tensor, generator: torch.Generator) -> dict[str, tuple[Rows, Tensor]]:
    """What every layer's Fisher captures, and its gradient (units × parents with the 1), as NRWS computes them."""
    machine.zero_grad()
    state = wake(machine, machine.encode(x), SAMPLES, generator)
    importance = torch.softmax(state.log_ratio, 0) / len(x)
    terms = Terms()
    generative_terms(machine, state, importance, terms)
    recognition_terms(machine, state, (importance - 1 / importance.numel()) / 2, terms)
    sleep_terms(machine, importance.numel(), 0.5, terms, generator)
    terms.backward()
    found: dict[str, tuple[Rows, Tensor]] = {}
    generative = zip(machine.generative_layers(), state.hidden, state.generative[:-1], strict=True)
    below = [state.x, *state.hidden[:-1]]
    recognition = zip(machine.recognition_layers(), below, state.recognition, strict=True)
    for network, layers in (("generative", generative), ("recognition", recognition)):
        for i, (layer, parents, predictor) in enumerate(layers):
            samples = importance.reshape(-1) if network == "generative" else torch.ones(len(parents))
            rows = Rows(parents, layer.family.fisher_weights(predictor.detach()), samples, samples.sum())
            weight, bias = (parameter.grad for parameter in layer.parameters())
            assert weight is not None and bias is not None
            found[f"{network}.{i}"] = (rows, torch.cat([weight, bias.unsqueeze(1)], 1))
    return found


def load(path: Path) -> list[LayerProblem]:
    """The problems in a file that this script wrote."""
    return [LayerProblem(**state) for state in torch.load(path, weights_only=True)["problems"]]


def mnist_problems(out: Path = DATA, steps: int = 1200) -> list[LayerProblem]:
    """The MNIST machine's problems; trained and written to `out` unless they are there."""
    path = out / "layer.pt"
    if not path.exists():
        data = datasets.load("mnist")
        print(f"Training for {steps} steps of NRWS; this takes a minute or two, once.", flush=True)
        problems = extract(train(data, SIZES, steps), data, LAYERS)
        out.mkdir(parents=True, exist_ok=True)
        torch.save({"steps": steps, "problems": [p.state() for p in problems]}, path)
    return load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="NRWS steps before the statistics are taken")
    parser.add_argument("--out", type=Path, default=DATA, help="folder of layer.pt, which is written anew")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    (arguments.out / "layer.pt").unlink(missing_ok=True)
    try:
        problems = mnist_problems(arguments.out, arguments.steps)
    except datasets.DataError as error:
        sys.exit(f"{error} To use your own copy of MNIST, set DAGFISHER_DATA to the folder that holds mnist/.")
    for problem in problems:
        print(problem.describe())
    path = arguments.out / "layer.pt"
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
