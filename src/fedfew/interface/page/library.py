"""The runs below a folder, read again only when they have changed; each is addressed by a name that tells nothing."""

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from fedfew.core.errors import FedfewError
from fedfew.interface.report.facts import Facts, find_runs, lock_held, read_facts
from fedfew.runs.folder import CLASSES, CONFIG, ENVIRONMENT, ROUNDS, SUMMARY

FILES = (CONFIG, ROUNDS, SUMMARY, ENVIRONMENT, CLASSES)
SCAN_SECONDS = 2.0
Signature = tuple[tuple[int, int] | int | None, ...]


def key_of(path: Path, root: Path) -> str:
    """The opaque name of a run: a hash of where it is below the root."""
    return hashlib.sha256(path.relative_to(root).as_posix().encode()).hexdigest()[:16]


def signature(path: Path) -> Signature:
    """Changes whenever the run's files do, or its process begins or ends."""
    held = lock_held(path / "lock")
    return (*(_stamp(path / name) for name in FILES), int(time.time() / 15) if held is None else held)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@dataclass(eq=False)
class Library:
    """What the page may show: the runs below ``root`` and nothing else."""

    root: Path
    _paths: dict[str, Path] = field(default_factory=dict)
    _scanned: float = -SCAN_SECONDS
    _read: dict[str, tuple[Signature, Facts | FedfewError]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def paths(self) -> dict[str, Path]:
        """Where each run is, by its opaque name; looked up anew every two seconds at most."""
        with self._lock:
            if time.monotonic() - self._scanned >= SCAN_SECONDS:
                self._paths = {key_of(path, self.root): path for path in find_runs(self.root)}
                self._scanned = time.monotonic()
            return self._paths

    def path(self, key: str) -> Path | None:
        """Where a run is; None if there is none of that name."""
        return self.paths().get(key)

    def get(self, key: str) -> Facts | FedfewError | None:
        """The run as it is now, the fault that keeps it from being read, or None if there is no such run."""
        path = self.path(key)
        if path is None:
            return None
        now = signature(path)
        kept = self._read.get(key)
        if kept is None or kept[0] != now:
            kept = (now, self._load(path))
            self._read[key] = kept
        return kept[1]

    def all(self) -> dict[str, Facts]:
        """Every run that can be read, newest first."""
        found = {key: run for key in self.paths() if isinstance(run := self.get(key), Facts)}
        return dict(sorted(found.items(), key=lambda item: -_started(item[1].path)))

    def faults(self) -> list[FedfewError]:
        """Why the others cannot be read."""
        return [fault for key in self.paths() if isinstance(fault := self.get(key), FedfewError)]

    def _load(self, path: Path) -> Facts | FedfewError:
        name = path.relative_to(self.root).as_posix()
        try:
            return read_facts(path, self.root.name if name == "." else name)
        except FedfewError as fault:
            return fault


def _started(path: Path) -> float:
    try:
        return (path / CONFIG).stat().st_mtime
    except OSError:
        return 0.0
