"""How hypothesis searches: the same examples on every run, or many new ones with HYPOTHESIS_PROFILE=search.

And a fixture for tests that register families, maps, solvers or algorithms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from registries import registrations_forgotten

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("repeat", derandomize=True, max_examples=50, **_COMMON)
settings.register_profile("search", derandomize=False, max_examples=1000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture
def registries() -> Iterator[None]:
    """What the test registers is forgotten after it."""
    with registrations_forgotten():
        yield
