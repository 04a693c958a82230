"""Figures drawn with matplotlib for notebooks, papers and files: a chart, a comparison, and who holds which classes."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from fedfew.interface.charts import Bars, Figure, Grid, Lines, Series, Unit
from fedfew.interface.charts.scale import amount, labelled
from fedfew.studies.bounds import METHOD
from fedfew.studies.compare import Comparison

COLOURS = ("#2a6f97", "#e07a1f", "#3a8f5c", "#b23a48", "#7b5ea7", "#6c757d", "#c9a227", "#1b9aaa")
SYMBOLS = ("x", "o", "^", "s")
LEVEL: dict[str, Any] = {"color": "#6c757d", "linestyle": (0, (4, 2)), "linewidth": 1.2}


def sheet(width: float, height: float = 4.0) -> Drawing:
    """An empty figure of this size in inches."""
    drawing = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def draw(figure: Figure, width: float = 7.2, height: float = 4.0) -> Drawing:
    """A matplotlib figure; a notebook shows it when it is the last line of a cell."""
    drawing = sheet(width, height)
    axis = drawing.subplots()
    match figure:
        case Lines():
            _lines(axis, figure)
        case Bars():
            _bars(axis, figure)
        case Grid():
            _grid(drawing, axis, figure)
    axis.set_title(figure.title)
    axis.set_xlabel(figure.x)
    axis.set_ylabel(figure.y)
    axis.spines[["top", "right"]].set_visible(False)
    if len(axis.get_legend_handles_labels()[0]) > (0 if isinstance(figure, Grid) else 1):
        axis.legend(frameon=False, fontsize=9)
    vars(drawing)["_repr_png_"] = lambda: png(drawing)  # called by IPython
    return drawing


def png(drawing: Drawing) -> bytes:
    content = io.BytesIO()
    drawing.savefig(content, format="png", dpi=110)
    return content.getvalue()


def save(drawing: Drawing, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a drawing in several formats; the bytes are the same for the same drawing."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in kinds:
        path = stem.with_name(f"{stem.name}.{kind}")
        stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        # an SVG's text as text in one font, not as outlines; and identifiers that are not random
        with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": stem.name}):
            drawing.savefig(path, dpi=150, metadata=stamp)
        if kind == "svg":
            path.write_text(re.sub(r"<[^>]+>", _shortened, path.read_text("utf-8")), "utf-8")
        written.append(path)
    return written


def _shortened(tag: re.Match[str]) -> str:
    """A tag whose numbers have two digits after the point: hundredths of a point are fine enough."""
    return re.sub(r"(?<=\.\d\d)\d+", "", tag[0])


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _values(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _lines(axis: Axes, figure: Lines) -> None:
    for series in figure.series:
        _curve(axis, series)
    for level in figure.levels:
        axis.axhline(level.y, label=level.name, **LEVEL)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _unit(axis, figure.unit)


def _curve(axis: Axes, series: Series) -> None:
    y, colour = _values(series.y), _colour(series.colour)
    if series.style == "points":
        axis.scatter(series.x, y, s=14, color=colour, alpha=0.7, linewidths=0, label=series.name)
        return
    marker = "o" if len(y) < 12 else ""
    dashes: Any = (0, (4, 2)) if series.style == "dashed" else "-"
    axis.plot(
        series.x, y, color=colour, linestyle=dashes, linewidth=1.6, marker=marker, markersize=4, label=series.name
    )
    if series.spread:
        low, high = (np.array(y) + sign * np.array(_values(series.spread)) for sign in (-1, 1))
        axis.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _bars(axis: Axes, figure: Bars) -> None:
    positions, count = np.arange(len(figure.names)), len(figure.series)
    bottom, width = np.zeros(len(positions)), 0.8 if figure.stacked else 0.8 / max(count, 1)
    for i, (name, values) in enumerate(figure.series):
        shift = 0.0 if figure.stacked else (i - (count - 1) / 2) * width
        axis.bar(positions + shift, values, width, bottom=bottom, color=_colour(i), label=name)
        bottom = bottom + np.array(values) if figure.stacked else bottom
    shown = labelled(figure.names, 16)
    axis.set_xticks(shown, [figure.names[i] for i in shown])
    _unit(axis, figure.unit)


def _unit(axis: Axes, unit: Unit) -> None:
    if unit != "number":
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, unit)))
    axis.grid(alpha=0.25, linewidth=0.6)


def _grid(drawing: Drawing, axis: Axes, figure: Grid) -> None:
    columns, rows = [p.column for p in figure.points], [p.row for p in figure.points]
    values = [p.value for p in figure.points]
    if figure.shape == "bubbles":
        largest = max(values, default=1.0) or 1.0
        sizes = [260 * value / largest for value in values]
        axis.scatter(columns, rows, s=sizes, color=COLOURS[0], alpha=0.65, linewidths=0)
        axis.set_axisbelow(True)
        axis.grid(alpha=0.2)
    else:
        table = np.full((max(len(figure.rows), 1), max(len(figure.columns), 1)), math.nan)
        table[rows, columns] = values
        shades = axis.imshow(table, aspect="auto", cmap="Blues", vmin=0.0, interpolation="nearest")
        drawing.colorbar(shades, ax=axis, label=figure.value)
    kinds = list(dict.fromkeys(mark.kind for mark in figure.marks))
    for number, kind in enumerate(kinds):
        marks = [mark for mark in figure.marks if mark.kind == kind]
        symbol, colour = SYMBOLS[number % len(SYMBOLS)], _colour(number + 3)
        axis.scatter([m.column for m in marks], [m.row for m in marks], marker=symbol, color=colour, label=kind)
    for names, put in ((figure.columns, axis.set_xticks), (figure.rows, axis.set_yticks)):
        shown = labelled(names, 16)
        put(shown, [names[i] for i in shown])
    margin = 0.5 if figure.shape == "cells" else 1.0
    axis.set_xlim(-margin, len(figure.columns) - 1 + margin)


def percent(value: float, position: object = None) -> str:
    """0.475 → 47.5 %, for the ticks of an axis."""
    return f"{100 * value:.3g} %"


def comparison(compared: Comparison) -> Drawing:
    """A dot for each row of a comparison with its 95 % interval, best on top, the reference as a line."""
    rows = list(reversed(compared.rows))
    figure = sheet(7.2, 1.2 + 0.36 * len(rows))
    axis = figure.subplots()
    for position, row in enumerate(rows):
        base = row.key.get(METHOD) == compared.against
        colour = LEVEL["color"] if base else COLOURS[0]
        value = row.accuracy
        axis.plot(value.mean, position, "o", color=colour, markersize=6)
        if value.low is not None and value.high is not None:
            axis.hlines(position, value.low, value.high, color=colour, linewidth=2)
        if base:
            axis.axvline(value.mean, **LEVEL)
    axis.set_yticks(range(len(rows)), [f"{row.label} (n = {row.accuracy.n})" for row in rows])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlim(left=max(axis.get_xlim()[0], 0.0), right=min(axis.get_xlim()[1], 1.0))
    axis.set_xlabel("test accuracy, mean and 95 % interval over seeds")
    axis.xaxis.set_major_formatter(FuncFormatter(percent))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25, linewidth=0.6)
    return figure


def bubbles(histograms: Mapping[str, NDArray[np.int64]], classes: Sequence[str], shown: int = 30) -> Drawing:
    """Figure 3 of the paper: a bubble for each client and class, its area the number of images."""
    figure = sheet(4.6 * len(histograms) + 0.6, 4.2)
    axes = np.atleast_1d(figure.subplots(1, len(histograms), sharey=True))
    largest = max(int(h.max()) for h in histograms.values()) or 1
    for axis, (title, histogram) in zip(axes, histograms.items(), strict=True):
        part = histogram[:shown]
        client, kind = np.nonzero(part)
        count = part[client, kind]
        area = np.ceil(50 * count / largest) / 50
        for size in np.unique(area):  # circles of one size are drawn together: an SVG then has each size once
            same = area == size
            axis.scatter(client[same], kind[same], s=380 * size, color=COLOURS[0], alpha=0.65, linewidths=0)
        axis.set_title(title)
        axis.set_xlabel("client" if len(histogram) <= shown else f"client (the first {shown} of {len(histogram)})")
        axis.set_xlim(-1, len(part))
        axis.set_yticks(range(len(classes)), classes)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    return figure
