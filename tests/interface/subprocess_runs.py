"""Real `fedfew` processes over a small config that takes a while, to be stopped and killed in the midst of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.runtime.processes import children, eventually
from tests.runtime.tiny_run import TINY

from fedfew.config.files import dumps

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
