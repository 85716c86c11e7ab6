"""Fetching a file: several mirrors, progress, a check of the content, nothing half-written left behind."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .._files import replacing
from .errors import DataError
from .idx import read_bytes

_CHUNK = 1 << 16
_TIMEOUT = 30.0

Progress = Callable[[str, int, int], None]
"""Told a file's name, the bytes so far and the bytes in all (0 where the server does not say)."""


def cache_folder() -> Path:
    """The user's cache folder: in ``XDG_CACHE_HOME`` if that is set, else where the platform keeps caches."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "dagfisher"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "dagfisher" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dagfisher"
    return Path.home() / ".cache" / "dagfisher"


def show_progress(name: str, done: int, total: int) -> None:
    """A line on standard error: live on a terminal, once at the end elsewhere."""
    finished = done == total
    if not finished and not sys.stderr.isatty():
        return
    share = f"{done / total:4.0%} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
    line = f"downloading {name}: {share}"
    print(
        f"\r{line}" if sys.stderr.isatty() else line,
        end="\n" if finished else "",
        file=sys.stderr,
        flush=True,
    )


def fetch(urls: Sequence[str], target: Path, digest: str, progress: Progress = show_progress) -> None:
    """Make ``target`` from the first of ``urls`` whose content, decompressed, has that SHA-256."""
    failures = []
    for url in urls:
        try:
            with replacing(target) as file:
                for chunk in _chunks(url, target.name, progress):
                    file.write(chunk)
                file.flush()
                _check(Path(file.name), digest)
            return
        except DataError as error:
            failures.append(f"{url}: {error}")
        except OSError as error:
            raise DataError(
                f"{target} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can be."
            ) from error
    raise DataError(
        f"{target.name} could not be downloaded ({'; '.join(failures)}); try again later, or put the file at {target}."
    )


def _check(part: Path, digest: str) -> None:
    try:
        intact = hashlib.sha256(read_bytes(part)).hexdigest() == digest
    except DataError:
        intact = False
    if not intact:
        raise DataError("what it sends is something else, or damaged")


def _chunks(url: str, name: str, progress: Progress) -> Iterator[bytes]:
    """The content behind ``url``; whatever goes wrong on the way there is a ``DataError``."""
    request = urllib.request.Request(url, headers={"User-Agent": "dagfisher"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0)
            done = 0
            while chunk := response.read(_CHUNK):
                yield chunk
                done += len(chunk)
                progress(name, done, total)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(str(error) or type(error).__name__) from error
    if total and done != total:
        raise DataError(f"the connection ended after {done:,} of {total:,} bytes")
