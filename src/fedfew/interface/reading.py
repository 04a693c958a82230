"""Progress of reading many images, on the console."""

import contextlib
from collections.abc import Callable, Iterator
from time import monotonic

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedfew.interface.console import err

SELDOM = 10.0
"""Seconds between two lines in a log file."""


@contextlib.contextmanager
def counting(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yields ``report(done, total)``, which moves a bar that disappears at the end; or prints lines in a log."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    said = monotonic()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, visible=False)

        def report(done: int, total: int) -> None:
            nonlocal said
            if done % 16 == 0 or done == total:  # small images are read too fast to show each
                bar.update(task, completed=done, total=total, visible=True)
            if not err.is_terminal and monotonic() - said > SELDOM:
                said = monotonic()
                err.print(f"{title}: {done:,} of {total:,}", soft_wrap=True)

        yield report
