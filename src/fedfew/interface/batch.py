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
from fedfew.studies.sweep import Cell, Event, advance


@dataclass(eq=False)
class Tally:
    """How the cells of a batch ended."""

    ran: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    paused: list[Path] = field(default_factory=list)
    busy: list[Path] = field(default_factory=list)
    failed: dict[Path, FedfewError] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return {
            "ran": len(self.ran),
            "skipped": len(self.skipped),
            "paused": len(self.paused),
            "busy": [str(path) for path in self.busy],
            "failed": {str(path): str(fault) for path, fault in self.failed.items()},
        }


def run_all(
    cells: Sequence[Cell], folder: Path, *, jobs: int = 0, until: int = 0, anyway: bool = False, command: str = ""
) -> Tally:
    """Run what is missing, one by one on the pool, or ``jobs`` at a time; on Ctrl-C show how to continue."""
    events = (
        advance_parallel(cells, folder, jobs, until=until, anyway=anyway, command=command)
        if jobs
        else advance(cells, folder, warn, until=until, anyway=anyway, command=command)
    )
    return follow_all(events, cells, command, jobs, until)


def follow_all(events: Iterator[Event], cells: Sequence[Cell], command: str, jobs: int = 0, until: int = 0) -> Tally:
    """Show events as they come; ``cells`` are the remaining ones, as far as known."""
    try:
        return _follow(events, cells, max(jobs, 1), until)
    except KeyboardInterrupt:
        err.print("stopped; every finished round is saved. The same command continues from there:")
        err.print(f"  {command}", markup=False, soft_wrap=True)
        raise


def _follow(events: Iterator[Event], cells: Sequence[Cell], abreast: int, until: int) -> Tally:
    tally, usual = Tally(), 0.0
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


def _note(event: Event, tally: Tally, shown: Progress) -> None:
    name = event.path.name
    if event.kind == "skipped":
        tally.skipped.append(event.path)
    elif event.kind == "busy":
        tally.busy.append(event.path)
        shown.say(f"[yellow]{name}: another process is working on it, skipped[/]")
    elif event.kind == "finished":
        tally.ran.append(event.path)
        shown.say(f"[green]done[/] {name}")
    elif event.kind == "paused":
        tally.paused.append(event.path)
    elif event.kind == "failed" and event.fault is not None:
        tally.failed[event.path] = event.fault
        shown.say(f"[red]failed[/] {name}")
        complain(event.fault)
    elif event.kind == "warned" and event.fault is not None:
        warn(event.fault)


def _wanted(cell: Cell, until: int) -> int:
    rounds = cell.config.rounds
    return min(rounds, until) if until else rounds
