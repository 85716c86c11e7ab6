"""The exit codes of the program, and what the system refused in words."""

from __future__ import annotations

import errno

BAD_INPUT, INTERRUPTED = 2, 130

REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room in your quota",
    errno.EROFS: "give a folder that can be written to",
    errno.EACCES: "check its permissions, or give another folder",
    errno.EPERM: "check its permissions, or give another folder",
}
"""What helps against an error of the system, by its number."""


def explain(error: OSError) -> str:
    """The file, what the system says of it, and what helps if that is known: a sentence without its full stop."""
    what = f"{error.filename or 'a file'}: {error.strerror or error}"
    remedy = REMEDIES.get(error.errno or 0)
    return what if remedy is None else f"{what}; {remedy}"
