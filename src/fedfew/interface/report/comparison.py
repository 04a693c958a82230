"""Several runs for report and page: the table of ``fedfew compare``, and a curve with its spread for each row."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from fedfew.core.errors import FedfewError
from fedfew.core.text import duration
from fedfew.interface.charts import COLOURS, Figure, Lines, Series, Unit
from fedfew.interface.charts.run_charts import Curve
from fedfew.interface.charts.scale import amount
from fedfew.runs.intervals import Interval
from fedfew.runs.run import Run
from fedfew.runs.summary import scored
from fedfew.studies.bounds import BASELINE, scenario
from fedfew.studies.compare import TEST_DATA, compare
from fedfew.studies.tables import DASH, accuracy_text, cells, columns, settings_text

MOST_SCENARIOS, MOST_CURVES = 12, 12
"""Scenarios with charts, and curves in a chart, the best ones; the tables have all."""
MOST_SEEDS = 20
"""Runs that make a curve: of thousands, the rounds need not be read."""
MEASURES = ["best by validation", "coverage in %", "correct in %", "time"]
CURVES: tuple[tuple[Curve, str, str, Unit], ...] = (
    ("accuracy", "Accuracy", "accuracy", "percent"),
    ("loss", "Loss on the test set", "cross-entropy", "number"),
    ("coverage", "Pseudo-labels: coverage", "share", "percent"),
    ("correct", "Pseudo-labels: correct among them", "share", "percent"),
)
Groups = dict[str, list[Run]]
"""The runs of each row by its label, the best row first."""


@dataclass(frozen=True)
class Table:
    """The runs on one set of test images: rows of text under column names, notes about them, and their curves."""

    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    """The settings in which rows differ, one line per row."""
    notes: tuple[str, ...] = ()
    figures: list[Figure] = field(default_factory=list)


def tables(runs: Sequence[Run]) -> list[Table]:
    """One table for each set of test images: accuracies on different images are not comparable."""
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        by_data.setdefault(json.dumps([run.flat.get(key) for key in TEST_DATA]), []).append(run)
    return [_table(alike, f"s{i}" if i else "s") for i, alike in enumerate(by_data.values())]


def _table(runs: Sequence[Run], prefix: str) -> Table:
    try:
        comparison = compare(runs, partial=True)
    except FedfewError as fault:
        return Table(runs[0].dataset, notes=(str(fault),))
    by_path = {str(run.path): run for run in runs}
    groups = {row.label: [by_path[path] for path in row.runs] for row in comparison.rows}
    return Table(
        runs[0].dataset,
        columns(comparison) + MEASURES,
        [cells(row, comparison.against) + _measures(groups[row.label]) for row in comparison.rows],
        [settings_text(row) for row in comparison.rows],
        (*comparison.notes, *(f"left out: {by_path[path].name}: {why}" for path, why in comparison.left_out.items())),
        _figures(groups, prefix),
    )


def _measures(runs: Sequence[Run]) -> list[str]:
    """Further measures of a row's runs, as the accuracy is written."""
    columns = (
        [run.accuracy("best_by_validation") for run in runs],
        [run.totals["coverage"] for run in runs],
        [run.totals["correct"] for run in runs],
    )
    known = [Interval.known(values) for values in columns]
    return [*(accuracy_text(v) if v else DASH for v in known), duration(sum(run.seconds for run in runs) / len(runs))]


def _figures(groups: Groups, prefix: str) -> list[Figure]:
    """Charts of each scenario: curves are compared within a scenario only."""
    by_scenario: dict[str, Groups] = {}
    for label, runs in groups.items():
        by_scenario.setdefault(scenario(runs[0], BASELINE), {})[label] = runs
    figures: list[Figure] = []
    for number, alike in enumerate(list(by_scenario.values())[:MOST_SCENARIOS]):
        first = next(iter(alike.values()))[0]
        where = f" ({first.dataset}, {first.labels} labels, {first.planned} rounds)" if len(by_scenario) > 1 else ""
        charts = [_chart(alike, curve, f"{prefix}{number}-", where) for curve in CURVES]
        figures += [chart for chart in charts if chart.series]
    return figures


def _chart(groups: Groups, curve: tuple[Curve, str, str, Unit], prefix: str, where: str) -> Lines:
    """One curve for each of the best groups, the mean over its runs with its 95 % interval."""
    key, title, axis, unit = curve
    series, ends = [], []
    for i, (label, runs) in enumerate(list(groups.items())[:MOST_CURVES]):
        by_round: dict[int, list[float | None]] = {}
        for run in islice((run for run in runs if run.fault is None), MOST_SEEDS):
            for r in scored(run.records) if key in ("accuracy", "loss") else run.records:
                by_round.setdefault(r["round"], []).append(r[key])
        means = {n: Interval.known(values) for n, values in sorted(by_round.items())}
        known = [mean.mean for mean in means.values() if mean]
        if not known:
            continue  # such as a method without pseudo-labels
        values = [mean.mean if mean else None for mean in means.values()]
        spread = [mean.half if mean else None for mean in means.values()]
        series.append(Series(label, [float(n) for n in means], values, i, "line" if i < COLOURS else "dashed", spread))
        ends.append(f"{label} ends at {amount(known[-1], unit)}")
    about = "; ".join(ends) + "."
    if any(any(one.spread or ()) for one in series):
        about += " Bands are 95 % intervals over seeds."
    if len(groups) > MOST_CURVES:
        about += f" The {MOST_CURVES} best of {len(groups)} groups are drawn."
    if any(len(runs) > MOST_SEEDS for runs in groups.values()):
        about += f" Each curve uses the first {MOST_SEEDS} seeds."
    return Lines(f"{prefix}{key}", title + where, "round", axis, series, unit, about=about)
