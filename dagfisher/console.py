"""Training that is watched from a terminal: a live bar, a line for each row, Ctrl-C, pictures, TensorBoard."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from .errors import MissingExtraError
from .helmholtz.runs import Row, Run
from .progress import Bar, warn

REDRAW_SECONDS = 60.0


def watch(run: Run, *, seconds: float = math.inf, tensorboard: bool = False, redraw: bool = True) -> bool:
    """Train a run to its end, or for so many seconds of training; whether it was left to itself (no Ctrl-C)."""
    report = board(run) if tensorboard else None
    drawn = time.monotonic()
    with stoppable() as stop, Bar(_amount(run, seconds), run.settings.algorithm, initial=run.steps) as bar:
        before = run.seconds if seconds < math.inf else float(run.steps)

        def on_step(run: Run) -> None:
            nonlocal before
            now = run.seconds if seconds < math.inf else float(run.steps)
            if run.steps % 10 == 0:
                bar.update(now - before, f"epoch {run.steps / run.batches:.2f}")
                before = now

        def on_row(row: Row) -> None:
            nonlocal drawn
            bar.line(describe(run, row))
            if report is not None:
                report(row)
            if redraw and time.monotonic() - drawn > REDRAW_SECONDS:
                draw(run)
                drawn = time.monotonic()

        run.train(seconds=seconds, on_step=on_step, on_row=on_row, stop=stop)
        stopped = stop() and not run.finished
    if redraw:
        draw(run)
    return not stopped


def describe(run: Run, row: Row) -> str:
    """The line of an epoch."""
    parts = [
        f"{run.settings.algorithm} {row.data}",
        f"epoch {row.epoch:g}/{run.settings.epochs}" if row.epoch.is_integer() else f"epoch {row.epoch:.2f}",
        f"{row.seconds:.1f} s",
        f"train {row.train_log_likelihood:.2f}",
        f"valid {row.valid_log_likelihood:.2f}",
        f"test {row.test_log_likelihood:.2f} ± {row.test_standard_error:.2f}",
    ]
    if row.kl is not None:
        parts.append(f"KL {row.kl:.4f}")
    return "  ".join(parts)


def draw(run: Run) -> None:
    """The pictures of a run, or a sentence on why there are none."""
    try:
        if run.rows:
            run.draw()
    except MissingExtraError as error:
        warn(str(error))


def board(run: Run) -> Callable[[Row], None]:
    """A function that sends rows to TensorBoard, in the run's folder; rows after the checkpoint are sent again."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError(
            "TensorBoard is not installed; install it with pip install 'dagfisher[tensorboard]'."
        ) from None
    folder = Path(run.folder) / "tensorboard"
    writer: Any = SummaryWriter(str(folder), purge_step=run.steps + 1)  # type: ignore[no-untyped-call]

    def send(row: Row) -> None:
        for split in ("train", "valid", "test"):
            writer.add_scalar(f"log-likelihood/{split}", getattr(row, f"{split}_log_likelihood"), row.steps)
        if row.kl is not None:
            writer.add_scalar("KL", row.kl, row.steps)
        writer.flush()

    return send


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed inside; pressed twice, it interrupts at once."""
    pressed = False
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warn("stopping after this step; press Ctrl-C again to stop at once.")

    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def _amount(run: Run, seconds: float) -> float:
    """What the bar counts to: steps, or seconds of training if those are what ends it."""
    return seconds if seconds < math.inf else run.settings.epochs * run.batches
