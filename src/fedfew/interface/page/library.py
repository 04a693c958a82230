"""The runs below a folder, each read again only when it has changed; a run's address does not reveal its name."""

import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

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

FILES = (CONFIG, ROUNDS, SUMMARY, ENVIRONMENT, CLASSES, f"{CHECKPOINTS}/{WARMUP}")
SCAN_SECONDS = 2.0
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
        """The signatures of all runs."""
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
