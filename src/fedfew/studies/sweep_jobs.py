"""Several cells at a time, each in its own process with an inline fleet; the results are the same as one by one."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedfew.build.parts import cores
from fedfew.core.errors import FedfewError
from fedfew.studies.sweep import BUSY, Cell, Event, done_first, index, nothing_to_do

INLINE: dict[str, Any] = {"fleet.kind": "inline"}


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
    known = index(folder)
    waiting = done_first(cells, folder, known, until)
    running: dict[int, Job] = {}
    lines: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                path = known.get(cell.identity, folder / cell.folder)
                if event := nothing_to_do(cell, path, until):
                    yield event
                    continue
                job = _start(cell, path, {"until": until, "anyway": anyway, "command": command})
                running[job.process.pid] = job
                threading.Thread(target=_listen, args=(job.process, lines), daemon=True).start()
            if running:
                pid, line = lines.get()
                yield from _events(running[pid], line)
                if not line:
                    running.pop(pid).process.wait()
    finally:
        for job in running.values():
            _end(job.process)


def _start(cell: Cell, path: Path, more: Mapping[str, Any]) -> Job:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fedfew.studies.sweep_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    job = {"name": cell.name, "document": cell.config.document, "path": str(path), "fleet": INLINE, **more}
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
    if not line:  # its end; without a final message it was killed
        if not job.settled:
            what = f"its process ended with status {job.process.wait()}"
            yield Event(job.cell, "failed", job.path, fault=FedfewError("E310", str(job.path), what))
        return
    message = json.loads(line)
    kind = message["kind"]
    job.settled = job.settled or kind in ("failed", "finished", "paused")
    if kind in ("failed", "warned"):
        fault = FedfewError(message["code"], message["place"], message["what"], message["remedy"])
        busy = kind == "failed" and fault.code in BUSY
        yield Event(job.cell, "busy" if busy else kind, job.path, fault=fault)
    else:
        yield Event(job.cell, kind, job.path, message.get("record"), done=message.get("done", 0))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Closing its stdin ends a worker; every round it has done is saved."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.wait()
