"""How hypothesis searches: the same examples on every run, or many new ones with HYPOTHESIS_PROFILE=search.

And fixtures: for tests that register families, maps, solvers or algorithms, for tests of several processes, and a CPU
that plays an accelerator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from processes import ENVIRONMENT, Pool, pools
from registries import registrations_forgotten

from dagfisher import _reading
from dagfisher.solvers import rates

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("repeat", derandomize=True, max_examples=50, **_COMMON)
settings.register_profile("search", derandomize=False, max_examples=1000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test runs in an empty folder, and may set the number of threads."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def registries() -> Iterator[None]:
    """What the test registers is forgotten after it."""
    with registrations_forgotten():
        yield


@pytest.fixture(scope="session")
def pool() -> Iterator[Callable[[int], Pool]]:
    """Gives so many processes that train together; they are started once and serve all tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with pools() as found:
            yield found


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU plays an accelerator: it is not read freely, and its operations cost what they cost there."""
    monkeypatch.setattr(_reading, "READ_FREELY", frozenset())
    monkeypatch.setattr(rates, "_RATES", {})
