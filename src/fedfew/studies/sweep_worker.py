"""One cell of a sweep in its own process, started as ``python -m fedfew.studies.sweep_worker``.

The job is the first line of stdin; each round is a line on stdout. When stdin closes, the parent process is gone, and
this one ends too; all finished rounds are saved.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fedfew.config.schema import Config
from fedfew.core.errors import FedfewError
from fedfew.runtime.lifeline import end_with_parent
from fedfew.studies.sweep import Cell, open_cell, rounds_until


def main() -> None:
    """Run the cell to its end, or report the error."""
    job = _first_line()
    end_with_parent(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent closes stdin in its time
    cell = Cell(job["name"], Config(job["document"]))
    try:
        session = open_cell(
            cell, Path(job["path"]), lambda fault: _report("warned", fault), job["fleet"], anyway=job["anyway"],
            command=job["command"],
        )  # fmt: skip
        _say({"kind": "started", "done": session.state.round})
        for record in rounds_until(session, job["until"]):
            _say({"kind": "round", "record": record})
    except FedfewError as fault:
        _report("failed", fault)
    else:
        _say({"kind": "finished" if session.state.round >= session.rounds else "paused"})


def _first_line() -> dict[str, Any]:
    """Read byte by byte, so that nothing after the line is taken from the pipe."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    job: dict[str, Any] = json.loads(line)
    return job


def _report(kind: str, fault: FedfewError) -> None:
    _say({"kind": kind, "code": fault.code, "place": fault.place, "what": fault.what, "remedy": fault.remedy})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
