"""The table of ``fedfew compare`` for report and page: made by the same function, so that they agree."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedfew.core.errors import FedfewError
from fedfew.interface.report.words import size
from fedfew.runs.run import Run
from fedfew.studies.bounds import METHOD
from fedfew.studies.compare import TEST_DATA, compare
from fedfew.studies.compare_tables import accuracy_text, difference_text, settings_line


@dataclass(frozen=True)
class Table:
    """Rows of text under column names, and notes about them."""

    title: str
    rows: list[list[str]] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    """The settings in which rows differ, one line per row."""
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        return ["method", "accuracy in %", "against server-only, paired", "seeds", "up per round", "down per round"]


def tables(runs: Sequence[Run]) -> list[Table]:
    """One table for each set of test images: accuracies on different images are not comparable."""
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(json.dumps([run.flat.get(key) for key in TEST_DATA]), []).append(run)
    return [_table(found) for found in by_data.values()]


def _table(runs: Sequence[Run]) -> Table:
    try:
        found = compare(runs, partial=True)
    except FedfewError as fault:
        return Table(runs[0].dataset, notes=(str(fault),))
    names = {str(run.path): run.name for run in runs}
    rows = [
        [
            row.shown[METHOD],
            accuracy_text(row.accuracy),
            difference_text(row),
            str(row.accuracy.n),
            size(row.bytes_up),
            size(row.bytes_down),
        ]
        for row in found.rows
    ]
    left_out = [f"left out: {names.get(path, path)}: {why}" for path, why in found.left_out.items()]
    return Table(runs[0].dataset, rows, [settings_line(row) for row in found.rows], (*found.notes, *left_out))
