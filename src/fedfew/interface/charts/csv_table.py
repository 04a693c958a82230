"""Figures as CSV: the numbers behind a chart, one row for each point."""

import csv
import io

from fedfew.interface.charts.figure import Bars, Figure, Grid, Lines


def to_csv(figure: Figure) -> str:
    """A header and one row for each value; unknown values are empty cells."""
    match figure:
        case Lines():
            rows = _lines(figure)
        case Bars():
            rows = [["name", *(name for name, _ in figure.series)]]
            rows += [[name, *(values[i] for _, values in figure.series)] for i, name in enumerate(figure.names)]
        case Grid():
            rows = [[figure.x, figure.y, figure.value, "note"]]
            rows += [[figure.columns[p.column], figure.rows[p.row], p.value, p.note] for p in figure.points]
            rows += [[figure.columns[m.column], figure.rows[m.row], "", m.note] for m in figure.marks]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_safe(cell) for cell in row] for row in rows])
    return text.getvalue()


def _lines(figure: Lines) -> list[list[object]]:
    rows: list[list[object]] = [["series", figure.x, figure.y, "±"]]
    for s in figure.series:
        spread = list(s.spread) or [None] * len(s.x)
        rows += [[s.name, x, y, d] for x, y, d in zip(s.x, s.y, spread, strict=True)]
    return rows + [[level.name, "", level.y, ""] for level in figure.levels]


def _safe(cell: object) -> object:
    """Put a quote in front of a text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
