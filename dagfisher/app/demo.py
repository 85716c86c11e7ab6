"""The demonstration: one machine, trained by RWS and by NRWS on miniMNIST for the same number of seconds."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from .._text import counted, table, with_error
from ..helmholtz.evaluate import Estimate
from ..helmholtz.pictures import display, run_curve
from ..helmholtz.runs import Run
from ..helmholtz.settings import Settings
from ..plots import Curve, draw_curves, draw_panels, require_matplotlib
from .console import program, watch
from .progress import Bar

SECONDS = 24.0
"""Of training by each algorithm, about: a slow machine does fewer epochs in them."""
WALL_SECONDS = 58.0
"""In which each algorithm trains, with the evaluations on the way; should it take longer, it ends there."""
WARM_UP, TIMED = 64, 100
"""Steps of a trainer that is thrown away: those before the clock starts, and those that it counts."""
EVERY = {"rws": 521, "nrws": 250}
"""Steps between two points of a curve: a third and a half of an epoch."""
FINAL_SECONDS = 6.0
"""Of the final evaluation, for each algorithm, about; a slow machine evaluates fewer examples."""
FINAL_EXAMPLES, FINAL_SAMPLES = 2000, 500
LEVEL = 0.05
"""Nats; who is ahead by less is not ahead."""


def demo(out: Path) -> int:
    """Train, print a table, write curves.png and samples.png into a new folder, and say what to try next.

    Args:
        out: the folder; with a number behind its name if it exists.

    Returns:
        The exit code, which is 0, or 130 after Ctrl-C.
    """
    require_matplotlib()
    out = unused(out)
    print("One machine with layers 196-100-50-20-10-10, trained on miniMNIST by two algorithms from the same start.")
    print("RWS follows plain gradients; NRWS multiplies them by the inverse of the Fisher matrix.")
    print("Each runs as it comes, for the same seconds, in which its learning rate falls to zero.", flush=True)
    lines, curves, panels, finals = [], [], [], []
    examples = None
    for algorithm, epochs in affordable(SECONDS).items():
        name = display(algorithm)
        print(f"\n{name}:")
        run = Run.create(out / algorithm, demo_settings(algorithm, epochs))
        if not watch(run, wall=WALL_SECONDS, pictures=False):
            print(f"stopped; {run.folder} can be resumed.")
            return 130
        final = final_estimate(run, examples)
        examples = len(final.log_p)
        last = run.rows[-1]
        figure = with_error(final.mean, final.standard_error)
        lines.append([name, f"{last.epoch:.1f}", f"{last.seconds:.0f}", figure])
        curves.append(run_curve(name, run.rows))
        finals.append(final.mean)
        data, made, dreams = run.panels()
        after = f"{name}, {counted(last.seconds, 'second', '.0f')}"
        made, dreams = made._replace(title=f"{after}: reconstructions"), dreams._replace(title=f"{after}: dreams")
        panels.append([data, made, dreams])
    label, shape = run.data.label, run.data.shape
    print(f"\n{outcome(curves, finals)}\n")
    print(table(["algorithm", "epochs", "seconds", f"test log-likelihood, {label}"], lines))
    print(f"({examples:,} test images, {FINAL_SAMPLES} samples each, ± standard error; higher is better)\n")
    title = f"{label}: the same machine, two algorithms"
    draw_curves(curves, out / "curves.png", title=title, quantity="test log-likelihood (nats)")
    draw_panels(panels, shape, out / "samples.png", title=f"{label}: what the machines remember and dream")
    print(f"Pictures: {out / 'curves.png'} and {out / 'samples.png'}\n")
    print(advice(out))
    return 0


def demo_settings(algorithm: str, epochs: int) -> Settings:
    """The algorithm's own settings, on one thread, which is enough for small layers, and some points for its curve."""
    return Settings.resolve(
        data="mini-mnist",
        algorithm=algorithm,
        epochs=epochs,
        eval_every=EVERY[algorithm],
        eval_examples=500,
        eval_samples=50,
        threads=1,
    )


def affordable(budget: float) -> dict[str, int]:
    """How many epochs of RWS take about that long here, and how many of NRWS no longer than these."""
    paces = {algorithm: epoch_seconds(demo_settings(algorithm, 1)) for algorithm in ("rws", "nrws")}
    plain = max(1, round(budget / paces["rws"]))
    return {"rws": plain, "nrws": max(1, int(plain * paces["rws"] / paces["nrws"]))}


def epoch_seconds(settings: Settings) -> float:
    """The seconds that an epoch takes here, by some steps of a trainer that is thrown away."""
    torch.set_num_threads(settings.threads)
    data = settings.load_data()
    trainer = settings.build(data)
    batches = data.batches(settings.batch_size, seed=settings.seed, epoch=0)
    began = time.perf_counter()
    for number, x in zip(range(WARM_UP + TIMED), batches, strict=False):
        if number == WARM_UP:
            began = time.perf_counter()
        trainer.step(x)
    return (time.perf_counter() - began) / TIMED * data.batch_count(settings.batch_size)


def outcome(curves: Sequence[Curve], finals: Sequence[float]) -> str:
    """Who is ahead at the end and by how much; and, if it is so, since when.

    Args:
        curves: of two runs.
        finals: their values at the end, better known than the last points of the curves.
    """
    order = sorted(zip(finals, curves, strict=True), key=lambda pair: -pair[0])
    (best, ahead), (value, behind) = order
    times = [curve.seconds[-1] for _, curve in order]
    fair = "at equal seconds " if max(times) < 1.15 * min(times) else ""
    after, later = (counted(each, "second", ".0f") for each in times)
    figures = f"{best:.2f} after {after} of training, {value:.2f} after {later}"
    if best - value < LEVEL:
        text = f"{fair}{ahead.label} and {behind.label} are level: {figures}."
        return text[0].upper() + text[1:]
    text = f"{fair}{ahead.label} is {counted(best - value, 'nat', '.1f')} ahead of {behind.label}: {figures}."
    passed = next((s for s, v in zip(ahead.seconds, ahead.values, strict=True) if v >= behind.values[-1]), None)
    if passed is not None and passed < 0.9 * times[1]:
        text += f" It was there after {counted(passed, 'second', '.0f')}."
    return text[0].upper() + text[1:]


def final_estimate(run: Run, examples: int | None) -> Estimate:
    """The figure of the table, from so many test images, or as many as there is time for."""
    if examples is None:
        began = time.perf_counter()
        run.estimate(examples=50, samples=FINAL_SAMPLES)
        affordable = int(FINAL_SECONDS * 50 / (time.perf_counter() - began))
        examples = max(100, min(FINAL_EXAMPLES, affordable // 100 * 100))
    with Bar(examples, "evaluating", unit="example") as bar:
        return run.estimate(examples=examples, samples=FINAL_SAMPLES, progress=bar.update)


def unused(out: Path) -> Path:
    """The folder, or the first of its name with a number that does not exist yet."""
    number, folder = 1, out
    while folder.exists():
        number += 1
        folder = out.with_name(f"{out.name}-{number}")
    return folder


def advice(out: Path) -> str:
    """Commands to try next, each with its purpose."""
    call, nrws = program(), shlex.quote(str(out / "nrws"))
    commands = {
        f"{call} train --resume --out {nrws} --epochs 20": "let it learn on",
        f"{call} evaluate {nrws} --samples 10000 --examples 500": "a figure as papers report it",
        f"{call} train --algorithm nrws --update-every 1 --out runs/fresh": "a fresh Fisher matrix at each step",
        f"{call} train --algorithm bihm --epochs 5 --out runs/bihm": "another algorithm",
        f"{call} compare {shlex.quote(str(out))}/* runs/* --out runs/compare.png": "all of them in one picture",
        f"{call} algorithms": "what else there is; also: data, --help",
        "examples/nrws_from_scratch.py": "the whole algorithm, in under 100 lines",
    }
    width = max(map(len, commands))
    lines = [f"  {command.ljust(width)}  # {purpose}" for command, purpose in commands.items()]
    return "\n".join(["What to try next:", *lines])
