"""Files that exist whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``target`` when the block ends, and vanishes if the block fails.

    An `OSError` of writing (a full disk, a folder that is read-only) names ``target``, which is as it was.
    """
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(part), part):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
