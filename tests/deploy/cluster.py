"""Real Flower clusters for tests: a network in a folder, its server and sites as processes of the command line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from fedfew.config.files import dumps
from fedfew.config.parts import federation_of
from fedfew.config.schema import load
from fedfew.deploy.plan import ServerPlan, make_network
from fedfew.deploy.processes import free_ports

FEDFEW = [sys.executable, "-m", "fedfew"]
PATIENCE = 4.0
"""All times that tests wait for something are multiplied by this. They are those of a machine with nothing else to do;
what is waited for comes on a busy one too, and when it has come nobody waits longer."""


def eventually(true: Callable[[], Any], seconds: float = 120.0, pause: float = 0.1) -> Any:
    """What ``true`` gives once it is true; False after the time."""
    deadline = monotonic() + PATIENCE * seconds
    while monotonic() < deadline:
        if found := true():
            return found
        sleep(pause)
    return False


def descendants(pid: int) -> list[int]:
    """All processes below one, the guards' sessions included."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = list[int](), [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def named(pid: int, word: str) -> list[int]:
    """Descendants whose command line has a word, process guards left out."""
    found = []
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if word in line and "fedfew.deploy.process_guard" not in line:
                found.append(one)
    return found


def alive(pids: list[int]) -> list[int]:
    """Those that still run."""
    left = []
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                left.append(pid)
    return left


@dataclass
class Started:
    """A command of fedfew that runs in the background, with its output in files."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, seconds: float = 180.0) -> int:
        return self.process.wait(PATIENCE * seconds)

    def result(self) -> dict[str, Any]:
        """The JSON on the last line."""
        found: dict[str, Any] = json.loads(self.log.with_suffix(".out").read_text().splitlines()[-1])
        return found

    def errors(self) -> str:
        return self.log.with_suffix(".err").read_text()

    def end(self) -> None:
        """Politely, then for sure; nothing of it may be left."""
        below = descendants(self.pid)
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(40)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)
        if not eventually(lambda: not alive(below), 30):
            for pid in alive(below):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left running: {below}")


@dataclass
class Cluster:
    """A network and what was started of it."""

    folder: Path
    plan: ServerPlan
    started: list[Started] = field(default_factory=list)
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Site, or "server" → words before its command, which run it on a host of its own."""

    @property
    def run(self) -> Path:
        return self.plan.folder / "run"

    def start(self, *arguments: str, environment: dict[str, str] | None = None, host: str = "") -> Started:
        log = self.folder / f"command{len(self.started)}"
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [*self.hosts.get(host, ()), *FEDFEW, *arguments], stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                start_new_session=True, env=os.environ | {"COLUMNS": "200"} | (environment or {}),
            )  # fmt: skip
        self.started.append(Started(process, log))
        return self.started[-1]

    def server(self, *more: str, environment: dict[str, str] | None = None) -> Started:
        words = ("deploy", "server", str(self.plan.folder), "--json", *more)
        return self.start(*words, environment=environment, host="server")

    def site(self, name: str, *more: str, environment: dict[str, str] | None = None) -> Started:
        bundle, data = self.folder / "net" / "bundles" / f"{name}.tar", self.folder / f"{name}.npz"
        state = self.folder / "sites" / name
        return self.start(
            "deploy", "client", str(bundle), "--data", str(data), "--state", str(state), *more,
            environment=environment, host=name,
        )  # fmt: skip

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds that are committed."""
        path = self.run / "rounds.jsonl"
        if not path.exists():
            return []
        text = path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def round_done(self, number: int, seconds: float = 150.0) -> bool:
        return bool(eventually(lambda: len(self.rounds()) >= number, seconds))

    def words(self) -> str:
        """Everything that was said, for a failing test."""
        return "\n".join(f"{one.log.name}: {one.errors()[-2000:]}" for one in self.started)


@contextlib.contextmanager
def cluster(
    folder: Path, changes: dict[str, Any] | None = None, *, sites: tuple[str, ...] = ("a", "b"), host: str = "127.0.0.1"
) -> Iterator[Cluster]:
    """A network with small NPZ files for its sites; all that was started is ended."""
    settings = {
        "clients": len(sites), "participation": 1.0, "rounds": 3, "labels": 40, "dataset.validation": 20,
        "dataset.test": 40, "server.epochs": 1, "model.width": 4, "fleet.wait": 400.0, "fleet.timeout": 200.0,
    }  # fmt: skip
    config = load("quick", settings | (changes or {}))
    document = dumps(config.document)
    plan = make_network(folder / "net", sites, host=host, port=free_ports(1)[0], config=document)
    images = federation_of(config).samples.data.numpy()
    for number, name in enumerate(sites):
        np.savez(folder / f"{name}.npz", images=images[number * 40 : (number + 1) * 40])
    found = Cluster(folder, plan)
    try:
        yield found
    finally:
        faults = []
        for one in reversed(found.started):
            try:
                one.end()
            except AssertionError as fault:
                faults.append(str(fault))
        assert not faults, faults
