"""What was published, trained again: each experiment is a list of runs that resume.

    python benchmarks/published.py --list                              # the experiments and what is done of each
    python benchmarks/published.py mini-b-ours --rows nrws --seeds 1   # one row, one seed
    python benchmarks/published.py mnist-f --hours 2 --minutes 100     # stops after 100 minutes, goes on next time
    python benchmarks/published.py --report                            # tables and pictures of what is there

Checkpoints are in runs/published (once a minute, and at every epoch); a finished run is one line of
benchmarks/results/published.jsonl with its curve, the norms of weights and gradients over training, its settings, the
machine, versions and commit of its beginning. The last figure is of all test images with 10,000 samples where a
published one is to be compared with. It takes long and is made after the training, in parts that are kept; --final says
otherwise (1000,1000 for example).
Runs with hours have as many epochs as a short trial says will fit; all of `--hours` are processor hours of one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from extras import need
from published_jobs import BY_NAME, EVALUATED, EVALUATED_LARGE, Job
from published_machines import SIDE, machine
from tables import in_print
from timed_run import facts
from torch import Tensor

from dagfisher import inspect
from dagfisher._files import replacing
from dagfisher.datasets import DataError, Dataset
from dagfisher.errors import GradientError
from dagfisher.helmholtz import Schedule, Settings, Trainer, estimate

RESULTS = Path(__file__).parent / "results" / "published.jsonl"
TRIAL = 40
"""Steps of the trial that says how many epochs fit."""
PART = 500
"""Test images of a part of the last figure; what is done is kept."""
IMAGES = 5000
"""Images of each split with 48×48 pixels, so that an epoch of a dense machine takes a minute or two."""


class Enough(Exception):
    """The time is over; everything is saved."""


def enlarged(data: Dataset) -> Dataset:
    """The images with 48×48 pixels, the first `IMAGES` of each split."""

    def larger(images: Tensor) -> Tensor:
        parts = []
        for part in images.split(5000):
            grey = part.reshape(-1, 1, *data.shape).float()
            size = F.interpolate(grey, (SIDE, SIDE), mode="bilinear", align_corners=False)
            parts.append(size.round().to(torch.uint8).flatten(1))
        return torch.cat(parts)

    more = {split: larger(data.stored(split)[:IMAGES]) for split in ("train", "valid", "test")}
    return replace(data, name=f"{data.name} {SIDE}×{SIDE}", shape=(SIDE, SIDE), **more)


def begin(job: Job) -> tuple[Trainer, Dataset, int]:
    """The trainer, the data and the batch size of a job, at its beginning."""
    settings = Settings.resolve(**{**job.settings, "seed": job.seed, "threads": 1})
    data = settings.load_data()
    if job.bottom is None:
        return settings.build(data), data, settings.batch_size
    made = machine(job.bottom, settings.binarisation == "G", job.seed)
    trainer = Trainer(made, settings.algorithm, lr=settings.lr, samples=settings.samples, seed=job.seed)
    return trainer, enlarged(data), settings.batch_size


def epochs_of(job: Job) -> int:
    """Those that are asked for, or as many as fit."""
    if job.epochs is not None:
        return job.epochs
    assert job.hours is not None
    trainer, data, size = begin(job)
    batches = data.batches(size, seed=job.seed, epoch=0)
    for _ in range(5):
        trainer.step(next(batches))
    start = time.process_time()
    for _ in range(TRIAL):
        trainer.step(next(batches))
    epoch = (time.process_time() - start) / TRIAL * data.batch_count(size)
    return max(1, int(3600 * job.hours / (epoch * samples_on_average(job))))


def samples_on_average(job: Job) -> float:
    """The mean of the samples over the training, in those of its first step."""
    schedule = Schedule(job.settings.get("samples_schedule", "constant"))
    return sum(schedule.factor(i + 0.5, 100) for i in range(100)) / 100


def norms(trainer: Trainer) -> dict[str, float]:
    """The Euclidean norms of all weights, and of the gradients that the last minibatch left."""
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return {
        "weights": float(torch.stack([p.detach().norm() for p in parameters]).norm()),
        "gradients": float(torch.stack([g.norm() for g in gradients]).norm()) if gradients else 0.0,
    }


def run(job: Job, folder: Path, until: float, final: tuple[int, int] | None) -> dict[str, Any]:
    """The record of a job, from its checkpoint if there is one; raises `Enough` when the wall clock says so."""
    torch.set_num_threads(1)
    path = folder / f"{job.name}.pt"
    trainer, data, size = begin(job)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        trainer.load_state_dict(saved["trainer"])
        rows, epochs, seconds = saved["rows"], saved["epochs"], saved["seconds"]
        judged, on = saved.get("judged", {}), saved.get("on", facts())
    else:
        rows, epochs, seconds, judged, on = [], epochs_of(job), 0.0, {}, facts()
    x = data.evaluation("test")
    start = saved_at = time.process_time()
    steps = data.batch_count(size)

    def save() -> None:
        nonlocal saved_at
        state = {"trainer": trainer.state_dict(), "rows": rows, "epochs": epochs, "seconds": seconds}
        state |= {"judged": judged, "on": on}
        with replacing(path) as file:
            torch.save(state, file)
        saved_at = time.process_time()

    def stop_if_late() -> None:
        if time.time() > until:
            save()
            raise Enough

    def on_step(value: Tensor) -> None:
        nonlocal seconds, start
        now = time.process_time()
        seconds, start = seconds + now - start, now
        if now - saved_at > 60:
            save()
        if trainer.batch < steps:  # the last step of an epoch is saved with its row
            stop_if_late()
        start = time.process_time()

    def on_epoch(epoch: int, train: float) -> None:
        nonlocal start
        images, samples = EVALUATED if job.bottom is None else EVALUATED_LARGE
        found = estimate(trainer.machine, x[:images], samples, generator=stream(epoch)).mean
        if not math.isfinite(found):
            raise ArithmeticError(f"the test figure is {found} after epoch {epoch}")
        row = {"epoch": epoch, "seconds": round(seconds, 2), "train": train, "log_p": found, **norms(trainer)}
        rows.append(row)
        save()
        left = (epochs - epoch) * seconds / epoch
        print(f"[{left / 60:.0f} min left] {job.name}: epoch {epoch} of {epochs}, test {found:.2f}", flush=True)
        if epoch < epochs:
            stop_if_late()
        start = time.process_time()

    diverged = None
    try:
        trainer.fit(data, epochs, batch_size=size, on_step=on_step, on_epoch=on_epoch)
    except (ArithmeticError, GradientError) as error:
        diverged = f"{type(error).__name__}: {error}"
        print(f"{job.name} diverged: {error}", flush=True)
    record: dict[str, Any] = {"experiment": job.experiment, "row": job.row, "name": job.name, "seed": job.seed}
    record |= {"epochs": epochs, "seconds": seconds, "batch": size, "published": job.published}
    record |= {"settings": {name: value for name, value in job.settings.items() if name != "epochs"}, "rows": rows}
    if diverged is not None:
        return {**record, "diverged": diverged, "on": on}
    if job.angles:
        record["angles"] = angles(trainer, data, size, job)
    wanted = job.final if final is None else final
    if wanted is not None and job.final is not None:
        images, samples = wanted
        parts = judged.setdefault(f"{images} {samples}", [])

        def on_part(share: float, seconds_left: float) -> None:
            print(f"[{seconds_left / 60:.0f} min left] {job.name}: {share:.0%} of the last figure", flush=True)
            if share < 1:
                stop_if_late()

        record["final"] = last_figure(trainer, x[:images], samples, parts, on_part)
    return {**record, "on": on}


def last_figure(
    trainer: Trainer, x: Tensor, samples: int, parts: list[Tensor], on_part: Callable[[float, float], None]
) -> dict[str, Any]:
    """The log-likelihood of images; `parts` has what is done, and `on_part` is told the share done and seconds left."""
    pieces, before, start = x.split(PART), len(parts), time.process_time()
    for number in range(before, len(pieces)):
        parts.append(estimate(trainer.machine, pieces[number], samples, generator=stream(number)).log_p)
        each = (time.process_time() - start) / (number + 1 - before)
        on_part((number + 1) / len(pieces), each * (len(pieces) - number - 1))
    log_p = torch.cat(parts).double()
    error = float(log_p.std()) / math.sqrt(len(log_p))
    return {"log_p": float(log_p.mean()), "standard_error": error, "images": len(log_p), "samples": samples}


def angles(trainer: Trainer, data: Dataset, size: int, job: Job) -> dict[str, float]:
    """Degrees between the natural gradients of a kept Fisher and of a fresh one, by steps since the refresh."""
    batches = (x for epoch in range(10**6) for x in data.batches(size, seed=job.seed + 1000, epoch=epoch))
    optimizer: Any = trainer.optimizer
    for group, rate in zip(optimizer.param_groups, [job.settings["lr"]] * 2, strict=True):
        group["lr"] = rate  # as it was before it fell
    found = inspect.staleness(optimizer, lambda: trainer.backward(next(batches)), job.angles)
    return {str(age): angle for age, angle in zip(found.ages, found.whole, strict=True)}


def stream(number: int) -> torch.Generator:
    """Fixed random numbers."""
    return torch.Generator().manual_seed(number)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The records by name, the last of each."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {record["name"]: record for record in records}


def wanted(names: list[str], rows: str | None, seeds: int, hours: float) -> list[Job]:
    """The jobs of the experiments, first all that have the first seed."""
    jobs = [job for name in names for job in BY_NAME[name].jobs(hours)]
    chosen = None if rows is None else [row.strip() for row in rows.split(";")]
    jobs = [job for job in jobs if job.seed <= seeds and (chosen is None or job.row in chosen)]
    if not jobs:
        sys.exit("no run of these experiments has such a row and seed; --list shows the rows.")
    return sorted(jobs, key=lambda job: job.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="names that --list shows")
    parser.add_argument("--list", action="store_true", help="the experiments, and how many runs of each are done")
    parser.add_argument("--rows", help="of the experiments, with semicolons between them (all)")
    parser.add_argument("--seeds", type=int, default=3, help="of each row (3, where it has as many)")
    parser.add_argument("--hours", type=float, default=2.0, help="of a long run (2)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many, wherever it is")
    parser.add_argument("--final", help="images,samples of the last figure (10000,10000)")
    parser.add_argument("--report", action="store_true", help="only the tables and pictures of what is there")
    parser.add_argument("--folder", type=Path, default=Path("runs/published"), help="for the checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    arguments = parser.parse_args()
    need([] if arguments.list else ["matplotlib"])
    from published_report import draw, overview, tables

    if not (arguments.list or arguments.report):
        if not arguments.experiments or not set(arguments.experiments) <= BY_NAME.keys():
            parser.error("name an experiment that --list shows.")
        final = tuple(map(int, arguments.final.split(","))) if arguments.final else None
        until = time.time() + 60 * arguments.minutes
        try:
            for job in wanted(arguments.experiments, arguments.rows, arguments.seeds, arguments.hours):
                if job.name in read(arguments.out):
                    continue
                record = run(job, arguments.folder, until, final)  # type: ignore[arg-type]
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
        except (Enough, KeyboardInterrupt):
            print("stopped; the same command goes on where this one was.")
        except DataError as error:
            sys.exit(f"{error}")
    records = read(arguments.out)
    print(overview(records, arguments.hours, rows=True) if arguments.list else in_print(tables(records)))
    if not arguments.list:
        draw(records, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
