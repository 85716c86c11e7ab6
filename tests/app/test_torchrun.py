"""`torchrun … -m dagfisher train`: killed processes, restarts, and who says what."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import ENVIRONMENT, Pool

from dagfisher.helmholtz import Run, Settings

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not dist.is_available(), reason="needs torchrun, and the processes in /proc"
)

SETTINGS: dict[str, Any] = {
    **{"data": "three-by-three", "layers": (6, 4, 2), "batch_size": 30, "samples": 4, "epochs": 6},
    **{"eval_samples": 5, "threads": 1, "checkpoint_every": 0.1, "damping": 0.2, "update_every": 5},
}
SECONDS = 180
"""After which a program that tests start is killed, and the test fails."""


def torchrun(arguments: list[str], *, restarts: int = 0) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*launcher, "--max-restarts", str(restarts), "-m", "dagfisher", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )


def workers(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun has started, by their numbers."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    named = [(int(pid), Path(f"/proc/{pid}/cmdline")) for pid in children]
    return [pid for pid, line in named if line.exists() and b"dagfisher" in line.read_bytes()]


def flags(settings: dict[str, Any], out: Path) -> list[str]:
    values = {k: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in settings.items()}
    return ["--out", str(out), *(t for k, v in values.items() for t in (f"--{k.replace('_', '-')}", v))]


def test_a_run_whose_processes_are_killed_ends_as_an_undisturbed_one(
    pool: Callable[[int], Pool], tmp_path: Path
) -> None:
    out, moments = tmp_path / "killed", random.Random()
    launcher = torchrun(["train", *flags(SETTINGS, out)], restarts=2)
    try:
        killed: list[int] = []
        end, since = time.monotonic() + SECONDS, 0.0
        for sign in ("config.json", "checkpoint.pt"):  # of the first attempt, and of the second one
            while launcher.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
                if not (out / sign).exists() or (out / sign).stat().st_mtime < since:
                    continue
                time.sleep(moments.uniform(0, 0.5))
                if len(found := workers(launcher)) == 2:
                    killed.append(moments.choice(found))
                    os.kill(killed[-1], signal.SIGKILL)
                    since = time.time()
                    break
        output, errors = launcher.communicate(timeout=SECONDS)
    finally:
        for pid in workers(launcher) if launcher.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
    assert launcher.returncode == 0, errors
    assert len(killed) == 2
    assert f"{out} is done" in output
    pool(2).run(undisturbed, str(tmp_path / "undisturbed"))
    saved, other = (torch.load(tmp_path / n / "checkpoint.pt", weights_only=True) for n in ("killed", "undisturbed"))
    for name, value in other["trainer"]["machine"].items():
        assert torch.equal(saved["trainer"]["machine"][name], value)
    assert torch.equal(saved["trainer"]["generator"], other["trainer"]["generator"])
    for one, row in zip(saved["rows"], other["rows"], strict=True):
        assert {**one, "seconds": 0} == {**row, "seconds": 0}


def undisturbed(rank: int, folder: str) -> None:
    Run.create(folder, Settings.resolve(**SETTINGS)).train()


def test_one_process_speaks_and_all_evaluate(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Settings.resolve(**{**SETTINGS, "epochs": 1}))
    run.train()
    evaluated = torchrun(["evaluate", str(run.folder), "--samples", "20", "--json"])
    refused = torchrun(["train", *flags({**SETTINGS, "batch_size": 0}, tmp_path / "new")])
    found, errors = evaluated.communicate(timeout=SECONDS)
    assert evaluated.returncode == 0, errors
    alone = run.estimate("test", examples=18, samples=20, seed=0)
    assert json.loads(found)["log_likelihood"] == pytest.approx(alone.mean, abs=1e-4)
    _, errors = refused.communicate(timeout=SECONDS)
    assert refused.returncode != 0
    assert errors.count("dagfisher: batch_size must be") == 1
