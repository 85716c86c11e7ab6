"""Datasets are looked for where a test says; nothing is read from the cache of whoever runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DATA = os.environ.get("DAGFISHER_DATA")


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DAGFISHER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real_data(isolated: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with MNIST and FashionMNIST; the test is skipped where there is none."""
    if not _DATA or not (Path(_DATA) / "mnist").is_dir() or not (Path(_DATA) / "fashion-mnist").is_dir():
        pytest.skip("DAGFISHER_DATA does not name a folder with mnist/ and fashion-mnist/")
    monkeypatch.setenv("DAGFISHER_DATA", _DATA)
    return Path(_DATA)
