"""Progress of a run in a notebook: one line of HTML that is updated after each round, without widgets."""

import sys
from html import escape
from time import monotonic
from typing import Any

from fedfew.interface.console import err, percent
from fedfew.runs.session import Session

SELDOM = 0.3
"""Seconds between two updates of a warm-up."""


def is_notebook() -> bool:
    """Whether output is displayed in a notebook; a terminal, IPython's too, shows the bar."""
    return err.is_jupyter and "IPython" in sys.modules


class _Line:
    """The line that a notebook shows."""

    def __init__(self, title: str, done: int, total: int, note: str) -> None:
        self.title, self.done, self.total, self.note, self.unit = title, done, total, note, "rounds"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{self.total}"></progress>'
        return f"{bar} {escape(repr(self))}"

    def __repr__(self) -> str:
        return f"{self.title}: {self.done} of {self.total} {self.unit}, {self.note}"


def follow(session: Session, title: str) -> None:
    """Run a session to its end and show its progress; interrupting the kernel leaves a run that can be resumed."""
    from IPython.display import display  # noqa: PLC0415 - every notebook has it

    line = _Line(title, session.state.round, session.rounds, "starting")
    shown: Any = display(line, display_id=True)

    def warmup(done: int, total: int) -> None:
        line.done, line.total, line.unit, line.note = done, total, "passes over the labels", "warm-up"
        if done == total or monotonic() - seen[0] > SELDOM:
            seen[0] = monotonic()
            shown.update(line)

    seen = [0.0]
    try:
        for record in session.advance(warmup):
            line.done, line.total, line.unit = record["round"], session.rounds, "rounds"
            line.note = f"accuracy {percent(record['accuracy'])}"
            shown.update(line)
    except KeyboardInterrupt:
        line.note = f'stopped {session.saved}; fedfew.resume("{session.folder.path}") continues'
        shown.update(line)
        raise
