"""Every setting of a training run, said once: its default, its check and its help.

The command line, configuration files and `Settings.resolve` all follow from the fields of `Settings`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import datasets
from .._settings import LARGEST_RATE, converted, listed, number, one_of, setting, settings_of, switch
from ..errors import SettingError
from ..optim import BY_ITSELF, OptimizerSettings
from .algorithms import ALGORITHMS, Algorithm, algorithm_named, rate_for
from .machine import LATERAL, HelmholtzMachine
from .regularisers import L1, L2, WARM_UPS, Entropy
from .schedules import Schedule
from .train import LR_SCHEDULE, ORDERS, TOGETHER, Trainer

STATES: dict[str, tuple[float, float]] = {"plus-minus": (-1, 1), "zero-one": (0, 1)}
"""The two states of every unit, by name."""

_BARS, _MINI = (12, 6), (100, 50, 20, 10, 10)
_DEEP = (300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10)
FACES = (300, 200, 100, 75, 50, 35, 30, 25, 20, 20)
"""The hidden layers that were published for faces of 24×24 pixels."""
LAYERS: dict[str, tuple[int, ...]] = {
    "three-by-three": _BARS,
    "mini-mnist": _MINI,
    "mnist": _DEEP,
    "fashion-mnist": _DEEP,
}
"""The hidden layers, from the data up, that a named dataset gets by default."""
PIXELS = {"three-by-three": 3 * 3, "mini-mnist": 14 * 14, "mnist": 28 * 28, "fashion-mnist": 28 * 28}
"""Of the images of a named dataset."""
_LAYERS_UP_TO = {3 * 3: _BARS, 14 * 14: _MINI, 24 * 24: FACES, 28 * 28: _DEEP}

_GREY_PLAIN_LR = 0.003
"""For Gaussian pixels, whose gradients are a hundred times those of binary ones; natural gradients need no other."""

NATURAL_ONLY = (
    *("damping", "update_every", "solver", "tolerance", "trust_region", "window", "fisher"),
    *("damping_schedule", "update_every_schedule"),
)
"""Settings that plain algorithms do not have."""


def _adam(name: str, given: Any) -> tuple[float, ...] | None:
    if given is None or given is False:
        return None
    betas = (0.9, 0.999) if given is True else listed(number(0, below=1))(name, given)
    if len(betas) != 2:
        raise SettingError(f"{name} takes two numbers, for example 0.9,0.999, not {given!r}.")
    return betas


def _data(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise SettingError(f"{name} must be the name of a dataset or the path of images, not {given!r}.")
    if given in datasets.NAMES:
        return given
    path = Path(given).expanduser()
    if given == path.name and not path.suffix:  # a word, rather a misspelt name than a path
        datasets.find(given)
    return str(path.absolute())


def _tile(name: str, given: Any) -> tuple[int, ...]:
    sides: tuple[int, ...] = listed(number(1, whole=True))(
        name, given.replace("x", ",") if isinstance(given, str) else given
    )
    if len(sides) != 2:
        raise SettingError(f"{name} must be rows and columns, for example 28x28, not {given!r}.")
    return sides


def _algorithm(name: str, given: Any) -> str:
    return algorithm_named(str(given)).name


def _schedule(name: str, given: Any) -> str:
    try:
        return Schedule(str(given)).text
    except SettingError as error:
        raise SettingError(f"{name}: {error}") from None


def _device(name: str, given: Any) -> str:
    try:
        device = torch.device(str(given))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise SettingError(f"{name} {given!r} is not available here; use cpu.") from None
    return str(device)


def _momentum(name: str, given: Any) -> Any:
    return given if given == "auto" else number(0, below=1)(name, given)


_natural = "natural algorithms: "
NONE = "none"
"""A trust region that bounds nothing; None is one that was not given."""


def _of_optimizer(name: str, words: str) -> Any:
    """A setting of the optimizer, with its check, and with words that fit a command line."""
    (entry,) = (each for each in settings_of(OptimizerSettings) if each.name == name)

    def check(name: str, given: Any) -> Any:
        if name == "trust_region" and given == NONE:
            return NONE
        value = given
        for kind in (int, float) if isinstance(given, str) else ():
            with contextlib.suppress(ValueError):
                value = kind(given)
                break
        return entry.convert(name, value)

    return setting(None, check, _natural + words)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a run, defaults filled in; made by `resolve`, which checks what is given.

    The settings of `NATURAL_ONLY` are None for plain algorithms.
    """

    data: str = setting("mini-mnist", _data, "a name that `dagfisher data` lists, or the path of images of your own")
    colour: str = setting("refuse", one_of("refuse", "grey"), "own images in colour: refuse them, or make them grey")
    tile: tuple[int, ...] | None = setting(None, _tile, "rows x columns of each image on a sheet that is one PNG file")
    binarisation: str = setting(
        "B",
        one_of(*datasets.BINARISATIONS),
        "; ".join(f"{letter}: {meaning}" for letter, meaning in datasets.BINARISATIONS.items()),
    )
    algorithm: str = setting("nrws", _algorithm, lambda: f"one of {', '.join(ALGORITHMS)}")
    layers: tuple[int, ...] = setting(
        None, listed(number(1, whole=True)), "hidden units from the data up, for example 100,50,10 (by dataset or size)"
    )
    states: str = setting("plus-minus", one_of(*STATES), "of each unit: plus-minus (−1, 1) or zero-one (0, 1)")
    lateral: str | None = setting(
        None,
        one_of(*LATERAL),
        "whose units see those before them in their layer: generative, recognition or both (none)",
    )
    epochs: int = setting(20, number(1, whole=True), "epochs in all")
    batch_size: int = setting(None, number(1, whole=True), "examples in a minibatch (natural algorithms 200, plain 32)")
    samples: int = setting(None, number(1, whole=True), "draws of q(h|x) per example (natural algorithms 5, plain 10)")
    lr: float = setting(
        None,
        number(0, open_low=True, below=LARGEST_RATE),
        "learning rate (by algorithm, and of plain ones by the number of pixels; in proportion to 1 − momentum if a "
        "momentum is given; 0.001 with adam)",
    )
    damping: float | str | None = _of_optimizer(
        "damping",
        "α, added to the diagonal of the Fisher blocks; 0 needs the solver dense (auto: each layer finds its own)",
    )
    update_every: int | str | None = _of_optimizer(
        "update_every",
        "K, the steps that a Fisher matrix is kept (auto: 1 at first, later up to 50; 1 if a damping is given)",
    )
    solver: str | None = _of_optimizer(
        "solver",
        "how the blocks are solved: auto (the least expected cost), dense, woodbury, conjugate, diagonal (an "
        "approximation), or one of your own (auto)",
    )
    tolerance: float | str | None = _of_optimizer(
        "tolerance",
        f"the relative residual that the solver conjugate may leave (auto: {BY_ITSELF['tolerance']}; 0.02 if a "
        "damping is given)",
    )
    trust_region: float | str | None = _of_optimizer(
        "trust_region",
        "how far a step at a rate of 1 may move p, and likewise q, as a divergence in nats; longer steps are "
        "shortened; none: no bound (auto: by the number of random variables; none if a damping is given)",
    )
    window: int | None = _of_optimizer(
        "window", "how many refreshes have their samples in a Fisher matrix, the current one among them (1)"
    )
    fisher: str | None = setting(
        None, one_of("wake", "dream"), _natural + "Fisher of p from wake or dream samples (wake)"
    )
    lr_schedule: str = setting(
        LR_SCHEDULE, _schedule, "factor of lr: constant, cosine, linear:0:0.5, step:5:0.5, warm-up:1+cosine, …"
    )
    damping_schedule: str | None = setting(None, _schedule, _natural + "the same for damping (constant)")
    update_every_schedule: str | None = setting(None, _schedule, _natural + "the same for update_every (constant)")
    samples_schedule: str = setting("constant", _schedule, "the same for samples, for example step:10:2")
    l1: float = setting(0.0, number(0), "L1 penalty on the weights")
    l2: float = setting(0.0, number(0), "L2 penalty on the weights")
    entropy: float = setting(0.0, number(0), "reward for the entropy of the units given their parents")
    warm_up: int = setting(0, number(0, whole=True), "steps until l1, l2 and entropy reach their full strength")
    warm_up_epochs: float = setting(0.0, number(0), "the same in epochs instead of steps")
    warm_up_shape: str = setting(
        "linear", one_of(*WARM_UPS), "how strength grows: linear, or hyperbolic as the thesis prints"
    )
    momentum: float | str = setting(
        None,
        _momentum,
        f"momentum of the gradient, or natural gradient (natural algorithms auto: {BY_ITSELF['momentum']}, or 0 if a "
        "damping is given; plain ones 0)",
    )
    nesterov: bool = setting(False, switch, "look ahead along the momentum")
    adam: tuple[float, ...] | None = setting(None, _adam, "Adam on the gradient, or natural gradient; its betas")
    baseline: bool = setting(True, switch, "subtract 1/S from the wake weights of q")
    sleep_steps: int = setting(1, number(1, whole=True), "sleep updates per wake update")
    sleep_scale: float = setting(1.0, number(0, open_low=True), "factor of the sleep gradient")
    order: str = setting(
        TOGETHER,
        one_of(*ORDERS),
        "together: one step by wake samples and dreams; alternating: a step by wake samples, then one by dreams",
    )
    seed: int = setting(0, number(0, whole=True, below=2**31), "of all draws and of the initial weights")
    threads: int = setting(None, number(1, whole=True), "CPU threads (all that PyTorch would take)")
    device: str = setting("cpu", _device, "cpu, cuda, cuda:1, …")
    eval_examples: int = setting(1000, number(1, whole=True), "examples of valid and test evaluated for a row")
    eval_samples: int = setting(100, number(1, whole=True), "samples per evaluated example")
    eval_every: int | None = setting(None, number(1, whole=True), "steps between rows within an epoch (once per epoch)")
    checkpoint_every: float = setting(60.0, number(0), "seconds between checkpoints within an epoch")

    @classmethod
    def convert(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given (text or values), each checked on its own and in its own type; None counts as not given."""
        return converted(cls, given)

    @classmethod
    def resolve(cls, **given: Any) -> Settings:
        """Settings from what is given, checked, with defaults that suit the dataset and the algorithm.

        Args:
            given: values, or text as on a command line, by the names of settings.
        """
        defaults = {entry.name: entry.default for entry in settings_of(cls)}
        values = {**defaults, **cls.convert(given)}
        algorithm = algorithm_named(values["algorithm"])
        natural = algorithm.solver is not None
        given_momentum = values["momentum"]
        if given_momentum is None:
            values["momentum"] = "auto" if natural and not values["adam"] else 0.0
        elif given_momentum == "auto" and not natural:
            raise SettingError(f"momentum auto belongs to natural algorithms, and {algorithm.name} is a plain one.")
        if values["nesterov"] and not values["momentum"]:
            raise SettingError("nesterov needs a momentum above 0.")
        if given_momentum and values["adam"]:
            raise SettingError("momentum and adam cannot both be given; choose one.")
        if values["binarisation"] == "G" and values["lateral"] in ("generative", "both"):
            raise SettingError(
                "lateral connections are between Bernoulli units, and the pixels of binarisation G are Gaussian; they "
                "can have lateral recognition alone."
            )
        if values["warm_up"] and values["warm_up_epochs"]:
            raise SettingError("warm_up counts steps and warm_up_epochs counts epochs; give one of them.")
        fitting = {
            "lr": _rate(algorithm, values, given_momentum) if values["lr"] is None else None,
            "batch_size": algorithm.batch_size,
            "samples": algorithm.samples,
            "threads": torch.get_num_threads(),
            "layers": LAYERS.get(values["data"]),
        }
        fitting.update(_natural_defaults(algorithm, values))
        values.update({name: value for name, value in fitting.items() if values[name] is None})
        if values["layers"] is None:
            values["layers"] = layers_for(_load(values).pixels)
        return cls(**values)

    @property
    def chosen_algorithm(self) -> Algorithm:
        """The algorithm of that name."""
        return algorithm_named(self.algorithm)

    def as_dict(self) -> dict[str, Any]:
        """The settings as values that JSON and TOML know."""
        values = dataclasses.asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def differences(self, given: Mapping[str, Any]) -> list[str]:
        """The names among `given` whose values differ from these settings."""
        return [name for name, value in self.convert(given).items() if value != getattr(self, name)]

    @property
    def without_effect(self) -> str | None:
        """A sentence if there is a warm-up and nothing that it could hold back; else None."""
        if self.l1 or self.l2 or self.entropy or not (self.warm_up or self.warm_up_epochs):
            return None
        return f"{'warm_up' if self.warm_up else 'warm_up_epochs'} does nothing without an l1, l2 or entropy above 0."

    def load_data(self) -> datasets.Dataset:
        """The dataset, on the device."""
        return _load(vars(self)).to(self.device)

    def stream(self, purpose: str, device: str | None = None) -> torch.Generator:
        """A generator whose numbers depend on the seed and on what they are for, and disturb no others."""
        digest = hashlib.sha256(f"{purpose} {self.seed}".encode()).digest()
        return torch.Generator(device or self.device).manual_seed(int.from_bytes(digest[:4], "big"))

    def build(self, data: datasets.Dataset | datasets.Description) -> Trainer:
        """A trainer with a new machine for such data, whose parameters depend on the seed alone."""
        pixels = "gaussian" if self.binarisation == "G" else "bernoulli"
        families = [pixels, *["bernoulli"] * len(self.layers)]
        sizes, states = [data.pixels, *self.layers], STATES[self.states]
        machine = HelmholtzMachine(sizes, states=states, families=families, lateral=self.lateral)
        self.chosen_algorithm.initialise(machine, self.stream("weights", "cpu"))
        machine.to(self.device)
        warm_up = self.warm_up or round(self.warm_up_epochs * -(-data.sizes[0] // self.batch_size))
        common: dict[str, Any] = {
            "samples": self.samples,
            "seed": self.seed,
            "baseline": self.baseline,
            "sleep_steps": self.sleep_steps,
            "sleep_scale": self.sleep_scale,
            "order": self.order,
            "regularisers": [
                kind(strength, warm_up, self.warm_up_shape)
                for kind, strength in ((L1, self.l1), (L2, self.l2), (Entropy, self.entropy))
                if strength
            ],
            "schedules": {
                name: Schedule(text)
                for name in ("lr", "damping", "update_every", "samples")
                if (text := getattr(self, f"{name}_schedule")) not in (None, "constant")
            },
        }
        if self.chosen_algorithm.solver is not None:
            return Trainer(
                machine,
                self.algorithm,
                lr=self.lr,
                damping=self.damping,
                update_every=self.update_every,
                solver=self.solver,
                tolerance=self.tolerance,
                trust_region=None if self.trust_region == NONE else self.trust_region,
                window=self.window,
                fisher=str(self.fisher),
                momentum=self.momentum,
                nesterov=self.nesterov,
                betas=self.adam,
                **common,
            )
        if self.adam is not None:
            betas = (self.adam[0], self.adam[1])
            common["optimizer"] = lambda groups: torch.optim.Adam(groups, lr=self.lr, betas=betas)
            return Trainer(machine, self.algorithm, **common)
        common.update(momentum=self.momentum, nesterov=self.nesterov)
        return Trainer(machine, self.algorithm, lr=self.lr, **common)


def layers_for(pixels: int) -> tuple[int, ...]:
    """The hidden layers, from the data up, that images of so many pixels get if they are not those of a named dataset.

    Up to 28×28 pixels, the network of the smallest images, of a named dataset or of faces of 24×24, that are at least
    as large; beyond that, the one that was published for faces.
    """
    return next((layers for most, layers in _LAYERS_UP_TO.items() if pixels <= most), FACES)


def _rate(algorithm: Algorithm, values: Mapping[str, Any], given_momentum: float | str | None) -> float:
    natural = algorithm.solver is not None
    if values["adam"]:
        return 0.001
    if natural:
        rate = algorithm.lr
    elif values["binarisation"] == "G":
        rate = _GREY_PLAIN_LR
    else:
        rate = rate_for(algorithm, PIXELS.get(values["data"]) or _load(values).pixels)
    if isinstance(given_momentum, float):
        rate *= (1 - given_momentum) / (1 - BY_ITSELF["momentum"] if natural else 1)
    return rate


def _load(values: Mapping[str, Any]) -> datasets.Dataset:
    tile = None if values["tile"] is None else (values["tile"][0], values["tile"][1])
    return datasets.load(values["data"], values["binarisation"], colour=values["colour"], tile=tile)


def _natural_defaults(algorithm: Algorithm, values: dict[str, Any]) -> dict[str, Any]:
    """What a natural algorithm takes where nothing is given; an error for a plain one that was given any of it."""
    if algorithm.solver is not None:
        return {
            "damping": "auto",
            "update_every": "auto" if algorithm.update_every is None else algorithm.update_every,
            "solver": algorithm.solver,
            "tolerance": "auto",
            "trust_region": "auto",
            "window": 1,
            "fisher": "wake",
            "damping_schedule": "constant",
            "update_every_schedule": "constant",
        }
    for name in NATURAL_ONLY:
        if values[name] is not None:
            raise SettingError(f"{name} belongs to natural algorithms, and {algorithm.name} is a plain one.")
    return {}
