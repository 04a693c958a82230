"""The round loop's connection to the ServerApp: waits for it, sends requests, and notices when it is lost."""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.frames import FrameError, Parts, receive, send


class ConnectionLostError(Exception):
    """The ServerApp has died, and every pending message is lost with it."""


class Connection(Protocol):
    """Requests to Flower's Grid; raises ConnectionLostError once for every time the ServerApp was lost."""

    def request(self, head: Mapping[str, Any], parts: Parts) -> tuple[dict[str, Any], dict[str, memoryview]]: ...

    def close(self) -> None: ...


class ServerAppConnection:
    """A Unix socket to which the ServerApp of the current Flower run connects; ``start_run`` starts a Flower run."""

    def __init__(self, start_run: Callable[[], None], patience: float = 120.0) -> None:
        self._start_run, self._patience = start_run, patience
        self._folder = Path(tempfile.mkdtemp(prefix="fedfew-"))  # mode 0700: this user only; a short path
        self.path = self._folder / "serverapp"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(4)
        self._end: socket.socket | None = None
        self._lost = False

    def request(self, head: Mapping[str, Any], parts: Parts) -> tuple[dict[str, Any], dict[str, memoryview]]:
        """Ask and wait for the answer; starts a Flower run first if there is none."""
        if self._end is None:
            again, self._lost = self._lost, False
            self._end = self._accept()
            if again:
                raise ConnectionLostError
        try:
            send(self._end, head, parts)
            return receive(self._end)
        except FrameError:
            self._disconnect()
            self._lost = True
            return self.request(head, parts)  # starts the next run, and raises because the old one is lost

    def _accept(self) -> socket.socket:
        """Start a Flower run and wait for its ServerApp to connect; three attempts at most."""
        last: Exception | None = None
        for attempt in range(3):
            try:
                self._start_run()
            except FedfewError as error:
                last = error
                sleep(2.0 * attempt)
                continue
            deadline = monotonic() + self._patience
            self._listener.settimeout(self._patience)
            while monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    end, _ = self._listener.accept()
                    end.settimeout(2 * self._patience)
                    return end
        raise last or FedfewError("E508", "ServerApp", f"did not connect within {self._patience:g} s, three times")

    def _disconnect(self) -> None:
        if self._end is not None:
            self._end.close()
        self._end = None

    def close(self) -> None:
        """Disconnect, which ends the Flower run."""
        self._disconnect()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
