"""Messages between the pool and its workers: JSON lines over a socket pair; tensors go through arenas.

It imports nothing slow: a worker watches its parent before it imports torch.
"""

import json
import os
import socket
import threading
from typing import Any

LONGEST = 1 << 26  # bytes of a message: far above any honest one, far below what would hurt


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._pending = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; raises OSError when the other side is closed."""
        self.end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None when the other side is closed or sends something else."""
        while b"\n" not in self._pending:
            try:
                part = self.end.recv(1 << 16)
            except OSError:
                return None
            if not part or len(self._pending) > LONGEST:
                return None
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None


def end_with_parent(lifeline: int) -> None:
    """Exit at once when the process with the other end of this pipe has ended, even in the middle of a batch."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
