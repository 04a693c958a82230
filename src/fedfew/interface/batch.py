"""Progress of many runs on the console: one bar over all their rounds, and a line for each run that ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedfew.core.errors import FedfewError
from fedfew.core.text import duration, percent
from fedfew.interface.console import complain, err, warn
from fedfew.interface.progress import LONG, Progress, progress
from fedfew.runtime.record import pace
from fedfew.studies.parallel import advance_parallel
from fedfew.studies.sweep import Cell, CellEvent, advance, named

ENDS = ("skipped", "busy", "finished", "paused", "failed")


@dataclass(eq=False)
class BatchResult:
    """How the cells of a batch ended."""

    ends: list[CellEvent] = field(default_factory=list)

    @property
    def cells(self) -> list[Cell]:
        """Every cell once."""
        return list({event.cell.identity: event.cell for event in self.ends}.values())

    def paths(self, kind: str) -> list[Path]:
        return [event.path for event in self.ends if event.kind == kind]

    @property
    def failed(self) -> dict[Path, FedfewError]:
        return {event.path: event.fault for event in self.ends if event.kind == "failed" and event.fault}

    def as_json(self) -> dict[str, object]:
        counts = {"ran": "finished", "skipped": "skipped", "paused": "paused"}
        return {name: len(self.paths(kind)) for name, kind in counts.items()} | {
            "busy": [str(path) for path in self.paths("busy")],
            "failed": {str(path): str(fault) for path, fault in self.failed.items()},
        }


def run_all(
    cells: Sequence[Cell], folder: Path, *, jobs: int = 0, until: int = 0, anyway: bool = False, command: str = ""
) -> BatchResult:
    """Run what is missing, one by one on the pool, or ``jobs`` at a time; on Ctrl-C show how to continue."""
    events = (
        advance_parallel(cells, folder, jobs, until=until, anyway=anyway, command=command)
        if jobs
        else advance(cells, folder, warn, until=until, anyway=anyway, command=command)
    )
    return follow_all(events, cells, command, jobs, until)


def run_with_names(
    cells: Sequence[Cell], folder: Path, *, jobs: int = 0, until: int = 0, anyway: bool = False, command: str = ""
) -> BatchResult:
    """``run_all``, and beside it labels and class names alone wherever a backbone knows the names."""
    tally = run_all(cells, folder, jobs=jobs, until=until, anyway=anyway, command=command)
    if more := named(cells, folder):
        tally.ends += run_all(more, folder, jobs=jobs, until=until, anyway=anyway, command=command).ends
    return tally


def follow_all(
    events: Iterator[CellEvent], cells: Sequence[Cell], command: str, jobs: int = 0, until: int = 0
) -> BatchResult:
    """Show events as they come; ``cells`` are the remaining ones, as far as known."""
    try:
        return _follow(events, cells, max(jobs, 1), until)
    except KeyboardInterrupt:
        err.print("stopped; every finished round is saved. The same command continues from there:")
        err.print(f"  {command}", markup=False, soft_wrap=True)
        raise


def _follow(events: Iterator[CellEvent], cells: Sequence[Cell], abreast: int, until: int) -> BatchResult:
    tally, usual = BatchResult(), 0.0
    total = sum(_wanted(cell, until) for cell in cells)
    done = made = 0
    with progress() as shown:
        shown.phase(f"{len(cells)} runs" if cells else "search", total, "rounds")
        for event in events:
            note, rounds = "", _wanted(event.cell, until)
            if event.record is not None:
                done, made = done + 1, made + 1
                note = f"{event.cell.name}: {event.record['round']}/{rounds} {percent(event.record['accuracy'])}"
            elif event.kind == "started":
                done += event.done
            elif event.kind in ("skipped", "busy") or (event.kind == "paused" and event.done):
                done += rounds
            shown.move(done, note)
            _note(event, tally, shown)
            if event.record is not None and made == 1:
                usual = pace(event.record) / abreast
                if usual * (total - done) > LONG:
                    left = f"{duration(usual * (total - done))} for {total - done} rounds"
                    shown.say(f"about {left}, at the pace of the first")
    return tally


def _note(event: CellEvent, tally: BatchResult, shown: Progress) -> None:
    if event.kind in ENDS:
        tally.ends.append(event)
    words = {"busy": "[yellow]skipped, another process is working on it:[/]", "finished": "[green]done[/]"}
    words |= {"failed": "[red]failed[/]"}
    if event.kind in words:
        shown.say(f"{words[event.kind]} {event.path.name}")
    if event.fault is not None and event.kind == "failed":
        complain(event.fault)
    elif event.fault is not None and event.kind == "warned":
        warn(event.fault)


def _wanted(cell: Cell, until: int) -> int:
    rounds = cell.config.rounds
    return min(rounds, until) if until else rounds
