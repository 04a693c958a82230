"""The journal of a run: rounds.jsonl and its copy beside the checkpoints, sealed by length and hash in every manifest.

The hash covers what this process meant to write, not what the file holds later, so damage is never sealed in.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, append_durably, digest, write_atomically
from fedfew.runs.folder import ROUNDS, RunFolder

Seal = dict[str, Any]
EMPTY: Seal = {"bytes": 0, "sha256": digest(b"")}


class Journal:
    """Appends rounds to both files and keeps the seal."""

    def __init__(self, paths: tuple[Path, Path], content: bytes = b"") -> None:
        self.paths, self._hash, self._length = paths, hashlib.sha256(content), len(content)

    def append(self, record: Mapping[str, Any]) -> Seal:
        """Append a round, and return the seal of everything up to it."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        for path in self.paths:
            append_durably(path, line)
        self._hash.update(line)
        self._length += len(line)
        return {"bytes": self._length, "sha256": self._hash.hexdigest()}


def paths(folder: RunFolder) -> tuple[Path, Path]:
    """The file people read, and the copy that restores it."""
    return folder / ROUNDS, folder.checkpoints / ROUNDS


def begin(folder: RunFolder) -> Seal:
    for path in paths(folder):
        write_atomically(path, b"")
    return EMPTY


def sealed(folder: RunFolder, seal: Seal) -> bytes | None:
    """The journal as it was when it was sealed, from the first of the two files that is intact."""
    return next((content for path in paths(folder) if (content := _sealed(path, seal)) is not None), None)


def go_on(folder: RunFolder, seal: Seal, warn: Warn | None = None) -> Journal:
    """Restore both files to the sealed state, dropping what no checkpoint covers, and append from there."""
    content = sealed(folder, seal)
    if content is None:
        raise FedfewError("E309", str(folder / ROUNDS), "lacks rounds that the checkpoint includes")
    for path in paths(folder):
        if _sealed(path, seal) is None and warn is not None:
            warn(FedfewError("E309", str(path), "was damaged and has been restored from its copy", ""))
        if _read(path) != content:
            write_atomically(path, content)
    return Journal(paths(folder), content)


def _sealed(path: Path, seal: Seal) -> bytes | None:
    content = _read(path)
    if content is None or len(content) < seal["bytes"]:
        return None
    content = content[: seal["bytes"]]
    return content if digest(content) == seal["sha256"] else None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
