"""The command as a person calls it, and small runs, trained or written by hand, to call it with."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.runs.own_runs import blank_record
from tests.runtime.tiny_run import TINY, children, eventually

from fedfew import Experiment
from fedfew.config.files import dumps
from fedfew.interface.cli import main
from fedfew.interface.page.access import own_names
from fedfew.interface.page.app import listen, make_server

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


SMALL = {
    "rounds": 3,
    "clients": 6,
    "participation": 0.5,
    "labels": 20,
    "dataset.unlabeled": 120,
    "dataset.validation": 50,
    "dataset.test": 100,
    "server.epochs": 1,
    "method.views": 2,
    "method.threshold": 0.1,
    "model.width": 4,
    "fleet.kind": "inline",
}


def small_run(out: Path, **chosen: Any) -> Path:
    """A real run; keys are written with __ for the dot."""
    settings = SMALL | {key.replace("__", "."): value for key, value in chosen.items()}
    if settings.get("method.name", "fedmix") != "fedmix":
        settings = {key: value for key, value in settings.items() if key not in ("method.views", "method.threshold")}
    experiment = Experiment.load("quick", settings)
    for _ in experiment.start(out, f"fedfew run quick --out {out.name}").advance():
        pass
    return out


def record(number: int, **values: Any) -> dict[str, Any]:
    """A round's record in which nothing happens but what is given."""
    usual = {"accuracy": 0.1, "loss": 2.3, "validation": 0.1, "norm_server": 1.0, "norm_step": 0.5}
    return blank_record(round=number, seconds={"server": 0.1}) | usual | values


def written_run(out: Path, records: list[dict[str, Any]], **config: Any) -> Path:
    """A run folder as a run would have left it after these rounds, without training."""
    out.mkdir(parents=True)
    settings = Experiment.load("quick", {k.replace("__", "."): v for k, v in config.items()}).config.document
    from fedfew.config.files import dumps

    (out / "run.toml").write_text(dumps(settings))
    (out / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return out


@contextlib.contextmanager
def serving(root: Path, token: str = "", port: int = 0) -> Iterator[str]:
    """The address of a page about the runs below ``root``."""
    with listen("127.0.0.1", port) as sock:
        server = make_server(root, own_names("127.0.0.1"), token)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
