"""What is long says how much time is left, with a bar or without; what is quick says nothing."""

from __future__ import annotations

import re
import sys

import pytest

from dagfisher.app import console, main, progress
from dagfisher.app.progress import Bar, duration

TINY = ["--data=three-by-three", "--layers=6,1", "--batch-size=100", "--samples=4", "--eval-samples=5", "--threads=1"]


class Clock:
    """A clock that only goes on when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(params=["no terminal", "no tqdm"])
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no tqdm":
        for name in ("tqdm", "tqdm.auto"):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without")
def test_without_a_bar_a_line_every_half_a_minute_says_what_is_left(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar(1000, "evaluating", initial=100) as bar:
        for _ in range(30):
            clock.now += 10
            bar.update(15)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert lines[0] == "evaluating: 14 % done, 10 min left"
    assert lines[-1] == "evaluating: 55 % done, 5 min left"
    assert len(lines) == 10 and printed.out == ""


@pytest.mark.usefixtures("without")
def test_what_is_quick_is_silent_and_a_line_is_not_followed_by_another(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar(10, "quick") as bar:
        for _ in range(10):
            clock.now += 2.5
            bar.update()
    with Bar(10, "training") as bar:
        for _ in range(10):
            clock.now += 20
            bar.update()
            bar.line("a row")
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("a row") == 10


def test_who_sees_a_bar_sees_no_lines(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Bar, "live", True)
    with Bar(10, "seen") as bar:
        clock.now += 1000
        bar.update()
    assert "left" not in capsys.readouterr().err


def test_the_time_left_follows_the_pace(clock: Clock) -> None:
    bar = Bar(110, "pace", initial=10)
    assert bar.left() is None
    clock.now += 20
    bar.update(10)
    assert bar.left() == 180 and bar.left(done=30) == 80 and bar.left(done=200) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 s"), (29.6, "30 s"), (59.6, "1 min"), (170, "3 min"), (5900, "98 min"), (9000, "2.5 h"), (70000, "19.4 h")],
)
def test_a_time_has_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_lines_of_a_long_training_and_evaluation_say_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out=a", *TINY, "--epochs=2"]) == 0
    assert main(["evaluate", "a", "--samples=10", "--examples=10"]) == 0
    quick = capsys.readouterr()
    assert " left" not in quick.out + quick.err
    monkeypatch.setattr(console, "LEAST_LEFT", 1e-9)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    assert main(["train", "--out=b", *TINY, "--epochs=2"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert re.search(r"  \d+ (s|min) left$", first) and "left" not in second
    capsys.readouterr()
    monkeypatch.setattr("dagfisher.helmholtz.evaluate.ROWS", 20)
    assert main(["evaluate", "b", "--samples=10", "--examples=10", "--json"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"evaluating: {n} % done, 1 s left" for n in (20, 40, 60, 80)]
