"""Progress of work in phases: a bar in a terminal, lines in a log file, a line of HTML in a notebook."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from html import escape
from time import monotonic
from typing import Any

from rich.markup import escape as escape_markup
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fedfew.core.errors import CODES
from fedfew.core.text import duration, percent
from fedfew.interface.console import err
from fedfew.runs.alarms import Guard
from fedfew.runs.files import label_counts
from fedfew.runs.session import Session
from fedfew.runtime.record import RoundRecord, left_out, pace

LONG = 120.0
"""Seconds from which the time left is announced."""


class Progress:
    """Shows one phase of the work at a time, such as reading images or the rounds; in a log file, now and then."""

    SECONDS = 10.0

    def __init__(self) -> None:
        self.title, self.total, self.unit, self.done, self.note = "", 0, "", 0, ""
        self.shown = monotonic()

    def __str__(self) -> str:
        return f"{self.title}: {self.done:,} of {self.total:,} {self.unit}".rstrip()

    def phase(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Begin a phase; the one before disappears."""
        self.title, self.total, self.unit, self.done, self.note = title, total, unit, done, ""
        self.shown = monotonic()

    def move(self, done: int, note: str = "") -> None:
        """Show how much of the phase is done."""
        self.done, self.note = done, note
        if monotonic() - self.shown > self.SECONDS:
            self.log(str(self))

    def say(self, text: str) -> None:
        """Print a line, with rich's markup, that stays."""
        err.print(text, soft_wrap=True)

    def log(self, text: str) -> None:
        """Print a line where nothing moves, such as in a log file."""
        self.shown = monotonic()
        err.print(text, markup=False, soft_wrap=True)


class _Bar(Progress):
    """A terminal's bar with the time left, which disappears at the end."""

    def __init__(self, bar: RichProgress) -> None:
        super().__init__()
        self._bar = bar
        self._task: TaskID | None = None

    def phase(self, title: str, total: int, unit: str, done: int = 0) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(escape_markup(title), total=total or None, completed=done, unit=unit, note="")

    def move(self, done: int, note: str = "") -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done, note=note)

    def log(self, text: str) -> None:
        pass


class _Cell(Progress):
    """The output of a notebook's cell: one line that is updated, without widgets."""

    SECONDS = 0.3
    _handle: Any = None

    def phase(self, title: str, total: int, unit: str, done: int = 0) -> None:
        super().phase(title, total, unit, done)
        self._update()

    def move(self, done: int, note: str = "") -> None:
        self.done, self.note = done, note
        if done == self.total or monotonic() - self.shown > self.SECONDS:
            self._update()

    def log(self, text: str) -> None:
        pass

    def _update(self) -> None:
        from IPython.display import display  # noqa: PLC0415 - every notebook has it

        self.shown = monotonic()
        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def _repr_html_(self) -> str:
        return f'<progress value="{self.done}" max="{self.total}"></progress> {escape(repr(self))}'

    def __repr__(self) -> str:
        return f"{self}, {self.note}" if self.note else str(self)


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """The display that fits: a notebook's, a terminal's or a log file's."""
    if err.is_jupyter and "IPython" in sys.modules:
        yield _Cell()
    elif err.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=err, transient=True, speed_estimate_period=600) as bar:
            yield _Bar(bar)
    else:
        yield Progress()


@contextlib.contextmanager
def counting(title: str) -> Iterator[Callable[[int, int], None]]:
    """A display of one phase: yields ``report(done, total)``."""
    with progress() as shown:
        known: list[int] = []

        def report(done: int, total: int) -> None:
            if known != [total]:
                known[:] = [total]
                shown.phase(title, total, "")
            shown.move(done)

        yield report


def follow(session: Session, title: str) -> None:
    """Run a session to its end and show its progress; after an interruption, say how to continue."""
    try:
        with progress() as shown:
            _follow(session, title, shown)
    except KeyboardInterrupt:
        err.print(f"stopped {session.saved}; everything up to there is saved. Continue with:")
        err.print(f"  fedfew resume {session.folder.path}", markup=False, soft_wrap=True)
        raise


def _follow(session: Session, title: str, shown: Progress) -> None:
    def warm_up(done: int, total: int) -> None:
        if not warming:
            warming.append(True)
            shown.phase("warm-up", total, "passes over the labels")
        if done < total:
            shown.move(done)
        else:
            shown.log(f"warm-up: {done} of {total} passes over the labels")
            shown.phase(title, session.rounds, "rounds", session.state.round)

    warming: list[bool] = []
    shown.phase(title, session.rounds, "rounds", session.state.round)
    usual = session.state.round + 2  # the first round includes the start of a pool
    guard = Guard(label_counts(session.parts.federation))
    for known in session.folder.records():
        guard.look(known)
    for record in session.advance(warm_up):
        if record["round"] == usual and (words := estimate(record, session.rounds)):
            shown.say(words)
        for text in _remarks(record, guard):
            shown.say(text)
        accuracy = f"accuracy {percent(record['accuracy'])}"
        shown.log(f"{title}: round {record['round']}/{session.rounds}: {accuracy}, {pace(record):.1f} s")
        shown.move(record["round"], accuracy)


def _remarks(record: RoundRecord, guard: Guard) -> Iterator[str]:
    """What a person should know about a round: clients left out, alarms, a round without a usable update."""
    number = f"round {record['round']}"
    for fault in left_out(record):
        about = f"client {fault['client']} left out, {fault['code']} {CODES[fault['code']].title}"
        yield f"[yellow]{number}: {about}:[/] {escape_markup(fault['reason'])}"
    for alarm in guard.look(record):
        yield f"[bold yellow]round {alarm.round}:[/] {alarm.text}"
    if record["round"] == 1 and record["updates"] and not any(u.get("norm", 1) for u in record["updates"]):
        why = "; none of their pseudo-labels was confident enough" if record["coverage"] == 0 else ""
        yield f"[yellow]{number}: no client changed the model{why}[/]"
    if record["skipped"]:
        yield f"[yellow]{number} skipped: {escape_markup(record.get('failure', 'no usable update'))}, ω stays[/]"


def estimate(record: RoundRecord, rounds: int) -> str:
    """The estimated time for the remaining rounds, from this one; empty if that is short."""
    usual, left = pace(record), rounds - record["round"]
    if usual * left < LONG:
        return ""
    words = "round left" if left == 1 else f"{left} rounds left"
    return f"about {duration(usual * left)} for the {words} ({usual:.1f} s a round)"
