"""One training of one model by one method within a budget of processor seconds, as a record for a file of results."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from models import BatchSetting, Learner, named
from rivals import maker

import dagfisher
from dagfisher.optim import OptimizerSettings

WARM_UP = 2
"""Steps of a learner that is thrown away, so that what torch does once in a process is not on the clock."""
Curve = list[tuple[float, float, float | None, float | None]]
"""Points: processor seconds, epochs, the figure on valid and on test; None where it was not evaluated."""


@dataclass(frozen=True)
class Spec:
    """What a run is: no two runs with the same one are wanted.

    Args:
        model: its name.
        method: its name.
        rate: the learning rate; None for the natural gradient as it comes.
        batch: examples in a minibatch.
        samples: of each, for machines.
        seed: of everything in the run.
        budget: processor seconds.
        stage: "quarter", "full" (both judged on valid, to choose the rival's setting) or "final" (judged on test).
        settings: of the natural optimizer as it comes, as JSON, so that other defaults make another run.
        other: a second number that the method was tuned by, such as a damping.
    """

    model: str
    method: str
    rate: float | None
    batch: int
    samples: int | None
    seed: int
    budget: float
    stage: str
    settings: str | None = None
    other: float | None = None

    @classmethod
    def of(cls, record: dict[str, Any]) -> Spec:
        """The part of a record that says what the run is."""
        return cls(**{field.name: record.get(field.name) for field in dataclasses.fields(cls)})

    @property
    def batch_setting(self) -> BatchSetting:
        """Examples and samples together."""
        return BatchSetting(self.batch, self.samples)

    @property
    def setting(self) -> str:
        """The choice of a rival in words."""
        rate = "as it comes" if self.rate is None else f"rate {self.rate:g}"
        return f"{rate}{'' if self.other is None else f' and {self.other:g}'}, {self.batch_setting}"


def factor(share: float) -> float:
    """What the learning rate is multiplied by when that share of the budget is spent: 1, and from half on less."""
    return min(1.0, max(0.0, 2 * (1 - share)))


def begin(spec: Spec) -> Learner:
    """A learner of the model with the optimizer of the method."""
    model = named(spec.model)
    return model.start(maker(model, spec.method, spec.rate), spec.batch_setting, spec.seed)


def run(
    spec: Spec,
    points: int,
    start: Callable[[Spec], Learner] = begin,
    look: Callable[[Learner], dict[str, Any]] = lambda learner: {},
) -> dict[str, Any]:
    """The record of a run; a divergence, by a figure that is not finite or an error of numbers, is a result too.

    Args:
        spec: what to run.
        points: of the curve, evenly spread over the budget, the start not counted.
        start: makes the learner.
        look: gives more for the record, from the learner at its end.
    """
    torch.set_num_threads(1)
    more: dict[str, Any] = {}
    curve: Curve = []
    diverged: str | None = None
    steps = 0
    try:
        spare = start(spec)
        for _ in range(WARM_UP):
            spare.step()
        del spare
        learner = start(spec)
        try:
            diverged = train(learner, spec, points, curve)
        finally:
            steps = learner.steps
        more = look(learner)
    except (ArithmeticError, RuntimeError) as error:  # of numbers; what is wrong with data or settings stops everything
        diverged = f"{type(error).__name__}: {error}"
    found = {"steps": steps, "diverged": diverged, "curve": curve, **more, "on": facts()}
    return {**dataclasses.asdict(spec), **found}


def train(learner: Learner, spec: Spec, points: int, curve: Curve) -> str | None:
    """Train until the budget is spent, adding to the curve; the reason if it diverges."""
    groups = learner.optimizer.param_groups
    base = [group["lr"] for group in groups]
    spent, split = 0.0, "test" if spec.stage == "final" else "valid"

    def evaluate(last: bool) -> bool:
        values = {split: learner.value(split)}
        if last and split == "test":
            values["valid"] = learner.value("valid")
        rounded = {name: float(f"{value:.8g}") for name, value in values.items() if math.isfinite(value)}
        curve.append((round(spent, 4), round(learner.epochs, 4), rounded.get("valid"), rounded.get("test")))
        return len(rounded) == len(values)

    evaluate(last=False)
    for point in range(1, points + 1):
        until = spec.budget * point / points
        begun = time.process_time() - spent
        while spent < until:
            for group, rate in zip(groups, base, strict=True):
                group["lr"] = rate * factor(spent / spec.budget)
            figure = float(learner.step())
            spent = time.process_time() - begun
            if not math.isfinite(figure):
                return f"the figure of a minibatch is {figure} at step {learner.steps}"
        if not evaluate(last=point == points):
            return f"the figure on {split} is not finite after step {learner.steps}"
    return None


def final_value(record: dict[str, Any]) -> float:
    """The figure at the end, on test for a final run and else on valid; −∞ if the run diverged."""
    if record["diverged"] is not None:
        return -math.inf
    value = record["curve"][-1][3 if record["stage"] == "final" else 2]
    return float(value)


def natural_settings() -> str:
    """What the natural optimizer is told when nobody tells it anything, as JSON."""
    return json.dumps(dataclasses.asdict(OptimizerSettings()), sort_keys=True, default=str)


def facts() -> dict[str, Any]:
    """The machine, the version of torch and the commit that a run belongs to."""
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "torch": str(torch.__version__), "commit": commit()}


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@functools.cache
def commit() -> str | None:
    """The commit of the dagfisher that is used, with a plus if its code differs from it; None without git."""
    root = Path(dagfisher.__file__).parent.parent

    def git(*command: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "dagfisher")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
