"""Console output: messages for people on stderr, results on stdout, and a final JSON line on request."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedfew.core.errors import ConfigErrors, FedfewError

if TYPE_CHECKING:
    from fedfew.data.dataset import Problem

CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Characters that a terminal acts upon: in what another party wrote they could change what is read on it."""
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
Answer = tuple[Mapping[str, Any], Callable[[], object]]
"""The result of a command, for ``--json``, and a function that prints it for people."""


def complain(fault: FedfewError) -> None:
    """Print an error in red, or all of them if there are several."""
    for one in fault.errors if isinstance(fault, ConfigErrors) else [fault]:
        warn(one, "red")


def warn(fault: FedfewError, color: str = "yellow") -> None:
    """Print a warning that does not stop the work."""
    err.print(f"[bold {color}]{fault.code}[/]", end=" ")
    note(str(fault).removeprefix(fault.code).strip())


def warn_unreadable(problems: "Iterable[Problem]") -> None:
    """Warn of samples that cannot be read, or that were read with a remark."""
    for problem in problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))


def say(text: str) -> None:
    """Print a line of a result on stdout."""
    out.print(text.translate(CONTROL), markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a line for people on stderr."""
    err.print(text.translate(CONTROL), markup=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", words: int = 1) -> None:
    """Print texts in columns; the first ``words`` columns hold words, the others numbers, which are aligned right."""
    table = Table(
        title=Text(title.translate(CONTROL), "bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, collapse_padding=True, show_header=any(columns),
    )  # fmt: skip
    for i, name in enumerate(columns):
        if i < words:
            table.add_column(Text(name), overflow="fold", min_width=8)
        else:
            table.add_column(
                Text(fill(name, 9, break_long_words=False, break_on_hyphens=False)), justify="right", no_wrap=True
            )
    for row in rows:
        table.add_row(*(Text(cell.translate(CONTROL)) for cell in row))
    out.print(table, "")


def print_json(result: Mapping[str, Any]) -> None:
    """Print the last line of stdout."""
    sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    sys.stdout.flush()
