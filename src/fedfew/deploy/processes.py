"""Supervised processes: each has a guard, is restarted when it dies, and ends with this process."""

import contextlib
import json
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
from fedfew.runtime.channel import import_path

_LONGEST_PAUSE = 8.0
LOG_CAP = 8 * 2**20
"""Bytes at which a log is rotated; one older log stays."""


@dataclass(eq=False)
class ManagedProcess:
    """A command with its guard process; closing the lifeline ends both and all they started."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    restart: bool = True
    process: subprocess.Popen[bytes] | None = None
    lifeline: int = -1
    starts: int = 0
    restart_at: float = 0.0
    started_at: float = 0.0

    def start(self) -> None:
        """Start the command; its output is added to the log."""
        watched, self.lifeline = os.pipe()
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "fedfew.deploy.process_guard", str(watched), *self.command],
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
        self.started_at = monotonic()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def request_stop(self) -> None:
        """Ask it to end."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def stop(self, patience: float) -> None:
        """Wait for it to end; whatever is left of its group is then killed."""
        self.request_stop()
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)

    def rotate_log(self) -> None:
        """Rotate a long log. It is copied and emptied, because the process goes on appending to the same file."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_CAP:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)

    def log_tail(self, lines: int = 6) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            content = self.log.read_text("utf-8", errors="replace").strip().splitlines()[-lines:]
            return " | ".join(map(log_text, content))[-1800:]
        return ""


def log_text(line: str) -> str:
    """What a process wrote, of a line of its log."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(line)["text"])
    return line


@dataclass(eq=False)
class Supervisor:
    """Watches several processes from a thread: one that dies is restarted after a growing pause."""

    logs: Path
    processes: dict[str, ManagedProcess] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def add(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, restart: bool = True
    ) -> ManagedProcess:
        """Start a process and watch it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        process = ManagedProcess(name, command, environment, self.logs / f"{name}.log", restart)
        with self._lock:
            process.start()
            self.processes[name] = process
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return process

    def _watch(self) -> None:
        while not self._closing.wait(0.2):
            with self._lock:
                for process in self.processes.values():
                    process.rotate_log()
                    if not process.running and process.restart and not self._closing.is_set():
                        self._restart(process)

    def _restart(self, process: ManagedProcess) -> None:
        now = monotonic()
        if not process.restart_at:  # just found dead; a quick death makes the next pause longer
            process.stop(0.0)
            quick = now - process.started_at < 30
            process.restart_at = now + (min(0.5 * 2 ** min(process.starts, 10), _LONGEST_PAUSE) if quick else 0.5)
        elif now >= process.restart_at:
            process.restart_at = 0.0
            process.start()

    def restart(self, name: str) -> None:
        """End a process and start it again at once, with what its files say now."""
        with self._lock:
            process = self.processes[name]
            process.stop(12.0)
            process.restart_at = 0.0
            process.start()

    def close(self) -> None:
        """End all of them together, and wait until they have ended."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(10.0)
        with self._lock:
            for process in self.processes.values():
                process.request_stop()
            for process in self.processes.values():
                process.stop(12.0)
            self.processes.clear()


def free_ports(count: int) -> list[int]:
    """Free ports of this machine, all different."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def check_port(host: str, port: int) -> None:
    """E504 if the port is in use, or the address does not belong to this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise FedfewError("E504", f"{host}:{port}", f"cannot be used: {error.strerror}") from None


def flower_environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes: its own home, no telemetry, no update check, no run-time installs."""
    scripts = sysconfig.get_path("scripts")
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")), "127.0.0.1,localhost"]))
    return os.environ | {
        "NO_PROXY": direct,  # Flower's processes on this machine talk to each other
        "no_proxy": direct,
        "PYTHONSAFEPATH": "1",  # a folder called fedfew in the working directory is not this package
        "PYTHONPATH": import_path(),
        "NO_COLOR": "1",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def wait_until(ready: Callable[[], bool], process: ManagedProcess, patience: float, reason: str) -> None:
    """Wait until a process is ready; E508 with the end of its log if it takes too long or keeps dying."""
    deadline = monotonic() + patience
    while monotonic() < deadline:
        if ready():
            return
        if process.starts > 3 or (not process.running and not process.restart):
            break
        sleep(0.1)
    raise FedfewError("E508", reason, f"was not ready within {patience:g} s: {process.log_tail() or 'no output'}")
