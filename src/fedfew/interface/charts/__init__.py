"""Charts: each is described here once, then drawn as SVG or with matplotlib, written as CSV or sent to the browser."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["percent", "number", "bytes", "seconds"]
Style = Literal["line", "dashed", "points"]
COLOURS = 8
"""Colours in the palette; further series start again at the first."""


@dataclass(frozen=True)
class Series:
    """Points that belong together; ``colour`` is an index of the palette, ``spread`` draws the band y ± spread."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: int = 0
    style: Style = "line"
    spread: Sequence[float | None] = ()
    notes: Sequence[str] = ()
    """The text shown at each point."""


@dataclass(frozen=True)
class Level:
    """A horizontal reference line."""

    name: str
    y: float


@dataclass(frozen=True)
class Lines:
    """Curves or scattered points over a common axis."""

    key: str
    title: str
    x: str
    y: str
    series: Sequence[Series]
    unit: Unit = "number"
    levels: Sequence[Level] = ()
    about: str = ""
    """A description of the chart for screen readers."""


@dataclass(frozen=True)
class Bars:
    """Amounts by name; several series are drawn side by side, or on top of each other when ``stacked``."""

    key: str
    title: str
    x: str
    y: str
    names: Sequence[str]
    series: Sequence[tuple[str, Sequence[float]]]
    unit: Unit = "number"
    stacked: bool = False
    about: str = ""


@dataclass(frozen=True)
class Point:
    """An amount in a column and a row of a grid."""

    column: int
    row: int
    value: float
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """A problem in a column and a row; marks of one ``kind`` share symbol and name."""

    column: int
    row: int
    kind: str
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """Amounts in columns and rows, as shaded cells or as bubbles whose area is the amount."""

    key: str
    title: str
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    points: Sequence[Point]
    value: str
    """The name of a point's value."""
    marks: Sequence[Mark] = ()
    shape: Literal["cells", "bubbles"] = "cells"
    about: str = ""


Figure = Lines | Bars | Grid


def to_csv(figure: Figure) -> str:
    """A header and one row for each value; unknown values are empty cells."""
    match figure:
        case Lines():
            rows: list[list[object]] = [["series", figure.x, figure.y, "±"]]
            for s in figure.series:
                rows += [[s.name, *row] for row in zip(s.x, s.y, s.spread or [None] * len(s.x), strict=True)]
            rows += [[level.name, "", level.y, ""] for level in figure.levels]
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


def _safe(cell: object) -> object:
    """Put a quote in front of a text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
