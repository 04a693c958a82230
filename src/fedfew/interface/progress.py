"""Progress of a run on the console: a bar with the time left, the newest accuracy, and every update left out.

A warm-up before the first round has a separate bar.
"""

from time import monotonic

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedfew.core.errors import CODES
from fedfew.interface.console import err, percent
from fedfew.runs.alarms import Guard
from fedfew.runs.files import label_counts
from fedfew.runs.session import Session
from fedfew.runtime.record import RoundRecord, left_out, pace

LONG = 120.0
"""Seconds from which a run is announced as long."""
SELDOM = 10.0
"""Seconds between two lines about a warm-up in a log file."""


def estimate(record: RoundRecord, rounds: int) -> str:
    """The estimated time for the remaining rounds, from this one; empty if that is short."""
    usual, left = pace(record), rounds - record["round"]
    if usual * left < LONG:
        return ""
    words = "round left" if left == 1 else f"{left} rounds left"
    return f"about {usual * left / 60:.0f} minutes for the {words} ({usual:.1f} s a round)"


def _line(record: RoundRecord, rounds: int) -> str:
    """A round in a log file."""
    return f"round {record['round']}/{rounds}: accuracy {percent(record['accuracy'])}, {pace(record):.1f} s"


class _Warmup:
    """The training before the first round: a bar above that of the rounds, or lines in a log file."""

    def __init__(self, bar: Progress, rounds: TaskID) -> None:
        self._bar, self._rounds = bar, rounds
        self._task: TaskID | None = None
        self._said = monotonic()

    def report(self, done: int, total: int) -> None:
        """Show how many passes over the labels are done."""
        if self._task is None:
            self._task = self._bar.add_task("warm-up", total=total, note="passes over the labels")
        self._bar.update(self._task, completed=done)
        if done == total:
            self._bar.remove_task(self._task)
            self._bar.reset(self._rounds, completed=int(self._bar.tasks[0].completed))  # the estimate is for rounds
        if not err.is_terminal and (done == total or monotonic() - self._said > SELDOM):
            err.print(f"warm-up: {done} of {total} passes over the labels", soft_wrap=True)
            self._said = monotonic()


def follow(session: Session, title: str) -> None:
    """Run a session to its end and show its progress; on Ctrl-C show how to continue."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(title, total=session.rounds, completed=session.state.round, note="starting")
            usual = session.state.round + 2  # the first round includes the start of a pool
            guard = Guard(label_counts(session.parts.federation))
            for known in session.folder.records():
                guard.look(known)
            for record in session.advance(_Warmup(bar, task).report):
                if record["round"] == usual and (words := estimate(record, session.rounds)):
                    bar.console.print(words)
                for fault in left_out(record):
                    what = CODES[fault["code"]].title
                    bar.console.print(
                        f"[yellow]round {record['round']}: client {fault['client']} left out, "
                        f"{fault['code']} {what}:[/] {escape(fault['reason'])}"
                    )
                for alarm in guard.look(record):
                    bar.console.print(f"[bold yellow]round {alarm.round}:[/] {alarm.text}")
                if record["skipped"]:
                    bar.console.print(f"[yellow]round {record['round']} skipped: no usable update, ω stays[/]")
                if not err.is_terminal:  # a log file cannot show a bar
                    err.print(_line(record, session.rounds), soft_wrap=True)
                bar.update(task, completed=record["round"], note=f"accuracy {percent(record['accuracy'])}")
    except KeyboardInterrupt:
        err.print(f"stopped {session.saved}; everything up to there is saved. Continue with:")
        err.print(f"  fedfew resume {session.folder.path}", markup=False, soft_wrap=True)
        raise
