"""A setting said once: a field of a dataclass that carries its default, its check and its help.

>>> @dataclass(frozen=True)
... class Oven:
...     degrees: float = setting(180.0, number(0, below=300), "how hot")
>>> converted(Oven, {"degrees": "200"})
{'degrees': 200.0}

Validation, a command line and a reference page follow from the fields: `converted` checks what was given, `settings_of`
lists what there is.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import SettingError

LARGEST_RATE = 1e30
"""Beyond this a learning rate does not fit into a float32."""

Convert = Callable[[str, Any], Any]
"""From a setting's name and what the user wrote (text, or a value of a file) to its value, or a `SettingError`."""


@dataclass(frozen=True)
class Setting:
    """What is known about one setting of a dataclass."""

    name: str
    default: Any
    """None if it is worked out from other settings, or if there is none."""
    convert: Convert
    help: str


def setting(default: Any, check: Convert, help: str | Callable[[], str]) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its value where nothing is given.
        check: turns what was given into the setting's value; raises a `SettingError` if that is impossible.
        help: what it does, in half a sentence; a function if the words depend on what is registered later.
    """
    return dataclasses.field(default=default, metadata={"convert": check, "help": help})


def settings_of(kind: Any) -> list[Setting]:
    """The settings of a dataclass in their order, for a command line or a reference page."""
    found = []
    for field in dataclasses.fields(kind):
        words = field.metadata["help"]
        text = words() if callable(words) else words
        found.append(Setting(field.name, field.default, field.metadata["convert"], text))
    return found


def converted(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given (text or values), each checked on its own and in its own type; None counts as not given.

    Args:
        kind: a dataclass whose fields were made by `setting`.
        given: values by the names of settings; another name is a `SettingError` that says which one may be meant.
    """
    known = {entry.name: entry for entry in settings_of(kind)}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise SettingError(f"there is no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
    return {name: known[name].convert(name, value) for name, value in given.items() if value is not None}


def number(low: float, *, whole: bool = False, open_low: bool = False, below: float = math.inf) -> Convert:
    """A check for finite numbers of at least `low` (above it, with `open_low`) and below `below`."""
    kind: Callable[[Any], Any] = int if whole else float
    words = f"{'a whole number' if whole else 'a number'} {'above' if open_low else 'of at least'} {low:g}"
    words += f" and below {below:g}" if below < math.inf else ""

    def convert(name: str, given: Any) -> Any:
        try:
            value = kind(given) if not isinstance(given, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        exact = isinstance(given, str) or value == given
        if not (exact and low <= value < below and not (open_low and value == low)):
            raise SettingError(f"{name} must be {words}, not {given!r}.")
        return value

    return convert


def one_of(*choices: str | Callable[[], Iterable[str]]) -> Convert:
    """A check for one of these words; a function among them gives words that are only known when it is called."""

    def convert(name: str, given: Any) -> str:
        words: list[str] = []
        for choice in choices:
            words.extend([choice] if isinstance(choice, str) else choice())
        if given not in words:
            raise SettingError(f"{name} must be one of {', '.join(words)}, not {given!r}.")
        return str(given)

    return convert


def switch(name: str, given: Any) -> bool:
    """A check for True or False."""
    if not isinstance(given, bool):
        raise SettingError(f"{name} must be true or false, not {given!r}.")
    return given


def listed(each: Convert) -> Convert:
    """A check for a list, or text with commas, of values that each pass `each`; the value is a tuple."""

    def convert(name: str, given: Any) -> tuple[Any, ...]:
        parts = given.split(",") if isinstance(given, str) else given
        if not isinstance(parts, (list, tuple)) or not parts:
            raise SettingError(f"{name} must be numbers with commas between them, not {given!r}.")
        return tuple(each(f"each of {name}", part) for part in parts)

    return convert
