"""What version 0.1 saved is loaded, and goes on as it did then; make.py says how it was made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dagfisher.helmholtz import Run

from .models import FURTHER, MODELS, SAVED, train
from .runs import EPOCHS, continued

HERE = Path(__file__).resolve().parent
EXACT = 1e-12
"""Over the largest magnitude of a parameter, in float64."""
SINGLE = 5e-5
"""The same for the parameters and rows of the run, which is in float32. With other instructions of the CPU the same
code differs from itself by up to 4e-6. If a sampled unit fell out otherwise because of rounding, which did not happen
then, the third digit would change."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_optimizer_goes_on(name: str) -> None:
    saved = torch.load(HERE / f"{name}.pt", weights_only=True)
    model, optimizer = MODELS[name]()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, SAVED, SAVED + FURTHER)
    after = model.state_dict()
    assert after.keys() == saved["after"].keys()
    for key, wanted in saved["after"].items():
        assert not torch.equal(saved["model"][key], wanted)
        assert float((after[key] - wanted).abs().max()) <= EXACT * float(wanted.abs().max()), key


def test_the_saved_window_holds_gram_matrices_and_the_saved_solvers_are_of_all_kinds() -> None:
    """Otherwise the test above says less than it seems to."""
    layers = {name: torch.load(HERE / f"{name}.pt", weights_only=True)["optimizer"]["dagfisher"] for name in MODELS}
    grams = [record["grams"] for refresh in layers["grams-0.1"]["layers"][0]["window"] for record in refresh]
    assert grams and all(gram is not None for gram in grams)
    solvers = {solver["solver"] for layer in layers["optimizer-0.1"]["layers"] for solver in layer["solvers"]}
    assert solvers == {"dense", "woodbury", "conjugate", "diagonal"}


def test_a_saved_run_goes_on(tmp_path: Path) -> None:
    """With the dampings that it had come to by a rule of then: they are settings of its groups, and given numbers."""
    wanted = json.loads((HERE / "run-0.1.json").read_text(encoding="utf-8"))
    folder = shutil.copytree(HERE / "run-0.1", tmp_path / "run")
    found = continued(Run.resume(folder, epochs=EPOCHS))
    assert found["parameters"].keys() == wanted["parameters"].keys()
    for name, values in wanted["parameters"].items():
        close(found["parameters"][name], values, SINGLE)
    assert found["dampings"] == wanted["dampings"]
    assert len(found["rows"]) == len(wanted["rows"]) == EPOCHS
    for row, then in zip(found["rows"], wanted["rows"], strict=True):
        for key, value in then.items():
            if isinstance(value, float):
                close([row[key]], [value], SINGLE)
            else:
                assert row[key] == value, key


def close(found: list[float], wanted: list[float], tolerance: float) -> None:
    largest = max(map(abs, wanted))
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= tolerance * largest


def test_the_folder_says_nothing_of_the_machine_it_was_made_on() -> None:
    config = json.loads((HERE / "run-0.1" / "config.json").read_text(encoding="utf-8"))
    assert not any("/" in str(value) for value in config.values())
    assert sum(path.stat().st_size for path in HERE.rglob("*") if path.suffix != ".pyc") < 300_000
