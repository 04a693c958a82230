"""The progress of reading many images, on the console."""

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedfew.interface.console import err


@contextlib.contextmanager
def counting(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is moved by calling what this gives with (done, total); gone when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, visible=False)

        def report(done: int, total: int) -> None:
            if done % 16 == 0 or done == total:  # small images are read faster than anyone can look
                bar.update(task, completed=done, total=total, visible=True)

        yield report
