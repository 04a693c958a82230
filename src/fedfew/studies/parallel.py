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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedfew.config.parts import cores
from fedfew.config.schema import check
from fedfew.core.errors import FedfewError
from fedfew.runtime.channel import end_with_parent
from fedfew.studies.sweep import Cell, Event, queue, run_cell


def check_jobs(jobs: int) -> None:
    """Refuse more processes than cores: they would only slow each other down."""
    if not 1 <= jobs <= cores():
        raise FedfewError("E103", "--jobs", f"{jobs} is not between 1 and the {cores()} cores of this machine", "")


@dataclass(eq=False)
class Job:
    """A running cell."""

    cell: Cell
    path: Path
    process: "subprocess.Popen[bytes]"
    settled: bool = False


def advance_parallel(
    cells: Sequence[Cell], folder: Path, jobs: int, *, until: int = 0, anyway: bool = False, command: str = ""
) -> Generator[Event, None, None]:
    """Like ``sweep.advance``, with up to ``jobs`` cells at a time."""
    check_jobs(jobs)
    waiting = queue(cells, folder, until)
    running: dict[int, Job] = {}
    lines: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    try:
        while True:
            while len(running) < jobs and (following := next(waiting, None)):
                cell, path, settled = following
                if settled:
                    yield settled
                    continue
                job = _start(cell, path, {"until": until, "anyway": anyway, "command": command})
                running[job.process.pid] = job
                threading.Thread(target=_listen, args=(job.process, lines), daemon=True).start()
            if not running:
                return
            pid, line = lines.get()
            yield from _events(running[pid], line)
            if not line:
                running.pop(pid).process.wait()
    finally:
        for job in running.values():
            _end(job.process)


def _start(cell: Cell, path: Path, options: Mapping[str, Any]) -> Job:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fedfew.studies.parallel"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    document = cell.config.document | {"fleet": cell.config.document["fleet"] | {"kind": "inline"}}
    job = {"name": cell.name, "document": document, "path": str(path), "options": options}
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
    return Job(cell, path, process)


def _listen(process: "subprocess.Popen[bytes]", lines: "SimpleQueue[tuple[int, bytes]]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put((process.pid, line))
    lines.put((process.pid, b""))


def _events(job: Job, line: bytes) -> Iterator[Event]:
    if line:
        event = json.loads(line)
        fault = FedfewError(*event["fault"]) if event["fault"] else None
        yield Event(job.cell, event["kind"], job.path, event["record"], fault, event["done"])
        job.settled = job.settled or event["kind"] in ("failed", "finished", "paused", "busy")
    elif not job.settled:  # without a final event it was killed
        why = f"its process ended with status {job.process.wait()}"
        yield Event(job.cell, "failed", job.path, fault=FedfewError("E310", str(job.path), why))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Closing its stdin ends a worker; every round it has done is saved."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.wait()


def work() -> None:
    """Run the cell of the job on stdin to its end, and report every event."""
    job = _first_line()
    end_with_parent(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent closes stdin in its time
    cell, path = Cell(job["name"], check(job["document"], allow_code=None)), Path(job["path"])

    def warn(fault: FedfewError) -> None:
        _report(Event(cell, "warned", path, fault=fault))

    try:
        for event in run_cell(cell, path, warn, **job["options"]):
            _report(event)
    except FedfewError as fault:
        _report(Event(cell, "failed", path, fault=fault))


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


def _report(event: Event) -> None:
    fault = event.fault and (event.fault.code, event.fault.place, event.fault.what, event.fault.remedy)
    line = {"kind": event.kind, "record": event.record, "done": event.done, "fault": fault}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work()
