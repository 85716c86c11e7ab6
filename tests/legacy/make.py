"""Write what version 0.1 saves: two optimizers and a run folder, and what it makes of them when it goes on.

    PYTHONPATH=/path/of/version/0.1 python tests/legacy/make.py

Later code must load these files and go on alike; so there is no reason to write them anew with later code.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dagfisher
from dagfisher.helmholtz import Run
from legacy.models import FURTHER, MODELS, SAVED, train
from legacy.runs import EPOCHS, continued

HERE = Path(__file__).resolve().parent
COMMAND = """train --data three-by-three --algorithm nrws --layers 6,3 --epochs 2 --batch-size 75 --samples 3
    --update-every 7 --momentum 0.5 --window 2 --l2 0.001 --seed 4 --threads 1 --eval-samples 20"""
"""It ends after step 47."""


def save_optimizer(name: str) -> None:
    """The states after some steps, and the parameters after some more."""
    model, optimizer = MODELS[name]()
    train(model, optimizer, 0, SAVED)
    content = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, SAVED, SAVED + FURTHER)
    torch.save({**content, "after": model.state_dict()}, HERE / f"{name}.pt")


def save_run() -> None:
    """A run folder as the program leaves it, without its pictures, and what it becomes with more epochs."""
    folder = HERE / "run-0.1"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "dagfisher", *COMMAND.split(), "--out", folder.name]
    subprocess.run(command, cwd=HERE, check=True)  # a folder without a dagfisher, which would come before PYTHONPATH
    for picture in folder.glob("*.png"):
        picture.unlink()
    with tempfile.TemporaryDirectory() as temporary:
        copied = shutil.copytree(folder, Path(temporary) / "run")
        run = Run.resume(copied, epochs=EPOCHS)
        run.trainer._adapts = False  # version 0.1 adapted the dampings of a run; later ones keep those that they find
        expected = continued(run)
    (HERE / "run-0.1.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if dagfisher.__version__ != "0.1.0":
        sys.exit(f"{dagfisher.__file__} is version {dagfisher.__version__}, not 0.1.0.")
    torch.set_num_threads(1)
    for name in MODELS:
        save_optimizer(name)
    save_run()
    print(f"{HERE}: written by {dagfisher.__file__}")
