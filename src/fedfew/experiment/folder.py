"""The run folder: the truth about a run; reports, pages and comparisons are derived from it."""

import json
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.experiment.storage import append_durably, digest, write_atomically

CONFIG, ENVIRONMENT, PARTITION, ROUNDS = "run.toml", "environment.json", "partition.npz", "rounds.jsonl"
SUMMARY, MODEL, CHECKPOINTS = "summary.json", "model.safetensors", "checkpoints"
CLASSES = "classes.json"


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
        try:
            content = (self / ROUNDS).read_bytes()
        except FileNotFoundError:
            return []
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise FedfewError("E309", str(self / ROUNDS), f"holds a line that is not JSON ({error})") from None

    def append(self, record: dict[str, Any]) -> None:
        """Add a round, here and in the copy that restores this file if it is damaged."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        append_durably(self / ROUNDS, line)
        append_durably(self.checkpoints / ROUNDS, line)

    def rounds_seal(self) -> dict[str, Any]:
        """Length and hash of rounds.jsonl as it is, for the checkpoint's manifest."""
        content = (self / ROUNDS).read_bytes()
        return {"bytes": len(content), "sha256": digest(content)}

    def restore_rounds(self, seal: dict[str, Any]) -> bool:
        """Bring rounds.jsonl and its copy back to the sealed state; False if neither of them has it."""
        places = [self / ROUNDS, self.checkpoints / ROUNDS]
        for place in places:
            content = place.read_bytes()[: seal["bytes"]] if place.exists() else b""
            if len(content) == seal["bytes"] and digest(content) == seal["sha256"]:
                for other in places:
                    if not other.exists() or other.read_bytes() != content:
                        write_atomically(other, content)
                return True
        return False


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
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FedfewError("E301", str(path), "is not empty")
    return path


def put_in_place(staged: Path, path: Path) -> None:
    """Rename a folder that was prepared beside its place, so that a run folder is there whole or not at all."""
    try:
        if path.is_dir():
            path.rmdir()  # empty: new_folder has looked
        staged.rename(path)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise FedfewError("E301", str(path), f"cannot be used: {error.strerror}") from error


def stage(path: Path) -> Path:
    """An empty folder beside the run's place, to prepare it in."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        (staged / CHECKPOINTS).mkdir(parents=True)
    except OSError as error:
        raise FedfewError("E305", str(path), f"{error.strerror}") from error
    return staged

