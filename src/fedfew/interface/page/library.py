"""The runs below a folder, each read again only when it has changed, and their news as server-sent events.

A run's address does not reveal its name. A round is sent within half a second, and none is lost with a connection.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.concurrency import run_in_threadpool

from fedfew.core.errors import FedfewError
from fedfew.runs.collection import name_below
from fedfew.runs.folder import (
    CHECKPOINTS,
    CLASSES,
    CONFIG,
    ENVIRONMENT,
    ROUNDS,
    SUMMARY,
    WARMUP,
    find_runs,
    held_locks,
    is_held,
)
from fedfew.runs.run import Run
from fedfew.runtime.record import RoundRecord

FILES = (CONFIG, ROUNDS, SUMMARY, ENVIRONMENT, CLASSES, f"{CHECKPOINTS}/{WARMUP}")
SCAN_SECONDS = 2.0
POLL_SECONDS = 0.3
BEAT_SECONDS = 10.0
Ending = Callable[[], bool]
"""Whether the server is about to end; a stream never ends by itself, so it asks."""
RETRY, BEAT = "retry: 1000\n\n", ": still here\n\n"
Signature = tuple[tuple[int, int] | int | None, ...]
Locks = frozenset[int] | None


def key_of(path: Path, root: Path) -> str:
    """The opaque name of a run: a hash of its path below the root."""
    return hashlib.sha256(path.relative_to(root).as_posix().encode()).hexdigest()[:16]


def signature(path: Path, locks: Locks) -> Signature:
    """Changes whenever the run's files change, or its process begins or ends."""
    held = is_held(path, locks)
    return (*(_stamp(f"{path}/{name}") for name in FILES), int(time.time() / 15) if held is None else held)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (three times as fast, and thousands of runs have seven files each)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@dataclass(eq=False)
class Library:
    """What the page may show: the runs below ``root`` and nothing else."""

    root: Path
    _paths: dict[str, Path] = field(default_factory=dict)
    _scanned: float = -SCAN_SECONDS
    _read: dict[str, tuple[Signature, Run | FedfewError]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def paths(self) -> dict[str, Path]:
        """The path of each run by its opaque name, newest first; searched at most every two seconds."""
        with self._lock:
            if time.monotonic() - self._scanned >= SCAN_SECONDS:
                newest_first = sorted(find_runs(self.root), key=_started, reverse=True)
                self._paths = {key_of(path, self.root): path for path in newest_first}
                self._scanned = time.monotonic()
            return self._paths

    def signature(self, key: str) -> Signature | None:
        """The signature of one run; None if there is no such run."""
        path = self.paths().get(key)
        return signature(path, held_locks()) if path else None

    def signatures(self) -> dict[str, Signature]:
        locks = held_locks()
        return {key: signature(path, locks) for key, path in self.paths().items()}

    def some(self, keys: Iterable[str], *, complete: bool = False) -> tuple[dict[str, Run], list[FedfewError]]:
        """The runs with these names, and the errors of unreadable ones; ``complete``: with all their files."""
        locks, paths = held_locks(), self.paths()
        runs, faults = {}, []
        for key in keys:
            if key not in paths:
                continue
            run = self._read_again(key, paths[key], locks)
            fault = run if isinstance(run, FedfewError) else run.fault if complete else None
            if fault is not None:
                faults.append(fault)
            elif isinstance(run, Run):
                runs[key] = run
        return runs, faults

    def _read_again(self, key: str, path: Path, locks: Locks) -> Run | FedfewError:
        """The run as it is now, or the error that prevents reading it."""
        now, (before, known) = signature(path, locks), self._read.get(key, (None, None))
        if known is not None and before == now:
            return known
        held = is_held(path, locks)
        try:
            old = known if isinstance(known, Run) else None
            run = old.again(held=held) if old else Run.open(path, name=name_below(self.root, path), held=held)
            _ = run.document, run.final  # the rest is read when it is shown
        except FedfewError as fault:
            self._read[key] = now, fault
            return fault
        self._read[key] = now, run
        return run

    def all(self) -> tuple[dict[str, Run], list[FedfewError]]:
        """Every run, newest first, and the errors of unreadable ones."""
        return self.some(self.paths())


def _started(path: Path) -> float:
    try:
        return (path / CONFIG).stat().st_mtime
    except OSError:
        return 0.0


def event(name: str, data: dict[str, Any], number: int | None = None) -> str:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def last_seen(header: str | None) -> int | None:
    """The last round a browser received, from Last-Event-ID; None if the header is missing or invalid."""
    return int(header) if header and header.isascii() and header.isdecimal() and len(header) < 12 else None


def headline(record: RoundRecord) -> dict[str, Any]:
    """The part of a round's record that is sent."""
    keys = ("round", "accuracy", "loss", "validation", "coverage", "correct", "rejected", "missing", "skipped")
    return {key: record.get(key) for key in keys}


async def changes(look: Callable[[], object], ending: Ending, pause: float) -> AsyncIterator[bool]:
    """True at the start and whenever ``look`` sees something new; False as a sign of life after a quiet time."""
    last, quiet, first = await run_in_threadpool(look), 0.0, True
    while not ending():
        now = last if first else await run_in_threadpool(look)
        if first or now != last or quiet >= BEAT_SECONDS:
            yield first or now != last
            last, quiet, first = now, 0.0, False
        await asyncio.sleep(pause)
        quiet += pause


async def run_news(library: Library, key: str, seen: int | None, ending: Ending) -> AsyncIterator[str]:
    """A run's rounds as they come: first all since ``seen``, or only the newest state for a new browser."""
    yield RETRY
    state: object = None
    async for changed in changes(lambda: library.signature(key), ending, POLL_SECONDS):
        if not changed:
            yield BEAT
            continue
        runs, _ = await run_in_threadpool(library.some, [key], complete=True)
        if key not in runs:
            yield event("gone", {})
            return
        run = runs[key]
        known = len(run.records)
        if seen is None or seen > known:  # new here, or the run went back to an older checkpoint
            seen = known
            yield event("reset", {"round": known}, known)
        for record in run.records[seen:]:
            yield event("round", headline(record), record["round"])
        seen = known
        if (run.state, run.warmup) != state:
            state = run.state, run.warmup
            yield event("state", {"state": run.state}, known)


async def library_news(library: Library, ending: Ending) -> AsyncIterator[str]:
    """An event whenever some run has changed, appeared or disappeared."""
    yield RETRY
    first = True
    async for changed in changes(library.signatures, ending, 2 * POLL_SECONDS):
        if changed and not first:
            yield event("runs", {"runs": len(library.paths())})
        elif not changed:
            yield BEAT
        first = False
