"""The experiments of `published.py`: what was published, and the runs that answer it.

A job is one training with one seed. What is not said is as `dagfisher train` has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagfisher.helmholtz import PRESETS

SEEDS = (1, 2, 3)
EVALUATED = (1000, 100)
"""Test images and samples of the figure after each epoch."""
EVALUATED_LARGE = (200, 100)
"""The same where images have 48×48 pixels."""
ALL = (10_000, 10_000)
"""Test images and samples of the last figure, as published."""


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        experiment: its name.
        row: what differs within the experiment.
        seed: of everything.
        settings: of `dagfisher.helmholtz.Settings`.
        epochs: in all; None: as many as fit into `hours`.
        hours: of one core; the length of the schedule follows from a short trial.
        published: the figure to compare with, and where it is printed.
        bottom: the kind of the bottom layer, for machines on 48×48 pixels; see `published_machines.machine`.
        angles: steps since a refresh after which the angle between reused and fresh natural gradients is measured.
        final: images and samples of the last figure; None: the figure after the last epoch is enough.
    """

    experiment: str
    row: str
    seed: int
    settings: Mapping[str, Any] = field(hash=False)
    epochs: int | None = None
    hours: float | None = None
    published: tuple[float, str] | None = None
    bottom: str | None = None
    angles: tuple[int, ...] = ()
    final: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Unlike that of any other job; also the name of its checkpoint."""
        length = f"{self.epochs}" if self.hours is None else f"{self.hours:g}h"
        return f"{self.experiment} {self.row} {length} {self.seed}".replace("/", "-")


@dataclass(frozen=True)
class Experiment:
    """Jobs that belong together.

    Args:
        name: for the command line.
        asks: the question, for people.
        jobs: from the hours that a job may have to all jobs.
    """

    name: str
    asks: str
    jobs: Callable[[float], list[Job]]

    @property
    def title(self) -> str:
        """What is said above its table."""
        return f"{self.name}: {self.asks}"


MORE_SLEEP: dict[str, Any] = {"algorithm": "nrws", "lr": 0.1, "damping": 0.2, "update_every": 100, "momentum": 0.0}
MORE_SLEEP |= {"trust_region": "none", "batch_size": 32, "samples": 10}
"""What was best among the ingredients of `ablation.py`, with more than one sleep step: smaller minibatches."""
FALLING_SOONER = "linear:0:0.15+linear:0:0.15"
"""A learning rate that falls with the square of the time left, from 15 % on: high rates of long trainings add noise."""
MORE_SAMPLES: dict[str, Any] = {"algorithm": "nrws", "lr_schedule": FALLING_SOONER, "samples_schedule": "linear:8:0.3"}
"""And from 5 to 40 samples: what few of them leave of the bias of importance weights counts at the end."""
HALVING: dict[str, Any] = {"algorithm": "nrws", "lr_schedule": "step:4:0.87+linear:0:0.9"}
HALVING |= {"samples_schedule": "step:100:2"}
"""The rate halves every 20 epochs, so a long training has most of its time at low rates; 10 samples after 100."""
SMALLER_WEIGHTS: dict[str, Any] = {"algorithm": "nrws", "lr_schedule": FALLING_SOONER, "l2": 0.001}
SMALLER_WEIGHTS |= {"samples_schedule": "linear:5:0.4"}
"""With weights that shrink at every step, and from 5 to 25 samples."""


def _preset(experiment: str, name: str, epochs: int, seeds: Sequence[int] = SEEDS, **more: Any) -> list[Job]:
    """The settings of a published row, for so many epochs."""
    preset = PRESETS[name]
    printed = preset.settings["epochs"]
    source = preset.source if epochs == printed else f"{preset.source}, after {printed:,} epochs"
    settings, published = {**preset.settings, "epochs": epochs}, (preset.published, source)
    return [Job(experiment, name, seed, settings, epochs, published=published, **more) for seed in seeds]


def _thesis_mini(data: str) -> Callable[[float], list[Job]]:
    names = {"b": ("ws", "rws", "nrws-100"), "c": ("ws", "rws", "nrws")}[data]
    name = f"mini-{data}-thesis"
    return lambda hours: [
        job for row in names for job in _preset(name, f"thesis-mini-mnist-{data}-{row}", 100, final=ALL)
    ]


def _ours_mini(data: str) -> Callable[[float], list[Job]]:
    figures = {"b": (-29.337, -28.695, -27.606), "c": (-38.232, -37.811, -36.578)}[data]
    rows = zip(("nrws", "rws", "ws"), reversed(figures), strict=True)
    common = {"data": "mini-mnist", "binarisation": data.upper(), "epochs": 40}
    name, source = f"mini-{data}-ours", "thesis, Table D.1, 500 epochs"
    found = [(row, {"algorithm": row}, figure) for row, figure in rows]
    found.append(("nrws, more samples", MORE_SAMPLES, figures[-1]))
    for row, steps in (("nrws, more sleep", 3), ("nrws, still more sleep", 5)):
        found.append((row, {**MORE_SLEEP, "sleep_steps": steps}, figures[-1]))
    jobs = [
        Job(name, row, seed, {**common, **more}, 40, published=(figure, source), final=ALL)
        for row, more, figure in found
        for seed in SEEDS
    ]
    return lambda hours: jobs


def _long(name: str, data: str, letter: str, figures: dict[str, float], source: str) -> Callable[[float], list[Job]]:
    def jobs(hours: float) -> list[Job]:
        common = {"data": data, "binarisation": letter}
        rows: dict[str, dict[str, Any]] = {row: {"algorithm": row} for row in figures}
        rows["nrws, falling sooner"] = {"algorithm": "nrws", "lr_schedule": FALLING_SOONER}
        rows["nrws, more samples"] = MORE_SAMPLES
        rows["nrws, halving rates"] = HALVING
        rows["nrws, smaller weights"] = SMALLER_WEIGHTS
        published = {row: (figures[row.split(",")[0]], source) for row in rows}
        return [
            Job(name, row, 1, {**common, **more}, hours=hours, published=published[row], final=ALL)
            for row, more in rows.items()
        ]

    return jobs


def _belief_nets(hours: float) -> list[Job]:
    source = "literature: VIMCO-50 as in Table 1 of Maddison et al. 2017, 50,000 samples"
    nets = {"784-200": ((200,), -98.8), "784-200-200": ((200, 200), -90.7)}
    jobs = []
    for (net, (layers, figure)), row in itertools.product(nets.items(), ("rws", "nrws")):
        settings = {"data": "mnist", "binarisation": "F", "layers": layers, "algorithm": row}
        more: dict[str, Any] = {"hours": hours, "published": (figure, source), "final": ALL}
        jobs.append(Job("belief-nets", f"{net} {row}", 1, settings, **more))
    return jobs


def _kept(name: str, data: str, letter: str, epochs: int) -> Callable[[float], list[Job]]:
    """K at equal epochs, everything else as tuned before on miniMNIST: rate 0.1, damping 0.2, B 32, S 10."""
    common: dict[str, Any] = {"data": data, "binarisation": letter, "algorithm": "nrws", "trust_region": "none"}
    common |= {"lr": 0.1, "damping": 0.2, "momentum": 0.0, "batch_size": 32, "samples": 10, "epochs": epochs}
    kept = (1, 10, 100, 500, 1000, 10_000)

    def jobs(hours: float) -> list[Job]:
        return [
            Job(name, f"K = {k:,}", seed, {**common, "update_every": k}, epochs, angles=(1, 10, 100, 500, 1000))
            for k in kept
            for seed in SEEDS
        ]

    return jobs


def _map(name: str, common: dict[str, Any], epochs: int, algorithm: str = "nrws") -> Callable[[float], list[Job]]:
    rates, dampings = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2), (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
    fixed = {"algorithm": algorithm, "update_every": 1000, "trust_region": "none", "momentum": 0.0}
    fixed |= {"lr_schedule": "constant", "batch_size": 32, "samples": 10, "epochs": epochs}

    def jobs(hours: float) -> list[Job]:
        return [
            Job(name, f"{rate:g} {damping:g}", 1, {**common, **fixed, "lr": rate, "damping": damping}, epochs)
            for damping in dampings
            for rate in rates
        ]

    return jobs


SHORTER = 100
"""How many times fewer epochs than printed, at as many times the rate: the same sum of all rates."""


def _acceleration(data: str) -> Callable[[float], list[Job]]:
    """Table 6.1, which has one small rate for all rows, in a hundredth of the epochs."""
    name = f"acceleration-{data.removesuffix('-mnist')}"
    own = {} if data == "mnist" else {"data": data, "binarisation": "B", "layers": None}
    jobs = []
    for row, preset in PRESETS.items():
        if preset.source == "thesis, Table 6.1" and preset.settings["epochs"] == 2000:
            printed = preset.settings
            settings = {**printed, **own, "lr": SHORTER * printed["lr"], "epochs": printed["epochs"] // SHORTER}
            given = {setting: value for setting, value in settings.items() if value is not None}
            jobs.append(Job(name, row.removeprefix("thesis-mnist-"), 1, given, given["epochs"]))
    return lambda hours: jobs


def _entropy(hours: float) -> list[Job]:
    """Tables 6.4 and 6.5 on miniMNIST, at rates that suit it: the reward at several strengths, and with Nesterov's."""
    common = {"data": "mini-mnist", "binarisation": "B", "epochs": 10}
    nesterov = {**MORE_SLEEP, "lr": 0.01, "momentum": 0.95, "nesterov": True}
    warm_up = {"warm_up_epochs": 0.5, "warm_up_shape": "hyperbolic"}
    bases = {"rws": {"algorithm": "rws"}, "nrws": MORE_SLEEP, "nrws, Nesterov": nesterov}
    return [
        Job("entropy-mini", f"{row}, β = {beta:g}", 1, {**common, **base, **warm_up, "entropy": beta}, 10)
        for row, base in bases.items()
        for beta in (0.0, 0.01, 2.0)
    ]


def _sleep(hours: float) -> list[Job]:
    common = {"data": "mini-mnist", "algorithm": "nrws", "epochs": 20}
    rows: dict[str, dict[str, Any]] = {f"sleep-well {m}": {"sleep_steps": m} for m in (1, 3, 5, 10)}
    rows["rescaled-sleep 3"] = {"sleep_scale": 3.0}
    return [Job("sleep", row, seed, {**common, **more}, 20) for row, more in rows.items() for seed in SEEDS]


KINDS = ("dense/dense", "conv/dense", "dense/deconv", "conv/deconv")
RATES = {"C": (0.005, 0.02, 0.06), "G": (1e-5, 1e-4, 1e-3)}
"""Of RWS on 48×48 pixels, whose gradients differ between the kinds of layers by orders of magnitude."""


def _large(name: str, letter: str, kinds: Sequence[str], plain: Sequence[str] = ()) -> Callable[[float], list[Job]]:
    """RWS at three rates and NRWS as it comes for each kind of bottom layer; of the `plain` kinds RWS alone."""
    common = {"data": "fashion-mnist", "binarisation": letter}

    def jobs(hours: float) -> list[Job]:
        found = []
        for kind in (*kinds, *plain):
            rows: dict[str, dict[str, Any]] = {f"rws {r:g}": {"algorithm": "rws", "lr": r} for r in RATES[letter]}
            if kind in kinds:
                rows["nrws"] = {"algorithm": "nrws"}
            for row, more in rows.items():
                found.append(Job(name, f"{kind} {row}", 1, {**common, **more}, hours=hours / 2, bottom=kind))
        return found

    return jobs


MNIST = {"rws": -87.36, "nrws": -84.91, "nbihm": -86.18}
FASHION = {"rws": -236.96, "nrws": -235.65, "nbihm": -235.95}
SMALL = {"data": "mnist", "binarisation": "F", "layers": (200, 100, 10)}
BARS = {"data": "three-by-three", "layers": (6, 1), "states": "zero-one"}
"""The machine on 3×3 pixels of the authors' code."""
EXPERIMENTS = (
    Experiment("mini-b-ours", "miniMNIST B, our settings, 40 epochs: past the published 500 epochs?", _ours_mini("b")),
    Experiment("mini-c-ours", "miniMNIST C, our settings, 40 epochs", _ours_mini("c")),
    Experiment("mini-b-thesis", "miniMNIST B with the thesis' settings, 100 epochs", _thesis_mini("b")),
    Experiment("mini-c-thesis", "miniMNIST C with the thesis' settings, 100 epochs", _thesis_mini("c")),
    Experiment(
        "mnist-f",
        "MNIST F, 12 layers, our settings for some hours: past −86.14 and −84.88?",
        _long("mnist-f", "mnist", "F", MNIST, "thesis, Tables 5.1 and 5.3, up to 2,000 epochs"),
    ),
    Experiment(
        "fashion-c",
        "FashionMNIST C, 12 layers, our settings for some hours: past −235.65 and −235.43?",
        _long("fashion-c", "fashion-mnist", "C", FASHION, "thesis, Tables 5.2 and 5.4, up to 2,000 epochs"),
    ),
    Experiment("belief-nets", "MNIST F, 784-200 and 784-200-200 against VIMCO", _belief_nets),
    Experiment("k-mini", "does K hurt learning? miniMNIST B, 5 epochs", _kept("k-mini", "mini-mnist", "B", 5)),
    Experiment("k-mnist", "does K hurt learning? MNIST F, 12 layers, 2 epochs", _kept("k-mnist", "mnist", "F", 2)),
    Experiment(
        "map-bars",
        "damping × rate of NWS on 3×3 bars (Figure C.1), 20 epochs",
        _map("map-bars", BARS, 20, "nws"),
    ),
    Experiment(
        "map-mini",
        "damping × rate on miniMNIST (Figure C.2)",
        _map("map-mini", {"data": "mini-mnist", "binarisation": "B"}, 1),
    ),
    Experiment(
        "map-mnist", "damping × rate on MNIST F, 200-100-10 (Figure C.3), one epoch", _map("map-mnist", SMALL, 1)
    ),
    Experiment(
        "acceleration-mini", "Table 6.1 on miniMNIST B, 20 epochs at 100 times the rate", _acceleration("mini-mnist")
    ),
    Experiment("acceleration-mnist", "Table 6.1, 20 epochs at 100 times the rate", _acceleration("mnist")),
    Experiment("entropy-mini", "Tables 6.4 and 6.5 on miniMNIST B, 10 epochs: the reward for entropy β", _entropy),
    Experiment("sleep", "sleep-well 1, 3, 5, 10 and rescaled-sleep, miniMNIST B, 20 epochs", _sleep),
    Experiment(
        "conv-48",
        "48×48 grey values (FashionMNIST enlarged), every unit Gaussian, bottom layers as in Figures 7.8 and 7.9",
        _large("conv-48", "G", KINDS),
    ),
    Experiment(
        "conv-48-binary",
        "the same with binary units, and local connections that share no weights: does sharing hold convolutions back?",
        _large("conv-48-binary", "C", KINDS, ("local/local",)),
    ),
    Experiment(
        "gaussian-48",
        "48×48 grey values, every unit Gaussian, dense (thesis 7.1.3)",
        _large("gaussian-48", "G", ("none",)),
    ),
)
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
