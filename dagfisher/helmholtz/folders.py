"""The config.json of a run folder, and the parts of files that a killed process leaves in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._files import replacing
from ..datasets import Description
from ..errors import SettingError
from .settings import Settings

CONFIG = "config.json"
PRESET = "preset"
"""The key of the name of a preset in it."""


def holds_run(folder: Path) -> bool:
    """Whether a run was started in this folder."""
    return (folder / CONFIG).is_file()


def read_settings(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    return read_config(folder)[0]


def read_config(folder: Path) -> tuple[Settings, Description | None]:
    """The settings of the run in a folder, and what its data are; None for folders of version 0.1, which do not say."""
    path = folder / CONFIG
    if not path.is_file():
        raise SettingError(f"{folder} holds no run (it has no {CONFIG}).")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values.pop(PRESET, None)
        label, shape, sizes = (values.pop(name, None) for name in Description._fields)
        description = None
        if shape is not None:
            (rows, columns), (train, valid, test) = map(int, shape), map(int, sizes)
            description = Description(str(label), (rows, columns), (train, valid, test))
        return Settings.resolve(**values), description
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{path} cannot be used: {error}") from None


def write_config(folder: Path, settings: Settings, description: Description) -> None:
    """Replace the config.json of a folder; it keeps the name of a preset."""
    name = read_preset(folder)
    _write(folder, {**description._asdict(), **settings.as_dict(), **({} if name is None else {PRESET: name})})


def remember_preset(folder: Path, name: str) -> None:
    """Add to a config.json that its settings began as those of the preset of that name."""
    _write(folder, {**json.loads((folder / CONFIG).read_text(encoding="utf-8")), PRESET: name})


def read_preset(folder: Path) -> str | None:
    """The name of the preset that the settings of the run in a folder began as; None if there was none."""
    if not holds_run(folder):
        return None
    name: str | None = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get(PRESET)
    return name


def _write(folder: Path, values: dict[str, Any]) -> None:
    with replacing(folder / CONFIG) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


def is_part(path: Path) -> bool:
    """Whether a file was being written when its process was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")
