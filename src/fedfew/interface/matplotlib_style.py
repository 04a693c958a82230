"""Figures with matplotlib, drawn without a display and saved as PNG and SVG (and PDF where asked for)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

COLOURS = ("#2a6f97", "#e07a1f", "#3a8f5c", "#b23a48", "#7b5ea7", "#6c757d", "#c9a227", "#1b9aaa")


def bubbles(histograms: Mapping[str, NDArray[np.int64]], classes: Sequence[str], shown: int = 30) -> Figure:
    """Figure 3 of the paper: a bubble for each client and class, its area the number of images."""
    figure = Figure(figsize=(4.6 * len(histograms) + 0.6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, len(histograms), sharey=True))
    largest = max(int(h.max()) for h in histograms.values()) or 1
    for axis, (title, histogram) in zip(axes, histograms.items(), strict=True):
        part = histogram[:shown]
        client, kind = np.nonzero(part)
        count = part[client, kind]
        axis.scatter(client, kind, s=380 * count / largest, color=COLOURS[0], alpha=0.65, linewidths=0)
        axis.set_title(title)
        axis.set_xlabel("client" if len(histogram) <= shown else f"client (the first {shown} of {len(histogram)})")
        axis.set_xlim(-1, len(part))
        axis.set_yticks(range(len(classes)), classes)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    return figure


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a figure in several formats; the bytes are the same for the same figure."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in kinds:
        path = stem.with_name(f"{stem.name}.{kind}")
        stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with rc_context({"svg.hashsalt": stem.name}):  # otherwise an SVG's identifiers are drawn anew each time
            figure.savefig(path, dpi=150, metadata=stamp)
        written.append(path)
    return written
