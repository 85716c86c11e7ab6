"""A setting said once: its check, its help, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dagfisher._settings import converted, listed, number, one_of, setting, settings_of, switch
from dagfisher.errors import SettingError

FLOURS = ["wheat"]


@dataclass(frozen=True)
class Oven:
    degrees: float = setting(180.0, number(0, below=300), "how hot")
    minutes: int = setting(20, number(1, whole=True), "how long")
    flour: str = setting("wheat", one_of(lambda: FLOURS), lambda: f"one of {', '.join(FLOURS)}")
    fan: bool = setting(False, switch, "whether the air moves")
    racks: tuple[int, ...] | None = setting(None, listed(number(1, whole=True)), "where the trays are")


def test_what_is_given_as_text_or_as_a_value_becomes_the_settings_value() -> None:
    given = {"degrees": "200", "minutes": 30, "fan": True, "racks": "1,3", "flour": None}
    assert converted(Oven, given) == {"degrees": 200.0, "minutes": 30, "fan": True, "racks": (1, 3)}
    assert converted(Oven, {"racks": [2]}) == {"racks": (2,)}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("degrees", 300, "degrees must be a number of at least 0 and below 300, not 300."),
        ("degrees", float("nan"), "degrees must be a number of at least 0 and below 300, not nan."),
        ("degrees", True, "degrees must be a number of at least 0 and below 300, not True."),
        ("minutes", 2.5, "minutes must be a whole number of at least 1, not 2.5."),
        ("minutes", "soon", "minutes must be a whole number of at least 1, not 'soon'."),
        ("flour", "rye", "flour must be one of wheat, not 'rye'."),
        ("fan", "yes", "fan must be true or false, not 'yes'."),
        ("racks", "", "each of racks must be a whole number of at least 1, not ''."),
        ("racks", [], "racks must be numbers with commas between them, not []."),
        ("degree", 1, "there is no setting 'degree'; did you mean 'degrees'?"),
        ("salt", 1, "there is no setting 'salt'."),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        converted(Oven, {name: value})
    assert str(caught.value) == sentence


def test_the_settings_are_listed_with_default_and_help() -> None:
    found = {entry.name: (entry.default, entry.help) for entry in settings_of(Oven)}
    assert found["degrees"] == (180.0, "how hot") and found["racks"] == (None, "where the trays are")


def test_words_that_are_registered_later_are_known() -> None:
    FLOURS.append("rye")
    try:
        assert converted(Oven, {"flour": "rye"}) == {"flour": "rye"}
        assert settings_of(Oven)[2].help == "one of wheat, rye"
    finally:
        FLOURS.remove("rye")
