"""The table of ``fedfew compare`` for report and page: the same function makes it, so that all of them say the same."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedfew.core.errors import FedfewError
from fedfew.interface.report.facts import Facts

if TYPE_CHECKING:
    from fedfew.studies.outcomes import Outcome


@dataclass(frozen=True)
class Table:
    """Rows of text under column names, and what is to be said about them."""

    title: str
    keys: tuple[str, ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        return [*self.keys, "seeds", "accuracy in %", "against server-only, paired", "up a round", "down a round"]


def tables(runs: Sequence[Facts]) -> list[Table]:
    """One table for each set of test images, since accuracies on others cannot stand beside each other."""
    from fedfew.studies.compare import TEST_DATA

    by_data: dict[str, list[Facts]] = {}
    for run in runs:
        data = {key: run.config["dataset"].get(key.partition(".")[2]) for key in TEST_DATA}
        by_data.setdefault(json.dumps(data, sort_keys=True), []).append(run)
    return [_table(found) for found in by_data.values()]


def _table(runs: Sequence[Facts]) -> Table:
    from fedfew.interface.report.words import size
    from fedfew.studies.compare import compare
    from fedfew.studies.compare_tables import accuracy_text, difference_text

    outcomes, notes = [], []
    for run in runs:
        try:
            outcomes.append(_outcome(run))
        except FedfewError as fault:
            notes.append(f"left out: {run.name}: {fault}")
    try:
        found = compare(outcomes, partial=True)
    except FedfewError as fault:
        return Table(runs[0].dataset, notes=(*notes, str(fault)))
    names = {str(run.path): run.name for run in runs}
    rows = [
        [
            *(_cell(value) for value in row.key.values()),
            str(row.accuracy.n),
            accuracy_text(row.accuracy),
            difference_text(row),
            size(row.bytes_up),
            size(row.bytes_down),
        ]
        for row in found.rows
    ]
    notes += found.notes
    notes += [f"left out: {names.get(path, path)}: {why}" for path, why in found.left_out.items()]
    return Table(runs[0].dataset, found.by, rows, tuple(notes))


def _outcome(run: Facts) -> "Outcome":
    from fedfew.config.schema import load
    from fedfew.studies.outcomes import Outcome

    return Outcome(run.path, load(run.config).document, run.records, run.state == "finished", run.environment)


def _cell(value: Any) -> str:
    return "–" if value is None else str(value)
