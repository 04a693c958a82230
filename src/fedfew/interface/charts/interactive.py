"""Figures for plotly's script in the browser: traces and layout as plain data, with the page's colour names."""

from collections.abc import Sequence
from typing import Any

from fedfew.interface.charts.figure import COLOURS, Bars, Figure, Grid, Lines, Series, Unit
from fedfew.interface.charts.scale import labelled, outline, thinned

Plot = dict[str, Any]
TICKS: dict[Unit, Plot] = {
    "percent": {"tickformat": ".3~p", "hoverformat": ".1%"},
    "number": {"hoverformat": ".4~g"},
    "bytes": {"tickformat": "~s", "ticksuffix": "B", "hoverformat": ".4~s"},
    "seconds": {"ticksuffix": " s", "hoverformat": ".3~g"},
}
MOST_POINTS = 2000
SYMBOLS = ("x-thin-open", "circle-open", "triangle-up-open", "square-open")


def plot(figure: Figure) -> Plot:
    """The arguments of ``Plotly.react``; a colour is written ``var(--k0)`` and filled in by the page."""
    match figure:
        case Lines():
            data, layout = [t for s in figure.series for t in _curve(s)], _levels(figure)
            layout |= {"hovermode": "closest" if any(s.style == "points" for s in figure.series) else "x unified"}
            layout["yaxis"] = dict(TICKS[figure.unit])
            span = [x for s in figure.series for x in s.x] or [0.0]
            layout["xaxis"] = {"dtick": 1} if max(span) - min(span) <= 12 else {}  # rounds are whole numbers
        case Bars():
            data = [
                {
                    "type": "bar",
                    "name": name,
                    "x": list(figure.names),
                    "y": list(values),
                    "marker": {"color": _colour(i)},
                }
                for i, (name, values) in enumerate(figure.series)
            ]
            layout = {"barmode": "stack" if figure.stacked else "group", "yaxis": dict(TICKS[figure.unit])}
            layout |= {"hovermode": "x unified", "xaxis": {"type": "category"}}
        case Grid():
            data = [_cells(figure) if figure.shape == "cells" else _bubbles(figure), *_marks(figure)]
            layout = {
                "yaxis": _named(figure.rows, 14) | {"autorange": "reversed", "showgrid": figure.shape == "bubbles"}
            }
            layout["xaxis"] = _named(figure.columns, 12)
    return {"data": data, "layout": _common(figure, layout, data)}


def _named(names: Sequence[str], room: int) -> Plot:
    """An axis of names; only as many are written as there is room for."""
    shown = [names[i] for i in labelled(names, room)]
    return {"type": "category", "categoryarray": list(names), "tickmode": "array", "tickvals": shown}


def _colour(place: int) -> str:
    return f"var(--k{place % COLOURS})"


def _common(figure: Figure, layout: Plot, data: list[Plot]) -> Plot:
    axis = {"gridcolor": "var(--line)", "linecolor": "var(--line)", "zeroline": False, "automargin": True}
    x = axis | {"title": {"text": figure.x}, "showgrid": False, "nticks": 12, "fixedrange": False}
    y = axis | ({"title": {"text": figure.y}} if isinstance(figure, Grid) else {}) | layout.get("yaxis", {})
    return layout | {
        "uirevision": figure.key,
        "autosize": True,
        "paper_bgcolor": "var(--paper)",
        "plot_bgcolor": "var(--paper)",
        "font": {"color": "var(--muted)", "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 44, "r": 12, "t": 10, "b": 40},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "bgcolor": "transparent",
        },
        "showlegend": len([t for t in data if t.get("showlegend", True)]) > 1 or isinstance(figure, Grid),
        "hoverlabel": {"bgcolor": "var(--paper)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        "xaxis": x | layout.get("xaxis", {}),
        "yaxis": y,
    }


def _curve(series: Series) -> list[Plot]:
    """A line or points, and for a spread two more lines with the band between them."""
    colour = _colour(series.colour)
    points = series.style == "points"
    kept = thinned(len(series.x), MOST_POINTS) if points else outline(series.y, MOST_POINTS)
    places = {"x": [series.x[i] for i in kept], "y": [series.y[i] for i in kept]}
    trace: Plot = {"type": "scatter", "name": series.name, **places}
    if points:
        marker = {"color": colour, "size": 6, "opacity": 0.7}
        notes = [series.notes[i] for i in kept] if series.notes else []
        return [trace | {"mode": "markers", "marker": marker, "text": notes}]
    line = {"color": colour, "width": 2, "dash": "dash" if series.style == "dashed" else "solid"}
    traces = [trace | {"mode": "lines" if len(series.x) > 1 else "markers", "line": line, "marker": {"color": colour}}]
    if any(series.spread):
        known = [(series.x[i], y, series.spread[i] or 0.0) for i in kept if (y := series.y[i]) is not None]
        edge = {"type": "scatter", "mode": "lines", "x": [x for x, _, _ in known], "showlegend": False}
        edge |= {"line": {"width": 0, "color": colour}, "hoverinfo": "skip", "opacity": 0.2}
        upper = edge | {"y": [y + d for _, y, d in known]}
        lower = edge | {"y": [y - d for _, y, d in known], "fill": "tonexty", "fillcolor": f"band {colour}"}
        traces = [upper, lower, *traces]
    return traces


def _levels(figure: Lines) -> Plot:
    line = {"color": "var(--muted)", "width": 1.5, "dash": "dot"}
    shapes = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level.y, "y1": level.y, "line": line}
        for level in figure.levels
    ]
    words = [
        {"xref": "paper", "x": 1, "y": level.y, "text": level.name, "showarrow": False, "xanchor": "right"}
        | {"yanchor": "bottom" if i == 0 else "top", "font": {"color": "var(--muted)", "size": 11}}
        for i, level in enumerate(sorted(figure.levels, key=lambda level: -level.y))
    ]
    return {"shapes": shapes, "annotations": words}


def _cells(figure: Grid) -> Plot:
    values: list[list[float | None]] = [[None] * len(figure.columns) for _ in figure.rows]
    notes = [[""] * len(figure.columns) for _ in figure.rows]
    for p in figure.points:
        values[p.row][p.column] = p.value
        notes[p.row][p.column] = p.note
    return {
        "type": "heatmap",
        "name": figure.value,
        "x": list(figure.columns),
        "y": list(figure.rows),
        "z": values,
        "text": notes,
        "hovertemplate": f"%{{text}}<br>{figure.value} %{{z:.3f}}<extra></extra>",
        "colorscale": [[0, "faint var(--k0)"], [1, "var(--k0)"]],
        "zmin": 0,
        "xgap": 1 if len(figure.columns) <= 80 else 0,
        "ygap": 1 if len(figure.rows) <= 50 else 0,
        "showlegend": False,
        "colorbar": {"thickness": 8, "outlinewidth": 0, "title": {"text": figure.value, "side": "right"}},
    }


def _bubbles(figure: Grid) -> Plot:
    most = max((p.value for p in figure.points), default=1.0) or 1.0
    return {
        "type": "scatter",
        "mode": "markers",
        "name": figure.value,
        "x": [figure.columns[p.column] for p in figure.points],
        "y": [figure.rows[p.row] for p in figure.points],
        "text": [p.note for p in figure.points],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": "var(--k0)",
            "opacity": 0.6,
            "sizemode": "area",
            "size": [p.value for p in figure.points],
            "sizeref": most / 24**2 * 2,
            "line": {"width": 0},
        },
    }


def _marks(figure: Grid) -> list[Plot]:
    """One trace for each kind of mark, so that the legend names them."""
    traces = []
    for n, kind in enumerate(sorted({mark.kind for mark in figure.marks})):
        found = [mark for mark in figure.marks if mark.kind == kind]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": kind,
                "x": [figure.columns[m.column] for m in found],
                "y": [figure.rows[m.row] for m in found],
                "text": [m.note for m in found],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"symbol": SYMBOLS[n % 4], "size": 8, "color": "var(--bad)", "line": {"width": 1.6}},
            }
        )
    return traces
