"""Figures of several runs or partitions, drawn with matplotlib: a comparison, and who holds which classes."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from fedfew.interface.charts.printed import COLOURS, LEVEL
from fedfew.studies.bounds import BASELINE, METHOD
from fedfew.studies.compare import Comparison


def sheet(width: float, height: float = 4.0) -> Figure:
    """An empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def percent(value: float, position: object = None) -> str:
    """0.475 → 47.5 %, for the ticks of an axis."""
    return f"{100 * value:.3g} %"


def comparison(compared: Comparison) -> Figure:
    """A dot for each row of a comparison with its 95 % interval, best on top, server-only as a line."""
    rows = list(reversed(compared.rows))
    figure = sheet(7.2, 1.2 + 0.36 * len(rows))
    axis = figure.subplots()
    for position, row in enumerate(rows):
        base = row.key.get(METHOD) == BASELINE
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


def bubbles(histograms: Mapping[str, NDArray[np.int64]], classes: Sequence[str], shown: int = 30) -> Figure:
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
