"""The demonstration: one machine, trained by RWS and by NRWS on miniMNIST for the same number of epochs."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import numpy as np

from .._text import table, with_error
from ..helmholtz.evaluate import Estimate
from ..helmholtz.pictures import display, run_curve
from ..helmholtz.runs import Run
from ..helmholtz.settings import Settings
from ..plots import Curve, draw_curves, draw_panels, require_matplotlib
from .console import program, watch
from .progress import Bar

EPOCHS = 6
"""At most; a slow machine does fewer."""
RWS_SECONDS = 28.0
"""Of training by RWS; NRWS then takes as many steps as RWS could."""
WALL_SECONDS = {"rws": 34.0, "nrws": 54.0}
"""In which each algorithm trains, with the evaluations on the way."""
FINAL_SECONDS = 6.0
"""Of the final evaluation, for each algorithm, about; a slow machine evaluates fewer examples."""
FINAL_EXAMPLES, FINAL_SAMPLES = 2000, 500


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
    lines, curves, panels = [], [], []
    steps, examples = None, None
    for algorithm, wall in WALL_SECONDS.items():
        name = display(algorithm)
        print(f"\n{name}:")
        run = Run.create(out / algorithm, demo_settings(algorithm))
        if not watch(run, seconds=None if steps else RWS_SECONDS, steps=steps, wall=wall, pictures=False):
            print(f"stopped; {run.folder} can be resumed.")
            return 130
        steps = run.steps
        final = final_estimate(run, examples)
        examples = len(final.log_p)
        last = run.rows[-1]
        figure = with_error(final.mean, final.standard_error)
        lines.append([name, f"{last.epoch:.1f}", f"{last.seconds:.0f}", figure])
        curves.append(run_curve(name, run.rows))
        data, made, dreams = run.panels()
        after = f"{name}, {last.epoch:.1f} epochs"
        made, dreams = made._replace(title=f"{after}: reconstructions"), dreams._replace(title=f"{after}: dreams")
        panels.append([data, made, dreams])
    label, shape = run.data.label, run.data.shape
    print("\n" + table(["algorithm", "epochs", "seconds", f"test log-likelihood, {label}"], lines))
    print(f"({examples:,} test images, {FINAL_SAMPLES} samples each, ± standard error; higher is better)")
    print(difference(*curves) + "\n")
    title = f"{label}: the same machine, two algorithms"
    draw_curves(curves, out / "curves.png", title=title, quantity="test log-likelihood (nats)")
    draw_panels(panels, shape, out / "samples.png", title=f"{label}: what the machines remember and dream")
    print(f"Pictures: {out / 'curves.png'} and {out / 'samples.png'}\n")
    print(advice(out))
    return 0


def demo_settings(algorithm: str) -> Settings:
    """Settings with a constant rate, so that curves compare at any moment, and one thread, enough for small layers."""
    return Settings.resolve(
        data="mini-mnist",
        algorithm=algorithm,
        lr_schedule="constant",
        epochs=EPOCHS,
        eval_every=391,
        eval_examples=500,
        eval_samples=50,
        threads=1,
    )


def difference(one: Curve, other: Curve) -> str:
    """A sentence on who is ahead at the same number of epochs, and of seconds, from the curves."""
    sentences = []
    for unit, first, second in (("epochs", one.epochs, other.epochs), ("seconds", one.seconds, other.seconds)):
        common = min(first[-1], second[-1])
        gap = float(np.interp(common, second, other.values) - np.interp(common, first, one.values))
        ahead = (other if gap > 0 else one).label
        shown = f"{common:.1f}" if unit == "epochs" else f"{common:.0f}"
        sentences.append(f"after {shown} {unit} {ahead} is {abs(gap):.2f} nats ahead")
    text = "; ".join(sentences)
    return f"By the curves, {text}."


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
