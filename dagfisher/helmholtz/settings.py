"""Every setting of a training run: its default, its range, and how it is said on a command line or in a file."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import datasets
from .._settings import LARGEST_RATE
from ..errors import SettingError
from ..solvers import SOLVERS
from .algorithms import ALGORITHMS, Algorithm, algorithm_named
from .machine import HelmholtzMachine
from .regularisers import L1, L2, WARM_UPS, Entropy
from .schedules import Schedule
from .train import Trainer

STATES: dict[str, tuple[float, float]] = {"plus-minus": (-1, 1), "zero-one": (0, 1)}
"""The two states of every unit, by name."""

_DEEP = (300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10)
LAYERS: dict[str, tuple[int, ...]] = {
    "three-by-three": (6, 1),
    "mini-mnist": (100, 50, 20, 10, 10),
    "mnist": _DEEP,
    "fashion-mnist": _DEEP,
}
"""The hidden layers, from the data up, that a named dataset gets by default."""

_GREY_PLAIN_LR, _GREY_NATURAL_LR, _GREY_DAMPING = 0.003, 0.005, 10.0
"""For Gaussian pixels, whose Fisher weights 1/σ² are a hundred times those of binary ones."""

NATURAL_ONLY = (
    *("damping", "update_every", "solver", "tolerance", "trust_region", "window", "fisher"),
    *("damping_schedule", "update_every_schedule"),
)
"""Settings that plain algorithms do not have."""

Convert = Callable[[str, Any], Any]
"""From a setting's name and what the user wrote (text, or a value of a file) to its value."""


def _number(low: float, *, whole: bool = False, open_low: bool = False, below: float = math.inf) -> Convert:
    kind: Callable[[Any], Any] = int if whole else float
    words = f"{'a whole number' if whole else 'a number'} {'above' if open_low else 'of at least'} {low:g}"
    words += f" and below {below:g}" if below < math.inf else ""

    def convert(name: str, given: Any) -> Any:
        try:
            value = kind(given) if not isinstance(given, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        exact = isinstance(given, str) or value == given
        if not (exact and low <= value < below and not (open_low and value == low)):
            raise SettingError(f"{name} must be {words}, not {given!r}.")
        return value

    return convert


def _one_of(*choices: str) -> Convert:
    def convert(name: str, given: Any) -> str:
        if given not in choices:
            raise SettingError(f"{name} must be one of {', '.join(choices)}, not {given!r}.")
        return str(given)

    return convert


def _switch(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise SettingError(f"{name} must be true or false, not {given!r}.")
    return given


def _listed(name: str, given: Any, each: Convert) -> tuple[Any, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, (list, tuple)) or not parts:
        raise SettingError(f"{name} must be numbers with commas between them, not {given!r}.")
    return tuple(each(f"each of {name}", part) for part in parts)


def _layers(name: str, given: Any) -> tuple[int, ...]:
    return _listed(name, given, _number(1, whole=True))


def _adam(name: str, given: Any) -> tuple[float, ...] | None:
    if given is None or given is False:
        return None
    betas = (0.9, 0.999) if given is True else _listed(name, given, _number(0, below=1))
    if len(betas) != 2:
        raise SettingError(f"{name} takes two numbers, for example 0.9,0.999, not {given!r}.")
    return betas


def _data(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise SettingError(f"{name} must be the name of a dataset or the path of a file, not {given!r}.")
    return given if given in datasets.NAMES else str(Path(given).expanduser().absolute())


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


def _field(convert: Convert, help: str, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"convert": convert, "help": help})


_natural = "natural algorithms: "


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run was told, with every default filled in; made by `resolve`.

    The settings of `NATURAL_ONLY` are None for plain algorithms; a ``damping`` of None is adapted.
    """

    data: str = _field(_data, "a name that `dagfisher data` lists, or the path of an IDX or .npy file", "mini-mnist")
    binarisation: str = _field(
        _one_of("B", "C", "G"), "B: binarised once; C: drawn anew at each step; G: grey values, Gaussian pixels", "B"
    )
    algorithm: str = _field(_algorithm, f"one of {', '.join(ALGORITHMS)}", "nrws")
    layers: tuple[int, ...] = _field(_layers, "hidden units from the data up, for example 100,50,10 (by dataset)")
    states: str = _field(_one_of(*STATES), "of each unit: plus-minus (−1, 1) or zero-one (0, 1)", "plus-minus")
    epochs: int = _field(_number(1, whole=True), "epochs in all", 20)
    batch_size: int = _field(_number(1, whole=True), "examples in a minibatch", 32)
    samples: int = _field(_number(1, whole=True), "draws of q(h|x) per example", 10)
    lr: float = _field(
        _number(0, open_low=True, below=LARGEST_RATE),
        "learning rate (by algorithm, times 1 − momentum; 0.001 with adam)",
    )
    damping: float | None = _field(_number(0), _natural + "added to the Fisher blocks (adapted)")
    update_every: int | None = _field(_number(1, whole=True), _natural + "steps that a Fisher is kept (by algorithm)")
    solver: str | None = _field(_one_of("auto", *SOLVERS), _natural + f"auto, {', '.join(SOLVERS)} (by algorithm)")
    tolerance: float | None = _field(_number(0, open_low=True), _natural + "residual left by conjugate (0.01)")
    trust_region: float | None = _field(_number(0, open_low=True), _natural + "most divergence of a step (no bound)")
    window: int | None = _field(_number(1, whole=True), _natural + "refreshes that a Fisher is made of (1)")
    fisher: str | None = _field(_one_of("wake", "dream"), _natural + "Fisher of p from wake or dream samples (wake)")
    lr_schedule: str = _field(
        _schedule, "factor of lr: constant, cosine, linear:0:0.5, step:5:0.5, warm-up:1+cosine, …", "linear:0:0.5"
    )
    damping_schedule: str | None = _field(_schedule, _natural + "the same for damping (constant)")
    update_every_schedule: str | None = _field(_schedule, _natural + "the same for update_every (constant)")
    samples_schedule: str = _field(_schedule, "the same for samples, for example step:10:2", "constant")
    l1: float = _field(_number(0), "L1 penalty on the weights", 0.0)
    l2: float = _field(_number(0), "L2 penalty on the weights", 0.0)
    entropy: float = _field(_number(0), "reward for the entropy of the units given their parents", 0.0)
    warm_up: int = _field(_number(0, whole=True), "steps until l1, l2 and entropy count in full", 0)
    warm_up_shape: str = _field(_one_of(*WARM_UPS), "how: linear, or hyperbolic as the thesis prints", "linear")
    momentum: float = _field(_number(0, below=1), "of the gradient, or natural gradient", 0.0)
    nesterov: bool = _field(_switch, "look ahead along the momentum", False)
    adam: tuple[float, ...] | None = _field(_adam, "Adam on the gradient, or natural gradient; its betas")
    baseline: bool = _field(_switch, "subtract 1/S from the wake weights of q", True)
    sleep_steps: int = _field(_number(1, whole=True), "sleep updates per wake update", 1)
    sleep_scale: float = _field(_number(0, open_low=True), "factor of the sleep gradient", 1.0)
    seed: int = _field(_number(0, whole=True, below=2**31), "of all draws and of the initial weights", 0)
    threads: int = _field(_number(1, whole=True), "CPU threads (all that PyTorch would take)")
    device: str = _field(_device, "cpu, cuda, cuda:1, …", "cpu")
    eval_examples: int = _field(_number(1, whole=True), "examples of valid and test evaluated for a row", 1000)
    eval_samples: int = _field(_number(1, whole=True), "samples per evaluated example", 100)
    eval_every: int | None = _field(_number(1, whole=True), "steps between rows within an epoch (once per epoch)")
    checkpoint_every: float = _field(_number(0), "seconds between checkpoints within an epoch", 60.0)

    @classmethod
    def convert(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given (text or values), each checked on its own and in its own type; None counts as not given."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name not in fields:
                near = difflib.get_close_matches(name, fields, 1)
                raise SettingError(f"there is no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
        return {name: fields[name].metadata["convert"](name, v) for name, v in given.items() if v is not None}

    @classmethod
    def resolve(cls, **given: Any) -> Settings:
        """Settings from what is given, checked, with defaults that suit the dataset and the algorithm."""
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
        values = {**defaults, **cls.convert(given)}
        algorithm = algorithm_named(values["algorithm"])
        if values["nesterov"] and not values["momentum"]:
            raise SettingError("nesterov needs a momentum above 0.")
        if values["momentum"] and values["adam"]:
            raise SettingError("momentum and adam cannot both be given; choose one.")
        rate = algorithm.lr
        if values["binarisation"] == "G":
            rate = _GREY_PLAIN_LR if algorithm.solver is None else _GREY_NATURAL_LR
        rate = 0.001 if values["adam"] else rate * (1 - values["momentum"])
        fitting = {"lr": rate, "threads": torch.get_num_threads(), "layers": LAYERS.get(values["data"])}
        fitting.update(_natural_defaults(algorithm, values))
        values.update({name: value for name, value in fitting.items() if values[name] is None})
        if values["layers"] is None:
            raise SettingError(f"{values['data']} has no default layers; give them, for example layers 100,50,10.")
        return cls(**values)

    @property
    def description(self) -> Algorithm:
        """The algorithm's entry in the table."""
        return ALGORITHMS[self.algorithm]

    def as_dict(self) -> dict[str, Any]:
        """The settings as values that JSON and TOML know."""
        values = dataclasses.asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def differences(self, given: Mapping[str, Any]) -> list[str]:
        """The names among `given` whose values are not those of these settings."""
        return [name for name, value in self.convert(given).items() if value != getattr(self, name)]

    def load_data(self) -> datasets.Dataset:
        """The dataset, on the device."""
        return datasets.load(self.data, self.binarisation).to(self.device)

    def stream(self, purpose: str, device: str | None = None) -> torch.Generator:
        """Random numbers that depend on the seed and on what they are for, and disturb no others."""
        digest = hashlib.sha256(f"{purpose} {self.seed}".encode()).digest()
        return torch.Generator(device or self.device).manual_seed(int.from_bytes(digest[:4], "big"))

    def build(self, data: datasets.Dataset) -> Trainer:
        """A trainer with a fresh machine whose weights depend on the seed alone."""
        pixels = "gaussian" if self.binarisation == "G" else "bernoulli"
        families = [pixels, *["bernoulli"] * len(self.layers)]
        machine = HelmholtzMachine([data.pixels, *self.layers], states=STATES[self.states], families=families)
        machine.reset_parameters(bihm=self.description.weights == "root", generator=self.stream("weights", "cpu"))
        machine.to(self.device)
        common: dict[str, Any] = {
            "samples": self.samples,
            "seed": self.seed,
            "baseline": self.baseline,
            "sleep_steps": self.sleep_steps,
            "sleep_scale": self.sleep_scale,
            "regularisers": [
                kind(strength, self.warm_up, self.warm_up_shape)
                for kind, strength in ((L1, self.l1), (L2, self.l2), (Entropy, self.entropy))
                if strength
            ],
            "schedules": {
                name: Schedule(text)
                for name in ("lr", "damping", "update_every", "samples")
                if (text := getattr(self, f"{name}_schedule")) not in (None, "constant")
            },
        }
        if self.description.solver is not None:
            return Trainer(
                machine,
                self.algorithm,
                lr=self.lr,
                damping=self.damping,
                update_every=self.update_every,
                solver=self.solver,
                tolerance=self.tolerance,
                trust_region=self.trust_region,
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


def _natural_defaults(algorithm: Algorithm, values: dict[str, Any]) -> dict[str, Any]:
    """What a natural algorithm takes where nothing is given; an error for a plain one that was given any of it."""
    if algorithm.solver is not None:
        return {
            "damping": _GREY_DAMPING if values["binarisation"] == "G" else None,
            "update_every": algorithm.update_every,
            "solver": algorithm.solver,
            "tolerance": 0.01,
            "window": 1,
            "fisher": "wake",
            "damping_schedule": "constant",
            "update_every_schedule": "constant",
        }
    for name in NATURAL_ONLY:
        if values[name] is not None:
            raise SettingError(f"{name} belongs to natural algorithms, and {algorithm.name} is a plain one.")
    return {}
