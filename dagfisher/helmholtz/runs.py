"""A run: training in a folder that can be left at any moment and continued.

The checkpoint is the truth. It holds the trainer, the seconds trained and every row of the metrics, and replaces its
predecessor whole; the other files are written from it. So a killed run has lost the steps since its last checkpoint and
nothing else, and repeats exactly those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import replacing
from .._processes import launched
from .._text import counted
from ..datasets import Dataset, Description, Split
from ..errors import CheckpointError, DagFisherError, NonFiniteError, SettingError, ShapeError
from ..plots import Panel
from .evaluate import Estimate, estimate
from .folders import CONFIG, holds_run, is_part, read_config, read_settings, write_config
from .machine import HelmholtzMachine
from .metrics import METRICS, Row, write_rows
from .pictures import display, draw_run, run_panels
from .settings import Settings
from .shown import run_html
from .untrained import EXAMPLES, Untrained

__all__ = ["CHECKPOINT", "CONFIG", "Run", "Stopped", "holds_run", "read_settings"]

CHECKPOINT = "checkpoint.pt"
DREAMS, FRAMES = 16, 60
"""Images in each frame of the film of dreams, and the most frames that are kept."""
_MAY_CHANGE = ("epochs", "checkpoint_every")


class Stopped(Exception):
    """Training ended between two steps because it was asked to; the run is saved."""


class Run:
    """A folder with ``config.json``, ``metrics.csv``, ``checkpoint.pt``, ``curves.png`` and ``samples.png``.

    A run is made by `create` and trained by `train`, and can be stopped or killed at any moment. After that, `resume`
    gives it back to be trained further, and `open` to be looked at. `estimate` and `draw` work at any time.

    Where ``torchrun`` started several processes, all of them call the same methods, share the work, and the first one
    writes the files.

    A run that is opened knows the label, the shape and the sizes of its data from its ``config.json``; the data
    themselves are loaded when they are first asked for.
    """

    def __init__(self, folder: Path, settings: Settings, description: Description | None = None) -> None:
        self.folder = folder
        self.settings = settings
        self._expected = description
        self.description = description or self.data.description
        self.trainer = settings.build(self.description)
        self.processes = self.trainer.processes
        self.rows: list[Row] = []
        self.seconds = 0.0
        self.batches = -(-self.description.sizes[0] // settings.batch_size)
        self.untrained: Untrained | None = None
        self.film: dict[int, Tensor] = {}
        """Dreams from one fixed noise by the steps done, (16, pixels) of grey values from 0 to 255; at most 60."""
        self._total = torch.zeros((), dtype=torch.float64, device=settings.device)
        self._count = 0
        self._saved = time.monotonic()

    @classmethod
    def create(cls, folder: str | Path, settings: Settings) -> Run:
        """A new run.

        Args:
            folder: must not exist or must be empty.
            settings: made by :meth:`Settings.resolve`.
        """
        folder = Path(folder)
        processes = launched()
        processes.only_first(lambda: _require_free(folder))
        run = processes.together(lambda: cls(folder, settings))
        try:
            processes.only_first(lambda: write_config(folder, settings, run.description))
        except OSError:
            run._withdraw()
            raise
        return run

    @classmethod
    def open(cls, folder: str | Path, **given: Any) -> Run:
        """The run in a folder as its checkpoint has it; nothing is written.

        Args:
            folder: of the run.
            given: settings; ``epochs`` and ``checkpoint_every`` may be new, the others only as they are.
        """
        return launched().together(lambda: cls._opened(Path(folder), given))

    @classmethod
    def _opened(cls, folder: Path, given: dict[str, Any]) -> Run:
        saved, description = read_config(folder)
        for name in saved.differences(given):
            if name not in _MAY_CHANGE:
                raise SettingError(
                    f"{folder} was started with {name} {saved.as_dict()[name]!r}; a resumed run keeps its settings "
                    f"(only {' and '.join(_MAY_CHANGE)} may change)."
                )
        run = cls(folder, Settings.resolve(**{**saved.as_dict(), **given}), description)
        run._load()
        if run.steps > run.settings.epochs * run.batches:
            raise SettingError(
                f"{folder} has already done {counted(run.steps / run.batches, 'epoch')}; give at least as many."
            )
        return run

    @classmethod
    def resume(cls, folder: str | Path, **given: Any) -> Run:
        """The run that `open` gives, to be trained further; its files are brought in line with its checkpoint.

        Args:
            folder: of the run.
            given: settings, as for `open`.
        """
        run = cls.open(folder, **given)

        def in_line() -> None:
            for part in filter(is_part, run.folder.iterdir()):
                part.unlink(missing_ok=True)
            write_config(run.folder, run.settings, run.data.description)
            write_rows(run.folder, run.rows)

        run.processes.only_first(in_line)
        return run

    @functools.cached_property
    def data(self) -> Dataset:
        """The dataset, on the device; loaded when it is first asked for."""
        data = self.settings.load_data()
        if self._expected not in (None, data.description):
            was, now = (f"{d.label}, {d.shape[0]}×{d.shape[1]}, {d.sizes}" for d in (self._expected, data.description))
            raise SettingError(f"{self.folder} was trained on other data: {was}; {self.settings.data} is now {now}.")
        return data

    @property
    def machine(self) -> HelmholtzMachine:
        """The machine that is trained."""
        return self.trainer.machine

    @property
    def steps(self) -> int:
        """Minibatches done."""
        return self.trainer.epoch * self.batches + self.trainer.batch

    @property
    def train_log_likelihood(self) -> float | None:
        """The mean over the steps since the last row, while the machine was learning; None if there was no step."""
        return float(self._total) / self._count if self._count else None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done and evaluated."""
        return self.steps >= self.settings.epochs * self.batches and not self._row_due()

    def train(
        self,
        *,
        enough: Callable[[], bool] | None = None,
        stop: Callable[[], bool] | None = None,
        on_step: Callable[[Run], None] | None = None,
        on_row: Callable[[Row], None] | None = None,
    ) -> bool:
        """Train to the last epoch; True if that was reached.

        Sets PyTorch's number of threads, which the exact result depends on. However it ends, the run is saved.

        Args:
            enough: is asked after each step; True in any process ends the training with a last row.
            stop: is asked after each step; True in any process ends the training at once, without a row.
            on_step: is given the run after each step.
            on_row: is given each row of the metrics.
        """
        torch.set_num_threads(self.settings.threads)
        self._saved = time.monotonic()
        if self.trainer.steps == 0 and self.untrained is None:
            x = self.data.evaluation("valid")[: min(EXAMPLES, self.settings.eval_examples)]
            samples, generator = self.settings.eval_samples, self.settings.stream("untrained")
            found = estimate(self.machine, x, samples, generator=generator, processes=self.processes)
            self.untrained = Untrained(found.log_p)
        began = time.perf_counter()

        def after_step(value: Tensor) -> None:
            nonlocal began
            if self._pauses():
                self._settle()
            self.seconds += time.perf_counter() - began
            self._total += value
            self._count += 1
            if on_step is not None:
                on_step(self)
            asked = stop is not None and stop(), enough is not None and enough(), self._save_due()
            stopping, ending, saving = self.processes.any(asked, self._total.device)
            evaluated = not stopping and (self._row_due() or ending)
            if evaluated:
                self._add_row(on_row)
            elif stopping or saving:
                self.save()
            if evaluated and not ending:  # asked while the row was evaluated
                (stopping,) = self.processes.any([stop is not None and stop()], self._total.device)
            if stopping or ending:
                raise Stopped
            began = time.perf_counter()

        if self._row_due():  # stopped between the last step and its row
            self._add_row(on_row)
            began = time.perf_counter()
        try:
            self.trainer.fit(self.data, self.settings.epochs, batch_size=self.settings.batch_size, on_step=after_step)
        except Stopped:
            return self.finished
        except (DagFisherError, OSError):
            self._withdraw()
            raise
        self.save()
        return True

    def estimate(
        self,
        split: Split = "test",
        *,
        examples: int | None = None,
        samples: int | None = None,
        seed: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Estimate:
        """Log-likelihoods of the first examples of a split, by default as for a row of the metrics.

        Args:
            split: ``"train"``, ``"valid"`` or ``"test"``.
            examples: how many; ``eval_examples`` if not given.
            samples: for each; ``eval_samples`` if not given.
            seed: of the draws; the run's own, which changes with its steps, if not given.
            progress: is told after each part how many examples it had.
        """
        x = self.data.evaluation(split)[: examples or self.settings.eval_examples]
        generator = self.settings.stream(f"{split} {self.steps}" if seed is None else f"evaluation {seed}")
        return estimate(
            self.machine,
            x,
            samples or self.settings.eval_samples,
            generator=generator,
            progress=progress,
            processes=self.processes,
        )

    def exact_kl(self) -> float | None:
        """KL(data ‖ machine) in nats, or None unless both are known exactly."""
        distribution = self.data.distribution
        if distribution is None:
            return None
        try:
            return float(distribution.kl_from(self.machine.exact_log_likelihood(distribution.support)))
        except ShapeError:
            return None

    def draw(self) -> tuple[Any, Any]:
        """Write curves.png and samples.png, and return their matplotlib figures, which a notebook shows."""
        title = f"{display(self.settings.algorithm)} on {self.data.label}"
        algorithm = self.settings.algorithm
        return draw_run(self.folder, self.rows, self.panels(), self.data.shape, title=title, algorithm=algorithm)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        epochs = self.steps / self.batches, self.settings.epochs
        return run_html(str(self.folder), self.settings.algorithm, self.description.label, epochs, self.rows)

    def panels(self) -> list[Panel]:
        """Test images, reconstructions and dreams; the same for the same state of the run."""
        return run_panels(self.machine, self.data, self.settings.stream(f"pictures {self.steps}"))

    def save(self) -> None:
        """Replace the checkpoint, then the metrics; the first process does, and all must call it."""
        self._require_finite()
        self.processes.only_first(self._write)
        self._saved = time.monotonic()

    def _write(self) -> None:
        state = {
            "trainer": self.trainer.state_dict(),
            "seconds": self.seconds,
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "total": self._total,
            "count": self._count,
            "film": self.film,
            "untrained": None if self.untrained is None else self.untrained.state_dict(),
        }
        with replacing(self.folder / CHECKPOINT) as file:
            torch.save(state, file)
        write_rows(self.folder, self.rows)

    def _load(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():  # killed before the first checkpoint
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.trainer.load_state_dict(state["trainer"])
            self.seconds = float(state["seconds"])
            self.rows = [Row(**row) for row in state["rows"]]
            self._total = state["total"].to(self.settings.device)
            self._count = int(state["count"])
            self.film = dict(state.get("film", {}))
            self.untrained = Untrained.from_state(state.get("untrained"))
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
        except (OSError, EOFError, RuntimeError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{path} is damaged or is not a checkpoint of a run ({reason}).") from None

    def _require_finite(self) -> None:
        if not bool(self._total.isfinite()):
            raise NonFiniteError(
                f"the log-likelihood is no longer finite at step {self.steps}; lower the learning rate. "
                f"The checkpoint, if there is one, stays at the last good state."
            )

    def _withdraw(self) -> None:
        """Remove the files of a run that failed before its first checkpoint, so that the folder can be used again."""
        with contextlib.suppress(OSError):
            if self.processes.first and not (self.folder / CHECKPOINT).exists():
                for name in (CONFIG, METRICS):
                    (self.folder / name).unlink(missing_ok=True)
                self.folder.rmdir()

    def _pauses(self) -> bool:
        """Whether something other than the next step follows now."""
        return self._row_due() or self._save_due()

    def _save_due(self) -> bool:
        return time.monotonic() - self._saved >= self.settings.checkpoint_every

    def _row_due(self) -> bool:
        """Whether the machine is to be evaluated after this step and has not been."""
        steps = self.steps
        if steps == 0 or (self.rows and self.rows[-1].steps == steps):
            return False
        every = self.settings.eval_every
        within = steps % self.batches
        return within == 0 or (every is not None and within % every == 0)

    def _add_row(self, on_row: Callable[[Row], None] | None) -> None:
        self._settle()
        self._require_finite()
        valid, test = self.estimate("valid"), self.estimate("test")
        train = self.train_log_likelihood
        assert train is not None
        row = Row(
            data=self.data.label,
            epoch=self.steps / self.batches,
            steps=self.steps,
            seconds=self.seconds,
            train_log_likelihood=train,
            valid_log_likelihood=valid.mean,
            valid_standard_error=_known(valid.standard_error),
            test_log_likelihood=test.mean,
            test_standard_error=_known(test.standard_error),
            effective_samples=float(test.effective_samples.mean()),
            kl=self.exact_kl(),
            **self.trainer.regulariser_values(),
            **self.trainer.optimizer_values(),
        )
        self.rows.append(row)
        if self.untrained is not None:
            self.untrained.judge(valid.log_p, train)
        self._dream()
        self._total.zero_()
        self._count = 0
        self.save()
        if on_row is not None:
            on_row(row)

    def _dream(self) -> None:
        """Add a frame to the film; where they are too many, every second one goes."""
        dreams = self.machine.sample(DREAMS, means=True, generator=self.settings.stream("film"))
        self.film[self.steps] = dreams.clamp(0, 1).mul(255).round().byte().cpu()
        if len(self.film) > FRAMES:
            first, *later = self.film
            self.film = {steps: self.film[steps] for steps in (first, *later[1::2])}

    def _settle(self) -> None:
        """Wait for the device, so that the clock tells what was done."""
        if self.settings.device.startswith("cuda"):
            torch.cuda.synchronize()


def _require_free(folder: Path) -> None:
    """Raise unless a new run may be made in this folder."""
    if holds_run(folder):
        raise SettingError(f"{folder} already holds a run; resume it, or give another folder.")
    if folder.exists() and (not folder.is_dir() or any(not is_part(path) for path in folder.iterdir())):
        raise SettingError(f"{folder} exists and is not an empty folder; give another one.")


def _known(error: float) -> float | None:
    return None if math.isnan(error) else error
