"""The table of ``fedfew compare`` for report and page: made by the same function, so that they agree."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedfew.core.errors import FedfewError
from fedfew.runs.run import Run
from fedfew.studies.compare import TEST_DATA, compare
from fedfew.studies.tables import cells, columns, settings_text


@dataclass(frozen=True)
class Table:
    """Rows of text under column names, and notes about them."""

    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    """The settings in which rows differ, one line per row."""
    notes: tuple[str, ...] = ()


def tables(runs: Sequence[Run]) -> list[Table]:
    """One table for each set of test images: accuracies on different images are not comparable."""
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(json.dumps([run.flat.get(key) for key in TEST_DATA]), []).append(run)
    return [_table(alike) for alike in by_data.values()]


def _table(runs: Sequence[Run]) -> Table:
    try:
        comparison = compare(runs, partial=True)
    except FedfewError as fault:
        return Table(runs[0].dataset, notes=(str(fault),))
    names = {str(run.path): run.name for run in runs}
    left_out = [f"left out: {names.get(path, path)}: {why}" for path, why in comparison.left_out.items()]
    return Table(
        runs[0].dataset,
        columns(comparison),
        [cells(row) for row in comparison.rows],
        [settings_text(row) for row in comparison.rows],
        (*comparison.notes, *left_out),
    )
