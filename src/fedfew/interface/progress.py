"""Progress of a run on the console: a bar with the time left, the newest accuracy, and every update left out."""

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from fedfew.core.errors import CODES
from fedfew.interface.console import err, percent
from fedfew.runs.alarms import Guard
from fedfew.runs.files import label_counts
from fedfew.runs.session import Session
from fedfew.runtime.record import RoundRecord, left_out

LONG = 120.0
"""Seconds from which on a run is announced as a long one."""


def estimate(record: RoundRecord, rounds: int) -> str:
    """What the rounds to come will take if they go like this one; nothing to say where that is short."""
    pace, left = sum(record["seconds"].values()), rounds - record["round"]
    if pace * left < LONG:
        return ""
    words = "round left" if left == 1 else f"{left} rounds left"
    return f"about {pace * left / 60:.0f} minutes for the {words} ({pace:.1f} s a round)"


def _line(record: RoundRecord, rounds: int) -> str:
    """A round in a log file."""
    seconds = sum(record["seconds"].values())
    return f"round {record['round']}/{rounds}: accuracy {percent(record['accuracy'])}, {seconds:.1f} s"


def follow(session: Session, title: str) -> None:
    """Run a session to its end and show how it goes; on Ctrl-C say how to continue."""
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
            usual = session.state.round + 2  # warm-up and start are in the first round
            guard = Guard(label_counts(session.parts.federation))
            for known in session.folder.records():
                guard.look(known)
            for record in session.advance():
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
                if not err.is_terminal:  # a log file: a bar would not be seen
                    err.print(_line(record, session.rounds), soft_wrap=True)
                bar.update(task, completed=record["round"], note=f"accuracy {percent(record['accuracy'])}")
    except KeyboardInterrupt:
        err.print(f"stopped after round {session.saved}; everything up to it is saved. Continue with:")
        err.print(f"  fedfew resume {session.folder.path}", markup=False, soft_wrap=True)
        raise
