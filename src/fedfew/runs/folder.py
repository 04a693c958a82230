"""The run folder: the truth about a run; reports, pages and comparisons are derived from it."""

import errno
import json
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import sync_folder

CONFIG, ENVIRONMENT, PARTITION, ROUNDS = "run.toml", "environment.json", "partition.npz", "rounds.jsonl"
SUMMARY, MODEL, CHECKPOINTS = "summary.json", "model.safetensors", "checkpoints"
CLASSES = "classes.json"

KEYS = frozenset({"round", "accuracy"})
"""What every reader of a record counts on."""
RESUME = "`fedfew resume` restores it"


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
            what = "is not a run folder" if folder.path.exists() else "does not exist"
            raise FedfewError("E302", str(path), what)
        return folder

    def records(self) -> list[dict[str, Any]]:
        """The rounds so far; a line still being written is left out."""
        place = self / ROUNDS
        try:
            content = place.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FedfewError("E309", str(place), f"cannot be read: {error.strerror or error}") from None
        lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
        try:
            records = [json.loads(line) for line in lines]
        except ValueError as error:
            raise FedfewError("E309", str(place), f"holds a line that is not JSON ({error})", RESUME) from None
        if not all(isinstance(record, dict) and record.keys() >= KEYS for record in records):
            raise FedfewError("E309", str(place), "holds a line that is not the record of a round", RESUME)
        return records


def new_folder(out: str | Path | None, name: str) -> Path:
    """Where a run goes: ``out``, or runs/NAME-TIME; a folder that already holds something is refused."""
    if out is None:
        base = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        path, number = base, 1
        while path.exists():
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        return path
    path = Path(out)
    try:
        if path.resolve() == Path.cwd():
            raise FedfewError("E301", str(path), "is the folder you are in", "Give the name of a new folder")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedfewError("E301", str(path), "is not empty" if path.is_dir() else "is a file")
    except OSError as error:
        raise FedfewError("E305", str(path), f"{error.strerror or error}") from error
    return path


def stage(path: Path) -> Path:
    """An empty folder beside the run's place, to prepare it in."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        (staged / CHECKPOINTS).mkdir(parents=True)
    except OSError as error:
        raise FedfewError("E305", str(path), f"{error.strerror or error}") from error
    return staged


def put_in_place(staged: Path, path: Path) -> None:
    """Rename a folder that was prepared beside its place, so that a run folder is there whole or not at all."""
    try:
        staged.rename(path)  # over an empty folder too; one that has been filled meanwhile is refused
        sync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        raise FedfewError("E301" if taken else "E305", str(path), f"cannot be used: {error.strerror}") from error
