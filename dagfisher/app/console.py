"""Training that is watched from a terminal: a live bar, a line for each row, Ctrl-C, pictures, TensorBoard."""

from __future__ import annotations

import math
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from .._processes import is_first, is_launched
from .._text import with_error
from ..errors import MissingExtraError
from ..helmholtz.metrics import Row
from ..helmholtz.runs import Run
from ..inspect import numbers, scalars
from ..optim import DAGNaturalGradient
from .progress import Bar, duration, warn

REDRAW_SECONDS = 60.0
LEAST_LEFT = 60.0
"""Seconds; a line about a row says how much time is left if it is more, and no bar says so."""
NOTE_SECONDS = 0.5
"""Between two notes behind the bar, which wait for the device."""


def watch(
    run: Run,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    wall: float = math.inf,
    tensorboard: bool = False,
    pictures: bool = True,
) -> bool:
    """Train a run to its end while someone watches; False if Ctrl-C ended it.

    Args:
        run: is trained in place and saved.
        seconds: of training, after which it ends with a row.
        steps: in all, after which it ends with a row.
        wall: seconds in here, evaluations included, after which it ends with a row.
        tensorboard: send the rows to TensorBoard too.
        pictures: draw curves.png and samples.png, at the end and now and then.
    """
    send = board(run) if tensorboard and is_first() else None
    warned = False
    began = drawn = time.monotonic()

    def done() -> float:
        return float(run.steps) if seconds is None else run.seconds

    def enough() -> bool:
        spent = seconds is not None and run.seconds >= seconds
        there = steps is not None and run.steps >= steps
        return spent or there or time.monotonic() - began >= wall

    total = seconds or steps or run.settings.epochs * run.batches
    with stoppable() as stop, Bar(total, run.settings.algorithm, initial=done()) as bar:
        shown, noted = done(), -math.inf

        def on_step(run: Run) -> None:
            nonlocal shown, noted
            if run.steps % 10 == 0:
                due = bar.live and time.monotonic() - noted >= NOTE_SECONDS
                bar.update(done() - shown, note(run) if due else None)
                shown, noted = done(), time.monotonic() if due else noted

        def on_row(row: Row) -> None:
            nonlocal drawn, warned
            left = 0.0 if bar.live else bar.left(done()) or 0.0
            bar.line(describe(run, row) + (f"  {duration(left)} left" if left >= LEAST_LEFT else ""))
            worse = fallen(run)
            if worse is not None and not warned and is_first():
                bar.warn(worse)
            warned = worse is not None
            if send is not None:
                send(row)
            if pictures and is_first() and time.monotonic() - drawn > REDRAW_SECONDS:
                draw(run)
                drawn = time.monotonic()

        run.train(enough=enough, stop=stop, on_step=on_step, on_row=on_row)
        interrupted = stop() and not run.finished
    if pictures and is_first():
        draw(run)
    return not interrupted


def program() -> str:
    """The words that call this program, for a line that the user may copy."""
    if shutil.which("dagfisher") is not None:
        return "dagfisher"
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.stem == "dagfisher" else "python -m dagfisher"


def note(run: Run) -> str:
    """What is shown behind the bar: where the training is, its likelihood since the last row, rate and damping."""
    parts = [f"epoch {run.steps / run.batches:.2f}"]
    if (likelihood := run.train_log_likelihood) is not None:
        parts.append(f"train {likelihood:.2f}")
    values = run.trainer.optimizer_values()
    parts += [f"{name} {values[key]:.2g}" for key, name in (("lr", "rate"), ("damping", "damping")) if key in values]
    return ", ".join(parts)


def describe(run: Run, row: Row) -> str:
    """One line of text about a row."""
    parts = [
        f"{run.settings.algorithm} {row.data}",
        f"epoch {row.epoch:.0f}" if row.steps % run.batches == 0 else f"epoch {row.epoch:.2f}",
        f"{row.seconds:.1f} s",
        f"train {row.train_log_likelihood:.2f}",
        f"valid {row.valid_log_likelihood:.2f}",
        f"test {with_error(row.test_log_likelihood, row.test_standard_error)}",
    ]
    if row.kl is not None:
        parts.append(f"KL {row.kl:.4f}")
    return "  ".join(parts)


def fallen(run: Run) -> str | None:
    """A sentence if the run's machine is worse than before it was trained, as its last row has it; else None."""
    if run.untrained is None or not run.untrained.below or not run.rows:
        return None
    last = run.rows[-1]
    figures = (
        f"its log-likelihood of the validation images ({last.valid_log_likelihood:.2f}) is below that of the untrained "
        f"machine ({run.untrained.mean:.2f})"
    )
    if run.untrained.train_below:
        return f"{figures}: --lr {run.settings.lr:g} is probably too high; try a lower one."
    return f"{figures}, while that of the training images is not: it learns these by heart; more images would help."


def draw(run: Run) -> None:
    """Draw the pictures of a run, or print why there are none."""
    try:
        if run.rows:
            run.draw()
    except MissingExtraError as error:
        warn(str(error))


def require_tensorboard() -> None:
    """Raise a `MissingExtraError` if rows cannot be sent to TensorBoard."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "TensorBoard is not installed; install it with pip install 'dagfisher[tensorboard]'."
        ) from None


def board(run: Run) -> Callable[[Row], None]:
    """A function that sends rows to TensorBoard, in the run's folder; rows after the checkpoint are sent again."""
    require_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(run.folder) / "tensorboard"
    writer: Any = SummaryWriter(str(folder), purge_step=run.steps + 1)

    def send(row: Row) -> None:
        for split in ("train", "valid", "test"):
            writer.add_scalar(f"log-likelihood/{split}", getattr(row, f"{split}_log_likelihood"), row.steps)
        if row.kl is not None:
            writer.add_scalar("KL", row.kl, row.steps)
        writer.add_scalar("effective samples", row.effective_samples, row.steps)
        for name, value in run.trainer.optimizer_values().items():
            writer.add_scalar(f"optimizer/{name}", value, row.steps)
        if isinstance(run.trainer.optimizer, DAGNaturalGradient):
            scalars(writer)({**numbers(run.trainer.optimizer), "step": row.steps})
        writer.flush()

    return send


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed inside; pressed twice, it interrupts at once.

    torchrun, when it is interrupted, asks its processes to end in another way, which counts as Ctrl-C.
    """
    pressed = False
    kinds = [signal.SIGINT, signal.SIGTERM] if is_launched() else [signal.SIGINT]
    previous = {number: signal.getsignal(number) for number in kinds}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if is_first():
            warn("stopping after this step; press Ctrl-C again to stop at once.")

    for number in kinds:
        signal.signal(number, handle)
    try:
        yield lambda: pressed
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
