"""Run folders made by version 0.1, stopped within their second epoch, are read and continue to the same end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dagfisher.app import main
from dagfisher.helmholtz import Run
from dagfisher.helmholtz.metrics import read_rows

FOLDERS = Path(__file__).parent / "runs_of_0_1"
NAMES = ("nrws", "nbihm", "rws-adam")


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", NAMES)
def test_it_continues_to_the_end_that_version_0_1_reached(name: str, tmp_path: Path) -> None:
    """Each was continued by version 0.1 to its third epoch, which left the parameters in expected.json.

    The natural ones with the dampings that they had come to, which version 0.1 would have gone on adapting.
    """
    folder = shutil.copytree(FOLDERS / name, tmp_path / name)
    run = Run.resume(folder)
    assert run.steps == 23 and len(run.rows) == 1
    assert run.train()
    assert [row.epoch for row in read_rows(folder)] == [1, 2, 3]
    wanted = json.loads((folder / "expected.json").read_text())
    found = run.machine.state_dict()
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        torch.testing.assert_close(found[key].flatten(), torch.tensor(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_evaluated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(FOLDERS / name), "--samples=20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epoch"] == pytest.approx(23 / 15) and -9 < found["log_likelihood"] < 0
    assert ("log_p_star_plus_2_log_z" in found) == (name == "nbihm")
