"""Progress of a run in a notebook: one line of HTML that is written anew after each round, without widgets."""

import sys
from html import escape
from typing import Any

from fedfew.interface.console import err, percent
from fedfew.runs.session import Session


def is_notebook() -> bool:
    """Whether a notebook shows what is displayed; a terminal, IPython's too, has the bar."""
    return err.is_jupyter and "IPython" in sys.modules


class _Line:
    """What a notebook draws."""

    def __init__(self, title: str, done: int, total: int, note: str) -> None:
        self.title, self.done, self.total, self.note = title, done, total, note

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{self.total}"></progress>'
        return f"{bar} {escape(self.title)}: {self.done} of {self.total} rounds, {escape(self.note)}"

    def __repr__(self) -> str:
        return f"{self.title}: {self.done} of {self.total} rounds, {self.note}"


def follow(session: Session, title: str) -> None:
    """Run a session to its end and show how it goes; interrupting the kernel leaves a run that can be continued."""
    from IPython.display import display  # noqa: PLC0415 - a notebook brings it

    line = _Line(title, session.state.round, session.rounds, "starting")
    shown: Any = display(line, display_id=True)
    try:
        for record in session.advance():
            line.done, line.note = record["round"], f"accuracy {percent(record['accuracy'])}"
            shown.update(line)
    except KeyboardInterrupt:
        line.note = f'stopped after round {session.saved}; fedfew.resume("{session.folder.path}") continues'
        shown.update(line)
        raise
