"""Guards one process: when its owner is gone, even by kill -9, the process and everything it started end too.

Run as ``python -m fedfew.deploy.process_guard LIFELINE COMMAND…`` in a session of its own; LIFELINE is the reading
end of a pipe whose other end the owner holds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

GRACE = 8.0


def main(lifeline: int, command: list[str]) -> int:
    """Run the command until it ends or the owner does."""
    # TERM goes to the whole group, this process included; a handler, unlike SIG_IGN, is not inherited by the command
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=True)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    while child.poll() is None:
        if select.select([lifeline], [], [], 0.2)[0]:
            break  # nothing is ever written: readable means closed
    os.killpg(0, signal.SIGTERM)
    deadline = monotonic() + GRACE
    while monotonic() < deadline and (child.poll() is None or _others()):
        sleep(0.05)
    status = child.poll()
    if status is None or _others():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.killpg(0, signal.SIGKILL)  # ends this process as well
    return status if status is not None and status >= 0 else 128 + abs(status or 0)


def _others() -> bool:
    """Whether processes other than this one are left in the group (where the system lets us see that)."""
    group = os.getpgrp()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z" and entry.name != str(os.getpid()):
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
