"""Guards one process: when its owner is gone, even by kill -9, the process and everything it started end too.

Run as ``python -m fedfew.deploy.process_guard LIFELINE COMMAND…`` in a session of its own; LIFELINE is the reading
end of a pipe whose other end the owner holds.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep

GRACE = 8.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def main(lifeline: int, command: list[str]) -> int:
    """Run the command until it ends or the owner does."""
    # TERM goes to the whole group, this process included; a handler, unlike SIG_IGN, is not inherited by the command
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    output, log = os.pipe()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=True)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    finally:
        os.close(log)
    writer = threading.Thread(target=_write_log, args=(output,), daemon=True)
    writer.start()
    while child.poll() is None:
        if select.select([lifeline], [], [], 0.2)[0]:
            break  # nothing is ever written: readable means closed
    os.killpg(0, signal.SIGTERM)
    deadline = monotonic() + GRACE
    while monotonic() < deadline and (child.poll() is None or _others()):
        sleep(0.05)
    status = child.poll()
    if status is None or _others():
        os.killpg(0, signal.SIGKILL)  # ends this process as well
    writer.join(1.0)
    return status if status is not None and status >= 0 else 128 + abs(status or 0)


def _write_log(output: int) -> None:
    """Pass the command's lines on as JSON, each with the time and without colours."""
    with os.fdopen(output, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            content = json.dumps({"time": now, "text": _COLOURS.sub("", line.rstrip())}, ensure_ascii=False)
            with contextlib.suppress(OSError):  # a full disk must not stop the command
                os.write(1, f"{content}\n".encode())


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
