"""Trainer: one algorithm on one machine, a minibatch or many epochs at a time, which can be continued at any step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._draws import Part, PartGenerator
from .._processes import launched
from .._settings import LARGEST_RATE
from .._text import counted
from ..datasets import Dataset
from ..errors import CheckpointError, SettingError, ShapeError
from ..optim import DAGNaturalGradient
from .algorithms import ALGORITHMS, Algorithm, Step, algorithm_named, rate_for
from .machine import HelmholtzMachine
from .objectives import (
    Terms,
    generative_terms,
    observe_generative,
    recognition_terms,
    sleep_terms,
)
from .regularisers import L1, L2, Entropy, Regulariser, shrinkage, weights_of
from .sampling import Wake, log_mean_exp, wake
from .schedules import Schedule
from .shown import trainer_html

LR_SCHEDULE = "linear:0:0.5"
"""How the learning rate changes if nobody says so: it falls to 0 over the last half of the epochs."""
TOGETHER, ALTERNATING = ORDERS = ("together", "alternating")
"""When dreams teach q: in the step of the wake samples, or in a step of their own that follows it."""
LIMITS = {"lr": LARGEST_RATE, "damping": LARGEST_RATE, "update_every": 1e9, "samples": 1e6}
"""What a schedule may change, and below which value it must stay."""


class Trainer:
    """One algorithm on one machine: `step` for a minibatch, or `fit` for epochs, which can be left and continued.

    A step draws wake samples and weighs them, adds the terms of p's and of q's gradient, dreams if the algorithm does,
    and lets the optimizer move both networks. `state_dict` holds
    all that a new trainer needs to continue exactly.

    Several processes that ``torchrun`` started train one machine together, and each takes its part of every minibatch.
    Steps are those of one process, to rounding, whatever the number of processes: random numbers do not depend on it,
    and a checkpoint of some processes continues with any other number of them.

    Args:
        machine: is trained in place.
        algorithm: ``"ws"``, ``"rws"``, ``"bihm"``, ``"reinforce"``, ``"nws"``, ``"nrws"``, ``"dnrws"``, ``"nbihm"``,
            ``"nreinforce"``, ``"reinforce-optimal"``, ``"nreinforce-optimal"``, a
            name that was registered, or an :class:`Algorithm`.
        lr: of the optimizer; if not given, the algorithm's own default, which plain algorithms lower on more than 14×14
            pixels.
        update_every: minibatches that a Fisher is kept, of natural algorithms; if it is not given, the algorithm's own
            default or the optimizer's rule, which counts the optimizer's steps.
        damping: of natural algorithms; if it is not given, each layer finds its own.
        samples: S, draws of q(h|x) per example; the algorithm's own default if not given.
        seed: of every draw that the trainer makes.
        baseline: subtract the mean weight 1/S from the wake weights of q (no change of expectation, less variance).
        fisher: estimate the Fisher of p from ``"wake"`` samples with their weights, or from ``"dream"`` samples.
        sleep_steps: sleep updates per wake update (sleep-well); each after the first is a step of its own.
        order: ``"together"``: one step moves p by the wake samples and q by wake samples and dreams; or
            ``"alternating"``: p and q by the wake samples first, then q by dreams of the p that has moved, which is the
            order of Algorithm 4 of the thesis.
        sleep_scale: multiplies the sleep gradient (rescaled-sleep).
        regularisers: any of :class:`L1`, :class:`L2` and :class:`Entropy`.
        schedules: how ``"lr"``, ``"damping"``, ``"update_every"`` and ``"samples"`` change during :meth:`fit`; see
            :class:`Schedule`. By default the learning rate falls to 0 over the last half; ``{}``: nothing changes.
        optimizer: a callable of param groups (p first, q second) that makes the optimizer instead of the default one,
            for example ``lambda groups: torch.optim.Adam(groups, lr=1e-3)``.
        process_group: of the processes that train together. None: the default group, which is initialised here if
            ``torchrun`` started this process; False: this process alone.
        settings: further keyword arguments of :class:`dagfisher.DAGNaturalGradient`, for natural algorithms, or of
            ``torch.optim.SGD``, for plain ones.
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        algorithm: str | Algorithm = "nrws",
        *,
        lr: float | None = None,
        damping: float | str | None = None,
        update_every: int | str | None = None,
        samples: int | None = None,
        seed: int = 0,
        baseline: bool = True,
        fisher: str = "wake",
        sleep_steps: int = 1,
        sleep_scale: float = 1.0,
        order: str = TOGETHER,
        regularisers: Sequence[Regulariser] = (),
        schedules: Mapping[str, Schedule] | None = None,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
        process_group: Any = None,
        **settings: Any,
    ) -> None:
        self.machine = machine
        self.processes = launched(process_group)
        self.algorithm = algorithm if isinstance(algorithm, Algorithm) else algorithm_named(algorithm)
        self.samples = self.algorithm.samples if samples is None else samples
        _check(self.algorithm, self.samples, fisher, sleep_steps, sleep_scale, order)
        self.seed = seed
        self.baseline = baseline
        self.fisher = fisher
        self.sleep_steps = sleep_steps
        self.sleep_scale = sleep_scale
        self.order = order
        self.generator = PartGenerator(machine.prior.bias.device)
        self.generator.manual_seed(seed)
        self.regularisers = list(regularisers)
        if not all(isinstance(regulariser, Regulariser) for regulariser in self.regularisers):
            raise SettingError("regularisers must be objects like L2(1e-4) or Entropy(0.01).")
        self.schedules = {"lr": Schedule(LR_SCHEDULE)} if schedules is None else dict(schedules)
        self.epoch = 0
        self.batch = 0
        self.steps = 0
        self._share = 1.0
        self._entropy: Tensor | None = None
        self._last_step: dict[str, float] = {}
        self.optimizer = self._make_optimizer(optimizer, lr, damping, update_every, settings)
        self._base = self._scheduled_values()

    def _make_optimizer(
        self,
        given: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None,
        lr: float | None,
        damping: float | str | None,
        update_every: int | str | None,
        settings: dict[str, Any],
    ) -> torch.optim.Optimizer:
        networks = (self.machine.generative_parameters(), self.machine.recognition_parameters())
        groups: list[dict[str, Any]] = [{"params": parameters} for parameters in networks]
        if given is not None:
            for name, value in {"lr": lr, "damping": damping, "update_every": update_every, **settings}.items():
                if value is not None:
                    raise SettingError(f"{name} is a setting of the optimizer; give it to the one that you make.")
            return given(groups)
        chosen = self.algorithm
        rate = rate_for(chosen, self.machine.sizes[0]) if lr is None else lr
        if not 0 <= rate < LARGEST_RATE:
            raise SettingError(f"lr must be a number of at least 0 and below {LARGEST_RATE:g}, not {rate!r}.")
        if chosen.solver is None:
            if damping is not None or update_every is not None:
                owner = f"n{chosen.name}" if f"n{chosen.name}" in ALGORITHMS else "natural ones"
                raise SettingError(f"{chosen.name} is a plain algorithm: damping and update_every belong to {owner}.")
            return torch.optim.SGD(groups, lr=rate, **settings)
        names = {parameter: name for name, parameter in self.machine.named_parameters()}
        return DAGNaturalGradient(
            [{"params": [(names[p], p) for p in parameters]} for parameters in networks],
            lr=rate,
            damping="auto" if damping is None else damping,
            update_every=self._interval(update_every),
            process_group=self.processes.given,
            **{"solver": chosen.solver, **settings},
        )

    def _interval(self, given: int | str | Callable[[int], float] | None) -> Any:
        """The steps of the optimizer that a Fisher is kept: a number of minibatches times the steps in each.

        So sleep steps of their own use the Fisher of the wake samples before them (Algorithm 4, line 19).
        """
        minibatches = next((k for k in (given, self.algorithm.update_every) if k is not None), "auto")
        return minibatches * (1 + self._sleeps_apart) if isinstance(minibatches, (int, float)) else minibatches

    @property
    def _sleeps_apart(self) -> int:
        """The steps after a minibatch's first one, all of them of the sleep phase."""
        return self.sleep_steps - (self.order == TOGETHER)

    def _scheduled_values(self) -> dict[str, list[Any]]:
        """The values that the schedules multiply: one for each param group, and the number of samples."""
        base: dict[str, list[Any]] = {"samples": [self.samples]}
        for name in self.schedules:
            if name != "samples":
                base[name] = [group.get(name) for group in self.optimizer.param_groups]
            if name not in LIMITS or None in base[name]:
                raise SettingError(f"{self.algorithm.name} has no {name} that a schedule could change.")
            if "auto" in base[name]:
                raise SettingError(f"a schedule multiplies a number: give {name} one in place of 'auto'.")
        return base

    def _scheduled(self, name: str, epoch: float, epochs: float) -> list[Any]:
        """The value of a scheduled setting at that moment, for each param group, or the number of samples."""
        schedule = self.schedules[name]
        factor = schedule.factor(epoch, epochs)
        values = [value * factor for value in self._base[name]]
        if not all(value < LIMITS[name] for value in values):
            raise SettingError(
                f"the schedule {schedule.text!r} makes {name} {max(values):g} after {epoch:g} of {epochs:g} epochs; "
                f"it must stay below {LIMITS[name]:g}."
            )
        if name in ("update_every", "samples"):
            least = self.algorithm.least_samples if name == "samples" else 1
            values = [max(least, round(value)) for value in values]
        return values

    def _follow_schedules(self, epoch: float, epochs: float) -> None:
        for name in self.schedules:
            values = self._scheduled(name, epoch, epochs)
            if name == "samples":
                self.samples = values[0]
                continue
            for group, value in zip(self.optimizer.param_groups, values, strict=True):
                group[name] = value

    def step(self, x: Tensor) -> Tensor:
        """Learn from one minibatch.

        Args:
            x: data in [0, 1], (B, pixels), all of them in every process that trains together.

        Returns:
            The minibatch's mean of log p(x) as its S samples estimated it before the step, a scalar.
        """
        value, state = self._gradients(x)
        changes = self._shrinkage()
        self.optimizer.step()
        with torch.no_grad():
            for weight, change in changes.items():
                weight.add_(change)
        self.steps += 1
        for _ in range(self._sleeps_apart):
            self._sleep_step(state)
        return value

    def backward(self, x: Tensor) -> Tensor:
        """Leave the gradients of one minibatch in ``.grad``, in place of those before, without a step; for inspection.

        Args:
            x: as for `step`.

        Returns:
            What `step` would return.
        """
        return self._gradients(x)[0]

    def _gradients(self, x: Tensor) -> tuple[Tensor, Wake]:
        own = self.processes.share(len(x))
        self._share = len(own) / len(x)
        if self.processes.size > 1:
            self.generator.part = Part(own.start, own.stop, len(x), self.samples)
        encoded = self.machine.encode(x[own.start : own.stop])
        self.optimizer.zero_grad()
        state = wake(self.machine, encoded, self.samples, self.generator)
        terms = Terms()
        found = self._fitting(self.algorithm.weights, state, state, "weights")
        weights = self._share * found
        generative_terms(self.machine, state, weights, terms)
        if self.fisher == "wake":
            observe_generative(self.machine, state, weights)
        if self.algorithm.recognition is not None:
            step = Step(state, found, self.baseline, self.steps)
            coefficients = self._fitting(self.algorithm.recognition, step, state, "recognition coefficients")
            recognition_terms(self.machine, state, self._share * self._wake_share * coefficients, terms)
        if self.order == TOGETHER and (self.algorithm.sleeps or self.fisher == "dream"):
            self._sleep(state, terms, observe_dreams=self.fisher == "dream")
        for regulariser in self.regularisers:
            if isinstance(regulariser, Entropy):
                strength = regulariser.at(self.steps)
                self._entropy = regulariser.add(self.machine, state, weights, strength, terms, share=self._share)
        value = log_mean_exp(state.log_ratio, 0).sum() / len(x)
        self._backward(terms, [value] if self._entropy is None else [value, self._entropy])
        return value, state

    def _backward(self, terms: Terms, values: Sequence[Tensor] = ()) -> None:
        """The gradients of all processes in `.grad`, and the sums of the values over all of them, in place."""
        terms.backward()
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.processes.sum_([*gradients, *values])

    def _shrinkage(self) -> dict[Tensor, Tensor]:
        """The changes of the weights that L1 and L2 make at this step."""
        penalties = [(r, r.at(self.steps)) for r in self.regularisers if isinstance(r, (L1, L2))]
        if not penalties:
            return {}
        rates = {p: group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
        return shrinkage(self.machine, penalties, rates)

    def regulariser_values(self) -> dict[str, float]:
        """Σ|w| and ½Σw² of the weights as they are, and the mean entropy of the last minibatch, of those in use."""
        values = {}
        for regulariser in self.regularisers:
            if isinstance(regulariser, (L1, L2)):
                values[regulariser.name] = sum(float(regulariser.penalty(w.detach())) for w in weights_of(self.machine))
            elif self._entropy is not None:
                values[regulariser.name] = float(self._entropy)
        return values

    def optimizer_values(self) -> dict[str, float]:
        """The learning rate, and of a natural algorithm the damping, and divergence and factor of the last step.

        The damping is the geometric mean over the layers. Of the two networks, the one counts that moved further, or
        was shortened more. See :meth:`dagfisher.DAGNaturalGradient.diagnostics`.
        """
        values = {"lr": float(self.optimizer.param_groups[0]["lr"])}
        if not isinstance(self.optimizer, DAGNaturalGradient):
            return values
        found = self.optimizer.diagnostics()
        dampings = [layer["damping"] for layer in found["layers"].values() if layer["damping"] is not None]
        if dampings:
            values["damping"] = math.exp(sum(map(math.log, dampings)) / len(dampings)) if min(dampings) else 0.0
        regions = [group for group in found["groups"] if "divergence" in group]
        if regions:
            self._last_step["divergence"] = max(group["divergence"] for group in regions)
            self._last_step["factor"] = min(group["factor"] for group in regions)
        return {**values, **self._last_step}

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        values = self.optimizer_values()
        return trainer_html(self.algorithm.name, self.machine, self.optimizer, self.steps, self.samples, values)

    def _fitting(self, function: Callable[[Any], Tensor], given: Any, state: Wake, what: str) -> Tensor:
        """What a function of the algorithm gives for the samples, if it has a value for each."""
        if not state.log_p.numel():
            return state.log_p  # more processes than examples
        found = function(given)
        if found.shape != state.log_p.shape:
            raise ShapeError(
                f"the {what} of {self.algorithm.name} must be {tuple(state.log_p.shape)}, samples × examples, not "
                f"{tuple(found.shape)}."
            )
        return found

    @property
    def _wake_share(self) -> float:
        return 1 - self.algorithm.dreams

    @property
    def _dream_coefficient(self) -> float:
        return self.algorithm.dreams * self.sleep_scale

    def _sleep(self, state: Wake, terms: Terms, *, observe_dreams: bool) -> None:
        coefficient, count = self._share * self._dream_coefficient, state.log_p.numel()
        sleep_terms(self.machine, count, coefficient, terms, self.generator, observe_dreams=observe_dreams)

    def _sleep_step(self, state: Wake) -> None:
        """A sleep update of its own; the Fisher of q still comes from this minibatch's wake samples."""
        self.optimizer.zero_grad()
        for i, (parents, states) in enumerate(zip([state.x, *state.hidden[:-1]], state.hidden, strict=True)):
            self.machine.up(i, parents, states)
        terms = Terms()
        self._sleep(state, terms, observe_dreams=False)
        self._backward(terms)
        self.optimizer.step()

    def fit(
        self,
        data: Dataset,
        epochs: int,
        *,
        batch_size: int | None = None,
        on_step: Callable[[Tensor], None] | None = None,
        on_epoch: Callable[[int, float], None] | None = None,
    ) -> None:
        """Train until `epochs` epochs are done in all, counting those done before.

        Args:
            data: the training split gives the minibatches.
            epochs: in all.
            batch_size: examples in a minibatch; the algorithm's own default if not given.
            on_step: is given what `step` returned, after each step.
            on_epoch: is given the number of epochs done and the mean of what `step` returned over the epoch (or over
                what was left of it after a resume).
        """
        batch_size = self.algorithm.batch_size if batch_size is None else batch_size
        for name in self.schedules:  # what cannot be followed to the end is not begun
            for epoch in range(self.epoch, epochs + 1):
                self._scheduled(name, epoch, epochs)
        while self.epoch < epochs:
            total, count = None, 0
            batches = data.batch_count(batch_size)
            self._follow_schedules(self.epoch + self.batch / batches, epochs)
            for x in data.batches(batch_size, seed=self.seed, epoch=self.epoch, start=self.batch):
                value = self.step(x)
                total = value.clone() if total is None else total.add_(value)
                count += 1
                self.batch += 1
                self._follow_schedules(self.epoch + self.batch / batches, epochs)
                if on_step is not None:
                    on_step(value)
            self.epoch += 1
            self.batch = 0
            if on_epoch is not None:
                on_epoch(self.epoch, float("nan") if total is None else float(total) / count)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to continue exactly: plain tensors and numbers."""
        return {
            "machine": self.machine.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "algorithm": self.algorithm.name,
            "epoch": self.epoch,
            "steps": self.steps,
            "batch": self.batch,
            "entropy": self._entropy,
            "last_step": {key: v for key, v in self.optimizer_values().items() if key in ("divergence", "factor")},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over all that `state_dict` saved of a trainer with the same algorithm and machine."""
        if state.get("algorithm") != self.algorithm.name:
            raise CheckpointError(
                f"the checkpoint is of algorithm {state.get('algorithm')!r}, this trainer of {self.algorithm.name!r}."
            )
        try:
            self.machine.load_state_dict(state["machine"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.generator.set_state(state["generator"].cpu())
            device = self.machine.prior.bias.device
            self._entropy = None if state.get("entropy") is None else state["entropy"].to(device)
            self._last_step = dict(state.get("last_step", {}))
            self.epoch, self.batch, self.steps = state["epoch"], state["batch"], state["steps"]
        except (KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this trainer: {error}") from None


def _check(algorithm: Algorithm, samples: int, fisher: str, sleep_steps: int, sleep_scale: float, order: str) -> None:
    """Raise a sentence for the first setting that cannot be."""
    if samples < algorithm.least_samples:
        least = counted(algorithm.least_samples, "sample")
        raise SettingError(f"{algorithm.name} needs at least {least}, not {samples}.")
    if fisher not in ("wake", "dream"):
        raise SettingError(f"fisher must be 'wake' or 'dream', not {fisher!r}.")
    if sleep_steps < 1 or not sleep_scale > 0:
        raise SettingError("sleep_steps must be at least 1 and sleep_scale positive.")
    if order not in ORDERS:
        raise SettingError(f"order must be one of {', '.join(ORDERS)}, not {order!r}.")
    if not algorithm.sleeps and (sleep_steps != 1 or sleep_scale != 1 or order != TOGETHER):
        raise SettingError(
            f"{algorithm.name} does not sleep; sleep_steps, sleep_scale and order have no meaning for it."
        )
    if order == ALTERNATING and fisher == "dream":
        raise SettingError("order 'alternating' moves p before it dreams; its Fisher must be of wake samples.")
