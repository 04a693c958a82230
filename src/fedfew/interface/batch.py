"""Progress of many runs on the console: one bar over all their rounds, and a line for each run that ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from fedfew.core.errors import FedfewError
from fedfew.interface.console import complain, err, percent, warn
from fedfew.interface.progress import LONG
from fedfew.runtime.record import pace
from fedfew.studies.sweep import Cell, Event, advance
from fedfew.studies.sweep_jobs import advance_parallel


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
    left, done = total, 0
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task(f"{len(cells)} runs" if cells else "search", total=total or None)
        for event in events:
            rounds = _wanted(event.cell, until)
            if event.record is not None:
                left, done = left - 1, done + 1
                note = f"{event.cell.name}: {event.record['round']}/{rounds} {percent(event.record['accuracy'])}"
                bar.update(task, completed=total - left if total else done, description=note)
            elif event.kind == "started":
                left -= event.done
            elif event.kind in ("skipped", "busy") or (event.kind == "paused" and event.done):
                left -= rounds
                bar.update(task, completed=max(total - left, 0))
            _note(event, tally)
            if event.record is not None and not usual:
                usual = pace(event.record) / abreast
                if usual * left > LONG:
                    bar.console.print(f"about {_duration(usual * left)} for {left} rounds, at the pace of the first")
    return tally


def _note(event: Event, tally: Tally) -> None:
    name = event.path.name
    if event.kind == "skipped":
        tally.skipped.append(event.path)
    elif event.kind == "busy":
        tally.busy.append(event.path)
        err.print(f"[yellow]{name}: another process is working on it, skipped[/]", soft_wrap=True)
    elif event.kind == "finished":
        tally.ran.append(event.path)
        err.print(f"[green]done[/] {name}", soft_wrap=True)
    elif event.kind == "paused":
        tally.paused.append(event.path)
    elif event.kind == "failed" and event.fault is not None:
        tally.failed[event.path] = event.fault
        err.print(f"[red]failed[/] {name}", soft_wrap=True)
        complain(event.fault)
    elif event.kind == "warned" and event.fault is not None:
        warn(event.fault)


def _wanted(cell: Cell, until: int) -> int:
    rounds = int(cell.config["rounds"])
    return min(rounds, until) if until else rounds


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
