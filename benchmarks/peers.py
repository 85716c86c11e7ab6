"""What a user would take instead: fifteen optimizers on the same networks, gradients, seeds, start and thread.

    python benchmarks/peers.py --models mini-machine,mini-vae            # resumes where it stopped
    python benchmarks/peers.py --models mini-machine --minutes 8         # begins no run after eight minutes
    python benchmarks/peers.py --report                                  # tables and picture of what is there

Every peer chooses from a grid of twelve: three learning rates × two values of its second setting × two batch settings
(SGD, which has no second setting: six rates). As in `equal_seconds.py`, rates stay for half of the budget of processor
seconds and fall to zero, all twelve are tried with a quarter of it and the best two with all of it (validation, seed
0), and the better one runs with other seeds on test. DAGNaturalGradient is not tuned: as it comes, with update_every=1,
and with solver="diagonal". `PEERS` says how each is set up and what to keep in mind.
One line of benchmarks/results/peers.jsonl for each run, with milliseconds a step and the bytes that are kept for steps.
Needs `pip install 'dagfisher[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from equal_seconds import RESULTS, Chain, Plan, Results, chosen, execute
from extras import need
from models import Learner, Model, named
from peer_learners import FullBatch, Pyro, kfac, singd, use
from rivals import by_axes
from tables import in_print
from timed_run import Spec, natural_settings, run
from torch import Tensor, nn

from dagfisher import DAGNaturalGradient
from dagfisher.datasets import DataError

Rates = tuple[float, ...]
Groups = list[dict[str, Any]]
POINTS = {"quarter": 1, "full": 2, "final": 10}
SECONDS = {"mini-machine": 10.0, "mini-vae": 4.0, "mnist-machine": 60.0, "mnist-vae": 15.0, "logistic": 1.0}
"""The models, and the processor seconds of a full run."""


@dataclass(frozen=True)
class Peer:
    """An optimizer.

    Args:
        name: short.
        label: for people.
        rates: by the kind of model; a kind that is not there is not tried.
        others: the two values of the second setting, or None alone.
        note: what the second setting is, and what to keep in mind.
        make: from param groups, rate and second setting to the optimizer; None: `start` knows it.
    """

    name: str
    label: str
    rates: dict[str, Rates]
    others: tuple[float | None, ...]
    note: str
    make: Callable[[Groups, float, Any], torch.optim.Optimizer] | None = None


def _soap(groups: Groups, rate: float, every: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import SOAP

    return SOAP(groups, lr=rate, weight_decay=0.0, precondition_frequency=int(every))


def _muon(groups: Groups, rate: float, momentum: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import Muon

    return Muon(by_axes(groups, rate), momentum=momentum, use_adjusted_lr=True)


def _shampoo(groups: Groups, rate: float, eps: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import ScalableShampoo

    return ScalableShampoo(groups, lr=rate, matrix_eps=eps, preconditioning_compute_steps=20)


def _kron(groups: Groups, rate: float, share: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import Kron

    return Kron(groups, lr=rate, pre_conditioner_update_probability=share)


LOW, MIDDLE, HIGH = (0.001, 0.003, 0.01), (0.003, 0.01, 0.03), (0.01, 0.03, 0.1)
ADAM = {"machine": HIGH, "vae": LOW, "regression": (0.03, 0.1, 0.3)}
MATRIX = {"machine": HIGH, "vae": MIDDLE, "regression": MIDDLE}
PEERS = (
    Peer(
        "sgd",
        "SGD",
        {"machine": (0.06, 0.1, 0.15, 0.2, 0.3, 0.5), "vae": (3e-4, 6e-4, 0.001, 0.002, 0.004, 0.008)}
        | {"regression": (0.03, 0.06, 0.1, 0.3, 0.6, 1.0)},
        (None,),
        "plain: on machines, RWS as published",
        lambda groups, rate, _: torch.optim.SGD(groups, lr=rate),
    ),
    Peer(
        "momentum",
        "momentum",
        {"machine": HIGH, "vae": (3e-4, 0.001, 0.003), "regression": (0.03, 0.1, 0.3)},
        (0.9, 0.95),
        "the momentum",
        lambda groups, rate, momentum: torch.optim.SGD(groups, lr=rate, momentum=momentum),
    ),
    Peer(
        "adam",
        "Adam",
        ADAM,
        (0.999, 0.99),
        "β₂",
        lambda groups, rate, decay: torch.optim.Adam(groups, lr=rate, betas=(0.9, decay)),
    ),
    Peer(
        "nadam",
        "NAdam",
        ADAM,
        (0.999, 0.99),
        "β₂",
        lambda groups, rate, decay: torch.optim.NAdam(groups, lr=rate, betas=(0.9, decay)),
    ),
    Peer(
        "soap",
        "SOAP",
        MATRIX,
        (10, 2),
        "steps between bases (10: its default); vectors have its Adam",
        _soap,
    ),
    Peer(
        "muon",
        "Muon",
        MATRIX,
        (0.95, 0.9),
        "momentum; vectors go to its AdamW at the same rate, matrices have its adjusted rate, those of first and last "
        "layers too, which its authors give to AdamW: every layer of a machine is one of these",
        _muon,
    ),
    Peer(
        "shampoo",
        "Shampoo",
        {"machine": (0.03, 0.1, 0.3), "vae": (3e-4, 0.001, 0.003), "regression": MIDDLE},
        (1e-6, 1e-3),
        "ε of the matrices; ScalableShampoo with the gradient's length, its default, and roots every 20 steps (its "
        "default: 1,000)",
        _shampoo,
    ),
    Peer(
        "kron",
        "PSGD-Kron",
        MATRIX,
        (None, 0.1),
        "share of steps that update the factors (none: its falling schedule); random numbers of torch's own stream",
        _kron,
    ),
    Peer(
        "singd",
        "SINGD",
        {"machine": (0.03, 0.1, 0.3), "vae": LOW, "regression": HIGH},
        (0.001, 0.1),
        "damping; empirical Fisher; a normalised rate of its factors, which its documentation advises for early steps; "
        "on machines it takes importance-weighted rows and dreams as they come",
    ),
    Peer(
        "kfac",
        "K-FAC",
        {"machine": HIGH, "vae": (3e-4, 0.001, 0.003), "regression": HIGH},
        (0.1, 1.0),
        "damping, exact and not split between factors; true Fisher with drawn outcomes by curvlinops, made anew every "
        "20 steps, momentum 0.9; of a machine layer by layer from wake samples "
        "without importance weights; of a VAE that of p(x|z(x))",
    ),
    Peer(
        "lbfgs",
        "L-BFGS",
        {"regression": (0.3, 1.0, 1.3)},
        (10, 100),
        "history; all data at each step, strong Wolfe line search, 4 iterations a call",
    ),
    Peer(
        "pyro",
        "Pyro's RWS, Adam",
        {"machine": HIGH},
        (0.999, 0.99),
        "β₂; Pyro weights whole minibatches, not examples, and says that minibatches are not supported yet",
    ),
    Peer("natural", "natural, as it comes", {}, (), "nothing is tuned"),
    Peer("natural-k1", "natural, K = 1", {}, (), "update_every=1, nothing else is tuned"),
    Peer("natural-diagonal", "natural, diagonal", {}, (), 'solver="diagonal", nothing else is tuned'),
)
BY_NAME = {peer.name: peer for peer in PEERS}
NEEDS = {
    **dict.fromkeys(("soap", "muon", "shampoo", "kron"), "pytorch_optimizer"),
    **{"singd": "singd", "kfac": "curvlinops", "pyro": "pyro"},
}
"""The modules of peers that are not torch's."""
NATURAL: dict[str, dict[str, Any]] = {
    "natural": {},
    "natural-k1": {"update_every": 1},
    "natural-diagonal": {"solver": "diagonal"},
}


def start(spec: Spec) -> Learner:
    """A learner of the model with the peer as its optimizer."""
    model, batch, seed = named(spec.model), spec.batch_setting, spec.seed
    torch.manual_seed(seed)  # for peers that draw from torch's own stream
    if spec.method in NATURAL:
        return model.start(lambda groups: DAGNaturalGradient(groups, **NATURAL[spec.method]), batch, seed)
    peer, rate, other = BY_NAME[spec.method], spec.rate, spec.other
    assert rate is not None
    if peer.make is not None:
        make = peer.make
        return model.start(lambda groups: make(groups, rate, other), batch, seed)
    plain: Any = model.start(lambda groups: torch.optim.SGD(groups, lr=rate), batch, seed)
    assert other is not None
    if peer.name == "singd":
        return use(plain, singd(plain.model, rate, other))
    if peer.name == "kfac":
        return use(plain, kfac(plain, rate, other))
    if peer.name == "lbfgs":
        return FullBatch(plain, rate, int(other))
    return Pyro(plain, rate, other, batch.samples or 10, seed)


def look(learner: Learner) -> dict[str, Any]:
    """The bytes of all tensors that the optimizer keeps beside parameters and gradients."""
    return {"kept_bytes": sum(kept(learner.optimizer))}


def kept(found: Any, seen: set[int] | None = None) -> Iterator[int]:
    """The bytes of each storage that is reached from an object, through containers and attributes but not modules."""
    seen = set() if seen is None else seen
    if id(found) in seen or isinstance(found, (nn.Module, nn.Parameter, str, bytes, type)) or callable(found):
        return
    seen.add(id(found))
    if isinstance(found, Tensor):
        storage = found.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.nbytes()
        return
    inside: list[Any] = []
    if isinstance(found, dict):
        inside = list(found.values())
    elif isinstance(found, (list, tuple, set)):
        inside = list(found)
    else:
        names = [name for each in type(found).__mro__ for name in getattr(each, "__slots__", ())]
        inside = [*getattr(found, "__dict__", {}).values(), *(getattr(found, name, None) for name in names)]
    for each in inside:
        yield from kept(each, seen)


def run_one(spec: Spec) -> dict[str, Any]:
    """The record of a run."""
    record = run(spec, POINTS[spec.stage], start, look)
    if record["steps"]:
        record["ms_per_step"] = round(1000 * record["curve"][-1][0] / record["steps"], 4)
    return record


class PeerChain(Chain):
    """All runs of one peer on one model."""

    def missing(self) -> list[Spec]:
        if self.method not in NATURAL:
            return super().missing()
        batch, settings = self.model.natural_batch, natural_settings()
        first = Spec(self.model.name, self.method, None, batch.size, batch.samples, 1, self.budget, "final", settings)
        return self._absent(dataclasses.replace(first, seed=seed) for seed in self.plan.seeds)

    @property
    def budget(self) -> float:
        """Of a full run."""
        return self.plan.seconds(self.model)

    def grid(self, budget: float) -> list[Spec]:
        peer = BY_NAME[self.method]
        return [
            Spec(self.model.name, peer.name, rate, batch.size, batch.samples, 0, budget, "quarter", None, other)
            for batch in self.model.batch_sizes
            for other in peer.others
            for rate in peer.rates[self.model.kind]
        ]


@dataclass(frozen=True)
class PeerPlan(Plan):
    """The budgets of this file, and how many seeds the final runs have."""

    count: int = 3

    def seconds(self, model: Model) -> float:
        return 0.1 if self.quick else SECONDS[model.name]

    @property
    def seeds(self) -> range:
        return range(1, 1 + self.count)


def tried(model: Model, names: list[str]) -> list[str]:
    """The peers that are tried on a model, those without a grid first."""
    found = [name for name in names if name in NATURAL or model.kind in BY_NAME[name].rates]
    return sorted(found, key=lambda name: name not in NATURAL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names with commas between them (all): " + ", ".join(SECONDS))
    parser.add_argument("--peers", help="names with commas between them (all): " + ", ".join(BY_NAME))
    parser.add_argument("--seeds", type=int, default=3, help="of the final runs (3)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--report", action="store_true", help="only the tables and the picture of what is there")
    parser.add_argument("--quick", action="store_true", help="a tenth of a second each and one seed, for a test")
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.jsonl", help="the file of results")
    arguments = parser.parse_args()
    models = [named(name) for name in chosen(arguments.models, list(SECONDS), "model")]
    names = chosen(arguments.peers, list(BY_NAME), "peer")
    plan = PeerPlan(arguments.quick, 1 if arguments.quick else arguments.seeds)
    results = Results(arguments.out)
    need(["matplotlib"])
    if not arguments.report:
        need({name: None for peer, name in NEEDS.items() if peer in names})
        chains = [PeerChain(model, name, plan, results) for model in models for name in tried(model, names)]
        try:
            execute(chains, results, 1, run_one, arguments.minutes)
        except KeyboardInterrupt:
            sys.exit("stopped; the same command goes on where this one was.")
        except DataError as error:
            sys.exit(f"{error}")
    from peers_report import draw, tables

    print(in_print(tables(results.runs, models)))
    draw(results.runs, models, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
