"""A server's audit log: who joined, was refused or revoked, which runs there were, what the sites answered.

JSON lines with the time, in audit.jsonl of the server's folder; several processes write to it.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any

from fedfew.core.storage import write_atomically, writing

NAME, SEEN = "audit.jsonl", "seen.json"
_PAUSE = 60.0
_ADDRESSES = 1000


def record(folder: Path, event: str, /, **about: Any) -> None:
    """Add a line; returns when it is on disk."""
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **about}
    with writing(folder / NAME), (folder / NAME).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
            if file.read() != b"\n":  # a crash cut the line before
                file.write(b"\n")
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines, oldest first; one that a crash cut off is left out."""
    if (folder / NAME).is_file():
        for line in (folder / NAME).read_bytes().splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("time"), str):
                yield event


def note_seen(folder: Path, times: Mapping[str, float]) -> None:
    """Remember when sites were last heard of, in seconds since 1970; earlier times than known ones are left out."""
    before = last_seen(folder)
    now = before | {site: at for site, at in times.items() if at > before.get(site, 0.0)}
    if now != before:
        write_atomically(folder / SEEN, json.dumps(now).encode())


def last_seen(folder: Path) -> dict[str, float]:
    """When each site was last heard of."""
    try:
        times = {str(site): float(at) for site, at in json.loads((folder / SEEN).read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return {}
    return {site: at for site, at in times.items() if 0 <= at < time() + 86400}


@dataclass(eq=False)
class Refusals:
    """Refused connections in the audit log: one line a minute for an address, however often it tries."""

    folder: Path
    _last: dict[str, float] = field(default_factory=dict)

    def add(self, address: str, reason: str) -> None:
        """Record a refusal, unless this address has had its line."""
        now = monotonic()
        if now - self._last.get(address, -_PAUSE) >= _PAUSE:
            if len(self._last) >= _ADDRESSES:
                self._last.clear()
            self._last[address] = now
            record(self.folder, "refused", address=address, reason=reason)
