"""The run folder: the only record of a run; reports, pages and comparisons are derived from it."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from fedfew.core.errors import FedfewError
from fedfew.core.storage import sync_folder, writing
from fedfew.runs.reading import read_rounds
from fedfew.runtime.record import RoundRecord

CONFIG, ENVIRONMENT, PARTITION, ROUNDS = "run.toml", "environment.json", "partition.npz", "rounds.jsonl"
SUMMARY, MODEL, CHECKPOINTS = "summary.json", "model.safetensors", "checkpoints"
CLASSES, LOCK = "classes.json", "lock"
EVALUATION, PREDICTIONS = "evaluation.json", "predictions.safetensors"
BEST = "model_best.safetensors"
WARMUP = "warmup.safetensors"
"""In checkpoints/, until the first round is done."""


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @staticmethod
    def open(path: str | Path) -> "RunFolder":
        """A folder that holds a run, or E302."""
        folder = RunFolder(Path(path))
        if not (folder / CONFIG).is_file() and not folder.checkpoints.is_dir():
            problem = "is not a run folder" if folder.path.exists() else "does not exist"
            raise FedfewError("E302", str(path), problem)
        return folder

    def records(self) -> list[RoundRecord]:
        """The rounds so far."""
        return read_rounds(self / ROUNDS).records


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below a folder, by name; hidden folders (runs being prepared) and links are left out."""
    runs = []
    for path, subfolders, files in os.walk(folder):
        if CONFIG in files:
            runs.append(Path(path))
            subfolders.clear()
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    return sorted(runs)


def runs_in(folder: Path) -> list[Path]:
    """The run folders directly in a folder, by name; hidden ones are left out."""
    return sorted(file.parent for file in folder.glob(f"[!.]*/{CONFIG}"))


def siblings(path: Path) -> list[Path]:
    """The other runs in the folder of a run, by name; not those deeper, for a run may lie in a home folder."""
    own = path.resolve()
    return [other for other in runs_in(own.parent) if other != own]


def held_locks() -> frozenset[int] | None:
    """Inodes of the files that some process holds a lock on; None if the system does not say."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text("ascii").splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    return frozenset(int(row[5].rpartition(":")[2]) for row in rows if row[1] == "FLOCK")


def is_held(folder: Path, locks: frozenset[int] | None) -> bool | None:
    """Whether a process is working on a run, without touching its lock; None if the system does not say."""
    try:
        inode = (folder / LOCK).stat().st_ino
    except OSError:
        return False  # no process has worked on the run yet
    return None if locks is None else inode in locks


def new_folder(out: str | Path | None, name: str) -> Path:
    """The folder of a new run: ``out``, or runs/NAME-TIME; a folder that is not empty is refused."""
    if out is None:
        return free_folder(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    path = Path(out)
    with writing(path):
        if path.resolve() == Path.cwd():
            raise FedfewError("E301", str(path), "is the current folder", "Give the name of a new folder")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedfewError("E301", str(path), "is not empty" if path.is_dir() else "is a file")
    return path


def free_folder(path: Path) -> Path:
    """The path, with a number added if something is there."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([path], numbered) if not candidate.exists())


@contextlib.contextmanager
def staged(path: Path) -> Iterator[RunFolder]:
    """A new run folder, prepared next to its place and then moved there: it is there completely or not at all."""
    folder = RunFolder(path.with_name(f".{path.name}.{os.getpid()}.tmp"))
    with writing(path):
        folder.checkpoints.mkdir(parents=True)
    try:
        yield folder
        folder.path.rename(path)  # replaces an empty folder; fails if it has been filled meanwhile
        sync_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        raise FedfewError("E301" if taken else "E305", str(path), f"cannot be used: {error.strerror}") from error
