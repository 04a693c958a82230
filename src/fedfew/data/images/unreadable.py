"""The fault of a single file: it is reported, and the other files are still read."""

import os
from dataclasses import dataclass
from pathlib import Path


class Unreadable(Exception):  # noqa: N818 - it is not an error of the run
    """A file cannot be used; the text says why and follows the file's name."""


@dataclass(frozen=True)
class Problem:
    """A remark on one file: why it was skipped, or which part was not used."""

    path: str
    reason: str
    skipped: bool = True


def shown(path: str | Path) -> str:
    """A path as text that can be printed and written, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
