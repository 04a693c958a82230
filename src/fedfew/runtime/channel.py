"""Messages between the pool and its workers: JSON lines over a socket pair; tensors go through arenas.

It imports nothing slow: a worker watches its parent before it imports torch.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

LONGEST = 1 << 26  # bytes of a message: far above any honest one, far below what would hurt


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.end, self._lines = end, end.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; raises OSError when the other side is closed."""
        self.end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None when the other side is closed or sends something else."""
        try:
            message = json.loads(self._lines.readline(LONGEST))
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Close this end; the other one then receives None."""
        self._lines.close()
        self.end.close()


def import_path() -> str:
    """PYTHONPATH of a process that is to find all that this one finds, a user's own code too."""
    return os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)


def end_with_parent(lifeline: int) -> None:
    """Exit at once when the process with the other end of this pipe has ended, even in the middle of a batch."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
