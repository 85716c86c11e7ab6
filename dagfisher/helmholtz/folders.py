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
        label, shape, sizes = (values.pop(name, None) for name in Description._fields)
        description = None
        if shape is not None:
            (rows, columns), (train, valid, test) = map(int, shape), map(int, sizes)
            description = Description(str(label), (rows, columns), (train, valid, test))
        return Settings.resolve(**values), description
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{path} cannot be used: {error}") from None


def write_config(folder: Path, settings: Settings, description: Description) -> None:
    """Replace the config.json of a folder."""
    text = json.dumps({**description._asdict(), **settings.as_dict()}, indent=2)
    with replacing(folder / CONFIG) as file:
        file.write(text.encode() + b"\n")


def is_part(path: Path) -> bool:
    """Whether a file was being written when its process was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")
