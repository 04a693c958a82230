"""Writing files that survive a crash: temporary name, fsync, rename, fsync of the folder; and their hashes."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError

Warn = Callable[[FedfewError], None]
"""Called with every fault that was found and repaired."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """E305 with the system's reason if the disk refuses something."""
    try:
        yield
    except OSError as error:
        raise FedfewError("E305", str(path), f"{error.strerror or error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """After this returns the file has exactly this content; before, it has its old content or does not exist."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def append_durably(path: Path, line: bytes) -> None:
    """Add a line and wait until the disk has it."""
    with writing(path), path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def drop_temporaries(folder: Path) -> None:
    """Remove leftovers of interrupted writes; the caller must hold the folder's lock."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, or an empty string if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def sealed_json(content: dict[str, Any]) -> bytes:
    """JSON that carries its own hash, so that a flipped bit in it is noticed."""
    seal = digest(json.dumps(content).encode())
    return json.dumps({"body": content, "sha256": seal}, indent=1).encode()


def open_sealed(path: Path) -> dict[str, Any] | None:
    """The content of a sealed file, or None if it is not, byte for byte, what would be written for it."""
    try:
        raw = path.read_bytes()
        body: dict[str, Any] = json.loads(raw)["body"]
        return body if sealed_json(body) == raw else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process; the system releases the lock however the process ends."""
    with writing(folder):
        file = (folder / "lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FedfewError("E306", str(folder), "is in use by another process") from None
        yield
