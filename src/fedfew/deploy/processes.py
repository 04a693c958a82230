"""Processes that belong to this one: started with a keeper, started again when they die, and ended with it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from fedfew.core.errors import FedfewError

_LONGEST_PAUSE = 8.0
LOG_CAP = 8 * 2**20
"""Bytes of a log from which on it is put aside; the one before it is kept."""


@dataclass(eq=False)
class Kept:
    """A command with its keeper; closing the lifeline ends both and all they started."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    again: bool = True
    process: subprocess.Popen[bytes] | None = None
    lifeline: int = -1
    starts: int = 0
    due: float = 0.0
    since: float = 0.0

    def start(self) -> None:
        """Start the command; its output is added to the log."""
        watched, self.lifeline = os.pipe()
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "fedfew.deploy.keeper", str(watched), *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(watched,),
                    env=dict(self.environment),
                    start_new_session=True,
                )
        finally:
            os.close(watched)
        self.starts += 1
        self.since = monotonic()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def let_go(self) -> None:
        """Ask it to end."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def bury(self, patience: float) -> None:
        """Wait for its end, then make sure of it; whatever is left of its group is killed."""
        self.let_go()
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)

    def turn_log(self) -> None:
        """Put a long log aside. It is copied and emptied, because the process goes on appending to the same file."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_CAP:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)

    def last_words(self, lines: int = 6) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return " | ".join(self.log.read_text("utf-8", errors="replace").strip().splitlines()[-lines:])[-900:]
        return ""


@dataclass(eq=False)
class Crew:
    """Several kept processes, looked after by a thread: one that dies is started again after a growing pause."""

    logs: Path
    members: dict[str, Kept] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def add(self, name: str, command: Sequence[str], environment: Mapping[str, str], *, again: bool = True) -> Kept:
        """Start a process and look after it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        kept = Kept(name, command, environment, self.logs / f"{name}.log", again)
        with self._lock:
            kept.start()
            self.members[name] = kept
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_after, daemon=True)
            self._thread.start()
        return kept

    def _look_after(self) -> None:
        while not self._closing.wait(0.2):
            with self._lock:
                for kept in self.members.values():
                    kept.turn_log()
                    if not kept.running and kept.again and not self._closing.is_set():
                        self._start_again(kept)

    def _start_again(self, kept: Kept) -> None:
        now = monotonic()
        if not kept.due:  # just found dead; a quick death is answered with a longer pause
            kept.bury(0.0)
            quick = now - kept.since < 30
            kept.due = now + (min(0.5 * 2 ** min(kept.starts, 10), _LONGEST_PAUSE) if quick else 0.5)
        elif now >= kept.due:
            kept.due = 0.0
            kept.start()

    def close(self) -> None:
        """End all of them, at once and for sure."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(10.0)
        with self._lock:
            for kept in self.members.values():
                kept.let_go()
            for kept in self.members.values():
                kept.bury(12.0)
            self.members.clear()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody uses, all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def check_port(host: str, port: int) -> None:
    """E504 if somebody listens there already, or the address is not one of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise FedfewError("E504", f"{host}:{port}", f"cannot be used: {error.strerror}") from None


def flower_environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes: own home, no telemetry, no update check, no run-time installs."""
    scripts = sysconfig.get_path("scripts")
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def wait_until(ready: Callable[[], bool], kept: Kept, patience: float, what: str) -> None:
    """Wait until a process is ready; E508 with the end of its log if it is not in time or keeps dying."""
    deadline = monotonic() + patience
    while monotonic() < deadline:
        if ready():
            return
        if kept.starts > 3 or (not kept.running and not kept.again):
            break
        sleep(0.1)
    raise FedfewError("E508", what, f"was not ready within {patience:g} s: {kept.last_words() or 'no output'}")
