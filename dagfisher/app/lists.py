"""The commands that list what there is: `data`, `algorithms`, `presets`; each says what its columns are."""

from __future__ import annotations

import argparse

from .. import datasets
from .._text import explained, table
from ..helmholtz.algorithms import ALGORITHMS
from ..helmholtz.presets import listing


def data(options: argparse.Namespace) -> int:
    """Print the datasets; the exit code."""
    lines = []
    for entry in datasets.available():
        sizes = " + ".join(f"{n:,}" for n in entry.sizes)
        lines.append([entry.name, entry.binarisations, "×".join(map(str, entry.shape)), sizes, entry.where])
    header = ["data", "binarisations", "pixels", "images", "where"]
    print(table(header, lines, left=len(header)))
    columns = {
        "data": "its name, for dagfisher train --data NAME; the path of images of your own works as well",
        "binarisations": "how grey values become pixels, for --binarisation:",
        **{f"  {letter}": meaning for letter, meaning in datasets.BINARISATIONS.items()},
        "pixels": "rows × columns of an image",
        "images": "for training + validation + test",
        "where": "the folder, or how it gets there",
    }
    print(f"\n{explained(columns)}")
    return 0


def algorithms(options: argparse.Namespace) -> int:
    """Print the algorithms and their defaults; the exit code."""
    lines = []
    for algorithm in ALGORITHMS.values():
        every = "" if algorithm.solver is None else algorithm.update_every or "auto"
        sizes = [str(each) for each in (algorithm.batch_size, algorithm.samples, every)]
        lines.append([algorithm.name, algorithm.summary, f"{algorithm.lr:g}", *sizes])
    print(table(["algorithm", "what it does", "rate", "batch", "samples", "K"], lines, left=2))
    columns = {
        "algorithm": "its name, for dagfisher train --algorithm NAME; those with a K follow natural gradients",
        "rate": "learning rate (--lr), lower for plain ones on more than 14×14 pixels; falls to zero (--lr-schedule)",
        "batch": "examples in a minibatch (--batch-size)",
        "samples": "draws of the recognition network for each example (--samples)",
        "K": "minibatches that a Fisher matrix is kept (--update-every); auto: the optimizer chooses",
    }
    print(f"\n{explained(columns)}")
    return 0


def presets(options: argparse.Namespace) -> int:
    """Print the presets; the exit code."""
    print(listing(options.part))
    return 0
