"""A machine is compared with itself before training on the same examples: noise is no fall, and a fall is no noise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dagfisher.errors import SettingError
from dagfisher.helmholtz import Run, Settings
from dagfisher.helmholtz.untrained import Untrained

BEFORE = torch.linspace(-300, -100, 50)


@pytest.mark.parametrize(
    ("gains", "below"),
    [
        (torch.full((50,), 3.0), False),
        (torch.zeros(50), False),
        (torch.tensor([-1.0, 1.0]).repeat(25) - 0.1, False),  # its standard error is 0.14
        (torch.tensor([-1.0, 1.0]).repeat(25) - 0.5, True),
        (torch.full((50,), -0.01), True),  # far less than the examples differ among themselves
        (torch.full((50,), float("nan")), True),
    ],
)
def test_examples_are_compared_one_by_one(gains: torch.Tensor, below: bool) -> None:
    untrained = Untrained(BEFORE.double())
    untrained.judge(torch.cat([BEFORE.double() + gains, torch.full((9,), -1e9)]), -150.0)
    assert (untrained.below, untrained.train_below) == (below, False)
    untrained.judge(BEFORE.double() + 1, -201.0)
    assert (untrained.below, untrained.train_below) == (False, True)


def test_one_example_is_enough() -> None:
    untrained = Untrained(torch.tensor([-5.0]))
    untrained.judge(torch.tensor([-6.0]), -4.0)
    assert untrained.below


def test_it_is_part_of_the_checkpoint_and_costs_no_more_than_a_row(tmp_path: Path) -> None:
    settings = Settings.resolve(
        data="three-by-three", layers=(6, 1), epochs=1, batch_size=600, eval_examples=7, threads=1
    )
    before = torch.get_num_threads()
    run = Run.create(tmp_path / "a", settings)
    run.train()
    torch.set_num_threads(before)
    again = Run.open(tmp_path / "a").untrained
    assert run.untrained is not None and again is not None
    assert len(again.log_p) == 7 and torch.equal(again.log_p, run.untrained.log_p)
    assert again.mean == pytest.approx(
        -9 * torch.log(torch.tensor(2.0)).item(), abs=1
    )  # nine pixels, hardly a preference


def test_a_description_that_was_tampered_with_is_one_sentence(tmp_path: Path) -> None:
    Run.create(tmp_path / "a", Settings.resolve(data="three-by-three", layers=(6, 1)))
    path = tmp_path / "a" / "config.json"
    path.write_text(path.read_text().replace("1800,", ""))
    with pytest.raises(SettingError, match=r"config\.json cannot be used"):
        Run.open(tmp_path / "a")
