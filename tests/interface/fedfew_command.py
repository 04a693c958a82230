"""The command in this process or in one of its own, and runs that last long enough to be disturbed."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tiny_run import TINY, children, eventually

from fedfew.config.files import dumps
from fedfew.interface.cli import main

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Said:
    """What a command gave back."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def fedfew(capsys: Capture, *words: object) -> Said:
    """Run a command; a traceback would end the test."""
    before, capsys_before = sys.argv, capsys.readouterr()
    assert capsys_before is not None
    sys.argv = ["fedfew", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return Said(status, captured.out, captured.err)


LASTING: dict[str, Any] = TINY | {
    "rounds": 40,
    "fleet": {"kind": "pool", "workers": 2},
}
"""Long enough to be hit, short enough to be finished."""


def write_config(folder: Path, document: dict[str, Any] = LASTING) -> Path:
    path = folder / "lasting.toml"
    path.write_text(dumps(document), "utf-8")
    return path


def launch(*words: object, module: str = "fedfew") -> subprocess.Popen[str]:
    """A process of its own, fedfew's command line unless another module is given."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def committed(run: Path) -> int:
    """The newest round that has a manifest; −1 before the folder is there."""
    numbers = [int(path.stem.removeprefix("round-")) for path in (run / "checkpoints").glob("round-*.json")]
    return max(numbers, default=-1)


def under_way(process: subprocess.Popen[str], run: Path, rounds: int) -> list[int]:
    """Wait until some rounds are done, and give the ids of the workers."""
    there = eventually(lambda: committed(run) >= rounds or process.poll() is not None, 180)
    assert there and process.poll() is None, process.communicate()
    return children(process.pid)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a finished process said in its last line."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
