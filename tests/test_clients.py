"""Lightning and Accelerate with two processes train as one does, without an extra line; needs the extra `clients`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import client_programs
import pytest
import torch

PROGRAM = Path(client_programs.__file__)
WAYS = {"ddp": "lightning", "ddp_spawn": "lightning", "accelerate": "accelerate"}


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_as_one(way: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(WAYS[way]) is None:
        pytest.skip(f"{WAYS[way]} is not installed; it is part of the extra clients")
    launcher = [sys.executable]
    if way == "accelerate":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folders = [str(PROGRAM.parent), str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")]
    settings = {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    settings |= {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    done = subprocess.run(
        [*launcher, str(PROGRAM), way, "2", str(tmp_path / "model.pt")],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found, start = torch.load(tmp_path / "model.pt", weights_only=True), client_programs.Model().state_dict()
    for name, value in client_programs.plain(shuffled=way != "accelerate").state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8)
        assert (value - start[name]).abs().max() > 1e-2
