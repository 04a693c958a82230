"""Stopping a run between two file operations, making them fail, and flipping bits: what a run folder must survive."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfew.core.errors import FedfewError
from fedfew.runs.run import Run
from fedfew.runs.session import reopen

OPERATIONS = ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "rename"))
"""Everything a checkpoint does to the disk passes through one of these."""


class Crash(BaseException):
    """The process is gone: nothing catches it, and nothing is done to the disk after it."""


class Disk:
    """Counts file operations, and from the chosen one on refuses them."""

    def __init__(self, stop_at: float = float("inf"), fault: Callable[[], BaseException] = Crash) -> None:
        self.done, self.stop_at, self.fault = 0, stop_at, fault

    def wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.done >= self.stop_at:
                raise self.fault()
            self.done += 1
            return operation(*args, **kwargs)

        return guarded


@contextlib.contextmanager
def disk(stop_at: float = float("inf"), fault: Callable[[], BaseException] = Crash) -> Iterator[Disk]:
    """File operations inside are counted; all from ``stop_at`` on fail."""
    watched = Disk(stop_at, fault)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in OPERATIONS:
            patch.setattr(owner, name, watched.wrap(getattr(owner, name)))
        yield watched


def resume(folder: Path, **options: Any) -> tuple[Run, list[FedfewError]]:
    """Go on to the end; gives the run and what was told on the way."""
    told: list[FedfewError] = []
    for _ in reopen(folder, told.append, **options).advance():
        pass
    return Run.open(folder), told


def copy_of(folder: Path, name: str) -> Path:
    """The folder once more, beside itself."""
    target = folder.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(content)


def files_of(folder: Path) -> list[Path]:
    """All files below a folder that hold something."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def quiet(fault: FedfewError) -> None:
    raise AssertionError(f"nothing should be wrong: {fault}")
