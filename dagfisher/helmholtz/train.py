"""Trainer: one algorithm on one machine, a minibatch or many epochs at a time, resumable at any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._settings import LARGEST_RATE
from ..datasets import Dataset
from ..errors import CheckpointError, SettingError
from ..optim import DAGNaturalGradient
from ..optim.damping import TARGET
from .algorithms import Algorithm, algorithm_named
from .machine import HelmholtzMachine, log_mean_exp
from .objectives import (
    Descended,
    Terms,
    Wake,
    generative_terms,
    losses,
    observe_generative,
    recognition_terms,
    sleep_terms,
    wake,
)
from .regularisers import L1, L2, Entropy, Regulariser, shrinkage, weights_of
from .schedules import Schedule

TARGETS = (TARGET, 2.5)
"""What `adapt_damping` aims at for p and for q. The Fisher matrix of q's lowest layer is of as many rows as a minibatch
has examples, so the loss of another minibatch curves by more than predicted; yet q has to follow p fast."""
LEAST_DAMPING = 0.05
"""The damping is not adapted below this: with less, q became unstable at twice the default learning rate."""
LIMITS = {"lr": LARGEST_RATE, "damping": LARGEST_RATE, "update_every": 1e9, "samples": 1e6}
"""What a schedule may change, and below which value it must stay."""


class Trainer:
    """Trains a machine by one of the algorithms of `dagfisher.helmholtz.ALGORITHMS`.

    Args:
        machine: is trained in place.
        algorithm: ``"ws"``, ``"rws"``, ``"bihm"``, ``"reinforce"``, ``"nws"``, ``"nrws"``, ``"dnrws"``, ``"nbihm"``.
        lr, update_every: of the optimizer; the algorithm's own defaults if not given.
        damping: of natural algorithms. If it is not given, and no schedule changes it, it starts at the algorithm's own
            default and is adapted for each network before every refresh, judged by the minibatch before; see
            :meth:`dagfisher.DAGNaturalGradient.adapt_damping`.
        samples: S, draws of q(h|x) per example.
        seed: of every draw that the trainer makes.
        baseline: subtract the mean weight 1/S from the wake weights of q (no change of expectation, less variance).
        fisher: estimate the Fisher of p from ``"wake"`` samples with their weights, or from ``"dream"`` samples.
        sleep_steps: sleep updates per wake update (sleep-well); each after the first is a step of its own.
        sleep_scale: multiplies the sleep gradient (rescaled-sleep).
        regularisers: any of :class:`L1`, :class:`L2` and :class:`Entropy`.
        schedules: how ``"lr"``, ``"damping"``, ``"update_every"`` and ``"samples"`` change during :meth:`fit`; see
            :class:`Schedule`.
        optimizer: a callable of param groups (p first, q second) that makes the optimizer instead of the default one,
            for example ``lambda groups: torch.optim.Adam(groups, lr=1e-3)``.
        settings: further keyword arguments of :class:`dagfisher.DAGNaturalGradient`, for natural algorithms, or of
            ``torch.optim.SGD``, for plain ones.
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        algorithm: str = "nrws",
        *,
        lr: float | None = None,
        damping: float | None = None,
        update_every: int | None = None,
        samples: int = 10,
        seed: int = 0,
        baseline: bool = True,
        fisher: str = "wake",
        sleep_steps: int = 1,
        sleep_scale: float = 1.0,
        regularisers: Sequence[Regulariser] = (),
        schedules: Mapping[str, Schedule] | None = None,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
        **settings: Any,
    ) -> None:
        self.machine = machine
        self.algorithm: Algorithm = algorithm_named(algorithm)
        _check(self.algorithm, samples, fisher, sleep_steps, sleep_scale)
        self.samples = samples
        self.seed = seed
        self.baseline = baseline
        self.fisher = fisher
        self.sleep_steps = sleep_steps
        self.sleep_scale = sleep_scale
        self.generator = torch.Generator(device=machine.prior.bias.device).manual_seed(seed)
        self.regularisers = list(regularisers)
        if not all(isinstance(regulariser, Regulariser) for regulariser in self.regularisers):
            raise SettingError("regularisers must be objects like L2(1e-4) or Entropy(0.01).")
        self.schedules = dict(schedules or {})
        self.epoch = 0
        self.batch = 0
        self.steps = 0
        self._entropy: Tensor | None = None
        self.optimizer = self._make_optimizer(optimizer, lr, damping, update_every, settings)
        self._base = self._scheduled_values()
        natural = optimizer is None and self.algorithm.solver is not None
        self._adapts = natural and damping is None and "damping" not in self.schedules
        self._previous: Descended | None = None

    def _make_optimizer(
        self,
        given: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None,
        lr: float | None,
        damping: float | None,
        update_every: int | None,
        settings: dict[str, Any],
    ) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [
            {"params": self.machine.generative_parameters()},
            {"params": self.machine.recognition_parameters()},
        ]
        if given is not None:
            for name, value in {"lr": lr, "damping": damping, "update_every": update_every, **settings}.items():
                if value is not None:
                    raise SettingError(f"{name} is a setting of the optimizer; give it to the one that you make.")
            return given(groups)
        chosen = self.algorithm
        rate = chosen.lr if lr is None else lr
        if not 0 <= rate < LARGEST_RATE:
            raise SettingError(f"lr must be a number of at least 0 and below {LARGEST_RATE:g}, not {rate!r}.")
        if chosen.solver is None:
            if damping is not None or update_every is not None:
                raise SettingError(
                    f"{chosen.name} is a plain algorithm: damping and update_every belong to n{chosen.name}."
                )
            return torch.optim.SGD(groups, lr=rate, **settings)
        return DAGNaturalGradient(
            groups,
            lr=rate,
            damping=chosen.damping if damping is None else damping,
            update_every=chosen.update_every if update_every is None else update_every,
            **{"solver": chosen.solver, **settings},
        )

    def _scheduled_values(self) -> dict[str, list[Any]]:
        """What the schedules multiply: a value for each param group, and the number of samples."""
        base: dict[str, list[Any]] = {"samples": [self.samples]}
        for name in self.schedules:
            if name != "samples":
                base[name] = [group.get(name) for group in self.optimizer.param_groups]
            if name not in LIMITS or None in base[name]:
                raise SettingError(f"{self.algorithm.name} has no {name} that a schedule could change.")
        return base

    def _scheduled(self, name: str, epoch: float, epochs: float) -> list[Any]:
        """A value for each param group, or the number of samples."""
        schedule = self.schedules[name]
        factor = schedule.factor(epoch, epochs)
        values = [value * factor for value in self._base[name]]
        if not all(value < LIMITS[name] for value in values):
            raise SettingError(
                f"the schedule {schedule.text!r} makes {name} {max(values):g} after {epoch:g} of {epochs:g} epochs; "
                f"it must stay below {LIMITS[name]:g}."
            )
        if name in ("update_every", "samples"):
            least = _least_samples(self.algorithm) if name == "samples" else 1
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
        """One minibatch, (B, pixels) in {0, 1}; gives the batch's mean of log p(x) as its S samples estimate it."""
        encoded = self.machine.encode(x)
        self.optimizer.zero_grad()
        state = wake(self.machine, encoded, self.samples, self.generator)
        terms = Terms()
        weights = self._weights(state)
        generative_terms(self.machine, state, weights, terms)
        if self.fisher == "wake":
            observe_generative(self.machine, state, weights)
        share = 0.5 if self.algorithm.recognition == "both" else 1.0
        if self.algorithm.recognition != "sleep":
            recognition_terms(self.machine, state, share * self._coefficients(state, weights), terms)
        dreams = []
        if self.algorithm.sleeps or self.fisher == "dream":
            dreams = self._sleep(state, share, terms, observe_dreams=self.fisher == "dream")
        for regulariser in self.regularisers:
            if isinstance(regulariser, Entropy):
                strength = regulariser.at(self.steps)
                self._entropy = regulariser.add(self.machine, state, weights, strength, terms)
        terms.backward()
        changes = self._shrinkage()
        self._adapt(state, weights, dreams, share)
        self.optimizer.step()
        with torch.no_grad():
            for weight, change in changes.items():
                weight.add_(change)
        self.steps += 1
        for _ in range(self.sleep_steps - 1):
            self._sleep_step(state, share)
        return log_mean_exp(state.log_ratio, 0).mean()

    def _adapt(self, state: Wake, weights: Tensor, dreams: list[Tensor], share: float) -> None:
        """Adapt the damping if a refresh follows before the next minibatch's step, judged by the minibatch before."""
        if not (self._adapts and isinstance(self.optimizer, DAGNaturalGradient)):
            return
        previous = self._previous
        if previous is not None and self.optimizer.refreshes_within(self.sleep_steps):
            self.optimizer.adapt_damping(lambda: losses(self.machine, previous), target=TARGETS, least=LEAST_DAMPING)
        coefficients = share * weights if self.algorithm.recognition != "sleep" else None
        scale = self._dream_coefficient(share)
        self._previous = Descended(state.x, state.hidden, weights, coefficients, dreams if scale else [], scale)

    def _shrinkage(self) -> dict[Tensor, Tensor]:
        """What L1 and L2 add to the weights at this step."""
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

    def _weights(self, state: Wake) -> Tensor:
        """The weights of the generative update, (S, B), which sum to 1."""
        batch = state.x.shape[0]
        if self.algorithm.weights == "uniform":
            return torch.full_like(state.log_p, 1 / state.log_p.numel())
        power = 0.5 if self.algorithm.weights == "root" else 1.0
        weights = torch.softmax(power * state.log_ratio, dim=0).div_(batch)
        # Weights too small to change any sum become denormal numbers in products, which halve the speed of a CPU.
        return torch.threshold_(weights, torch.finfo(weights.dtype).eps ** 2, 0.0)

    def _coefficients(self, state: Wake, weights: Tensor) -> Tensor:
        """The coefficients of log q(h|x) in the recognition update by wake samples, (S, B)."""
        if self.algorithm.recognition == "reinforce":
            signal = state.log_ratio
            others = (signal.sum(0) - signal) / (self.samples - 1)
            return (signal - others) / signal.numel()
        return weights - 1 / weights.numel() if self.baseline else weights

    def _dream_coefficient(self, share: float) -> float:
        return share * self.sleep_scale if self.algorithm.sleeps else 0.0

    def _sleep(self, state: Wake, share: float, terms: Terms, *, observe_dreams: bool) -> list[Tensor]:
        coefficient, count = self._dream_coefficient(share), state.log_p.numel()
        return sleep_terms(self.machine, count, coefficient, terms, self.generator, observe_dreams=observe_dreams)

    def _sleep_step(self, state: Wake, share: float) -> None:
        """A sleep update of its own; the Fisher of q still comes from this minibatch's wake samples."""
        self.optimizer.zero_grad()
        for i, parents in enumerate([state.x, *state.hidden[:-1]]):
            self.machine.up(i, parents)
        terms = Terms()
        self._sleep(state, share, terms, observe_dreams=False)
        terms.backward()
        self.optimizer.step()

    def fit(
        self,
        data: Dataset,
        epochs: int,
        *,
        batch_size: int = 32,
        on_step: Callable[[Tensor], None] | None = None,
        on_epoch: Callable[[int, float], None] | None = None,
    ) -> None:
        """Train until `epochs` epochs are done in all, from wherever the trainer stands.

        `on_step` is given the minibatch's log-likelihood estimate as a tensor, `on_epoch` the number of epochs done
        and the mean of those estimates over the epoch (or over what was left of it after a resume).
        """
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
            "previous": None if self._previous is None else tuple(self._previous),
            "entropy": self._entropy,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved trainer stood."""
        if state.get("algorithm") != self.algorithm.name:
            raise CheckpointError(
                f"the checkpoint is of algorithm {state.get('algorithm')!r}, this trainer of {self.algorithm.name!r}."
            )
        try:
            self.machine.load_state_dict(state["machine"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.generator.set_state(state["generator"].cpu())
            device = self.machine.prior.bias.device
            self._previous = None if state.get("previous") is None else Descended(*state["previous"]).to(device)
            self._entropy = None if state.get("entropy") is None else state["entropy"].to(device)
            self.epoch, self.batch, self.steps = state["epoch"], state["batch"], state["steps"]
        except (KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this trainer: {error}") from None


def _least_samples(algorithm: Algorithm) -> int:
    """REINFORCE takes its baseline from the other samples."""
    return 2 if algorithm.recognition == "reinforce" else 1


def _check(algorithm: Algorithm, samples: int, fisher: str, sleep_steps: int, sleep_scale: float) -> None:
    """Raise a sentence for the first setting that cannot be."""
    least = _least_samples(algorithm)
    if samples < least:
        raise SettingError(f"{algorithm.name} needs at least {least} samples, not {samples}.")
    if fisher not in ("wake", "dream"):
        raise SettingError(f"fisher must be 'wake' or 'dream', not {fisher!r}.")
    if sleep_steps < 1 or not sleep_scale > 0:
        raise SettingError("sleep_steps must be at least 1 and sleep_scale positive.")
    if not algorithm.sleeps and (sleep_steps != 1 or sleep_scale != 1):
        raise SettingError(f"{algorithm.name} does not sleep; sleep_steps and sleep_scale have no meaning for it.")
