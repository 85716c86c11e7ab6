"""Text in columns."""

from dagfisher._text import table


def test_tables_are_aligned() -> None:
    shown = table(["a", "value"], [["long name", "1"], ["b", "22"]])
    assert shown.splitlines() == ["a          value", "─────────  ─────", "long name      1", "b             22"]
