"""What the pictures of a run show."""

from __future__ import annotations

import pytest

from dagfisher.helmholtz.metrics import Row
from dagfisher.helmholtz.pictures import display, run_curve


def test_names_are_written_as_in_papers() -> None:
    assert [display(name) for name in ("nrws", "bihm", "nbihm")] == ["NRWS", "BiHM", "NBiHM"]


def test_the_curve_of_a_run_is_its_test_log_likelihood() -> None:
    rows = [Row("bars B", epoch, 10 * epoch, 2.0 * epoch, -5, -4, 0.1, -3.0 + epoch, 0.1, 7) for epoch in (1, 2)]
    curve = run_curve("NRWS", rows)
    assert (curve.label, curve.epochs, curve.seconds, curve.values) == ("NRWS", [1, 2], [2.0, 4.0], [-2.0, -1.0])
    assert curve.values[-1] == pytest.approx(rows[-1].test_log_likelihood)
