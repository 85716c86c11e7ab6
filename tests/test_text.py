"""Text in columns, and counts."""

import pytest

from dagfisher._text import counted, explained, table


def test_tables_are_aligned() -> None:
    shown = table(["a", "value"], [["long name", "1"], ["b", "22"]])
    assert shown.splitlines() == ["a          value", "─────────  ─────", "long name      1", "b             22"]


def test_columns_are_explained_in_a_column() -> None:
    assert explained({"a": "one", "long": "two"}) == "a     one\nlong  two"


@pytest.mark.parametrize(
    ("number", "form", "words"),
    [
        (1, ",.4g", "1 epoch"),
        (1.0, ",.4g", "1 epoch"),
        (1.0, ".1f", "1.0 epoch"),
        (1.04, ".1f", "1.0 epoch"),
        (10.0, ".1f", "10.0 epochs"),
        (0, ",.4g", "0 epochs"),
        (0.5, ",.4g", "0.5 epochs"),
        (1.5, ".0f", "2 epochs"),
        (12000, ",.4g", "12,000 epochs"),
    ],
)
def test_one_is_singular_as_it_is_printed(number: float, form: str, words: str) -> None:
    assert counted(number, "epoch", form) == words
