"""Several cells at a time, each in its own process with an inline fleet; the results are the same as one by one.

A process is started as ``python -m fedfew.studies.parallel``. Its job is the first line of stdin, and each event is a
line of stdout. When stdin closes, the parent is gone, and the process ends too; all finished rounds are saved.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedfew.config.parts import cores
from fedfew.config.schema import check
from fedfew.config.tables import apply_overrides
from fedfew.core.errors import FedfewError
from fedfew.runtime.channel import end_with_parent, import_path
from fedfew.studies.sweep import Cell, CellEvent, queue, run_cell

Process = subprocess.Popen[bytes]
Events = SimpleQueue[CellEvent | Process]
"""What the processes report; a process itself when it has ended."""


def check_jobs(jobs: int) -> None:
    """Refuse more processes than cores: they would only slow each other down."""
    if not 1 <= jobs <= cores():
        raise FedfewError("E103", "--jobs", f"{jobs} is not between 1 and the {cores()} cores of this machine", "")


def advance_parallel(
    cells: Sequence[Cell], folder: Path, jobs: int, *, until: int = 0, anyway: bool = False, command: str = ""
) -> Generator[CellEvent, None, None]:
    """Like ``sweep.advance``, with up to ``jobs`` cells at a time."""
    check_jobs(jobs)
    waiting, options = queue(cells, folder, until), {"until": until, "anyway": anyway, "command": command}
    running: set[Process] = set()
    events: Events = SimpleQueue()
    try:
        while True:
            while len(running) < jobs and (following := next(waiting, None)):
                cell, path, settled = following
                if settled:
                    yield settled
                    continue
                process = _start(cell, path, options)
                running.add(process)
                threading.Thread(target=_follow, args=(process, cell, path, events), daemon=True).start()
            if not running:
                return
            event = events.get()
            if isinstance(event, CellEvent):
                yield event
            else:
                running.remove(event)
    finally:
        for process in running:
            _end(process)


def _start(cell: Cell, path: Path, options: Mapping[str, Any]) -> Process:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fedfew.studies.parallel"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": import_path()},
    )
    document = apply_overrides(cell.config.document, {"fleet.kind": "inline"})
    job = {"name": cell.name, "document": document, "path": str(path), "options": options, "tuned": cell.tuned}
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
    return process


def _follow(process: Process, cell: Cell, path: Path, events: Events) -> None:
    """Pass on what a process reports, and last the process itself when it has ended."""
    assert process.stdout is not None
    settled = False
    for line in process.stdout:
        event = json.loads(line)
        fault = FedfewError(*event["fault"]) if event["fault"] else None
        events.put(CellEvent(cell, event["kind"], path, event["record"], fault, event["done"]))
        settled = settled or event["kind"] in ("failed", "finished", "paused", "busy")
    status = process.wait()
    if not settled:  # without a final event it was killed
        killed = FedfewError("E310", str(path), f"its process ended with status {status}")
        events.put(CellEvent(cell, "failed", path, fault=killed))
    events.put(process)


def _end(process: Process) -> None:
    """Closing its stdin ends a worker; every round it has done is saved."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait()


def work() -> None:
    """Run the cell of the job on stdin to its end, and report every event."""
    job = json.loads(sys.stdin.buffer.readline() or sys.exit(1))
    end_with_parent(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent closes stdin in its time
    cell = Cell(job["name"], check(job["document"], allow_code=None), job["tuned"])
    path = Path(job["path"])

    def warn(fault: FedfewError) -> None:
        _report(CellEvent(cell, "warned", path, fault=fault))

    try:
        for event in run_cell(cell, path, warn, **job["options"]):
            _report(event)
    except FedfewError as fault:
        _report(CellEvent(cell, "failed", path, fault=fault))


def _report(event: CellEvent) -> None:
    fault = event.fault and (event.fault.code, event.fault.where, event.fault.message, event.fault.remedy)
    line = {"kind": event.kind, "record": event.record, "done": event.done, "fault": fault}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work()
