"""Grids as SVG: cells shaded by value or bubbles by area, and a mark for each problem; with parts of every SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedfew.interface.charts import Grid
from fedfew.interface.charts.scale import amount, labelled

SHADES = 6
MOST_NOTES = 1500


@dataclass(frozen=True)
class Paper:
    """The content of an SVG element, its height and its axes."""

    content: str
    height: int
    axes: str
    """Where its values are, for the script that shows them: the kind of figure, then numbers in the SVG's units."""


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """A text at a position."""
    look = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'


def legend(entries: Sequence[tuple[str, str]], width: int) -> tuple[str, float]:
    """Names, each with the SVG of its key, in as many rows as needed, and their height."""
    parts, x, y = [], 8.0, 12.0
    for name, key in entries:
        need = 28 + 7.1 * len(name)
        if x > 8 and x + need > width:
            x, y = 8.0, y + 17
        parts.append(f'<g transform="translate({x:g} {y:g})">{key}{text(18, 0, name)}</g>')
        x += need + 4
    return f'<g aria-hidden="true">{"".join(parts)}</g>', y + 12


def draw_grid(figure: Grid, width: int) -> Paper:
    """Columns over the width, rows as high as fits; cells of one shade are one path, so that thousands stay small."""
    columns, rows = max(len(figure.columns), 1), max(len(figure.rows), 1)
    left = 14 + 6.8 * max((len(r) for r in figure.rows), default=1)
    keys, top = _legend(figure, width)
    step = (width - left - 10) / columns
    tall = min(24.0, max(210 / rows, 3.4)) if figure.shape == "cells" else min(26.0, max(220 / rows, 5))
    bottom = top + tall * rows
    height = int(bottom + 38)
    parts = [keys, f'<path class="rule" d="M{left:g} {top:g}V{bottom:g}H{width - 10}"/>']
    named = labelled(figure.rows, int(tall * rows / 13))
    parts += [text(left - 6, top + tall * (i + 0.5) + 4, figure.rows[i], "end") for i in named]
    room = int((width - left) / (10 + 7 * max((len(c) for c in figure.columns), default=1)))
    named = labelled(figure.columns, room)
    parts += [text(left + step * (i + 0.5), bottom + 16, figure.columns[i], "mid") for i in named]
    parts.append(text((left + width - 10) / 2, height - 5, f"{figure.x} →   ↓ {figure.y}", "mid faint"))
    draw = _cells if figure.shape == "cells" else _bubbles
    parts += draw(figure, left, top, step, tall)
    parts += _marks(figure, left, top, step, tall)
    return Paper("".join(parts), height, f"grid {left:g} {top:g} {step:g} {tall:g}")


def _kinds(figure: Grid) -> list[str]:
    return sorted({mark.kind for mark in figure.marks})


def _legend(figure: Grid, width: int) -> tuple[str, float]:
    """What the darkest shade or the largest bubble means, and the kinds of marks."""
    top = max((p.value for p in figure.points), default=0.0)
    shown = f"{top:.3g}" if figure.shape == "cells" else amount(top, "number")
    key = '<path class="fill k0" d="M2 -9h10v10h-10z"/>'
    if figure.shape == "bubbles":
        key = '<circle class="bubble k0" cx="7" cy="-4" r="5"/>'
    kinds = [(k, f'<path class="mark" d="M7 -4{_symbol(n, 3)}"/>') for n, k in enumerate(_kinds(figure))]
    return legend([(f"{figure.value}: up to {shown}", key), *kinds], width)


def _cells(figure: Grid, left: float, top: float, step: float, tall: float) -> list[str]:
    most = max((p.value for p in figure.points), default=0.0) or 1.0
    shades: dict[int, list[str]] = {}
    gap = 0.6 if min(step, tall) > 5 else 0.0
    box = f"h{step - 2 * gap:.1f}v{tall - 2 * gap:.1f}h-{step - 2 * gap:.1f}z"
    rows = [f" {top + tall * row + gap:.1f}{box}" for row in range(len(figure.rows))]
    columns = [f"M{left + step * column + gap:.1f}" for column in range(len(figure.columns))]
    for p in figure.points:
        shade = max(1, min(SHADES, round(p.value / most * SHADES)))
        shades.setdefault(shade, []).append(columns[p.column] + rows[p.row])
    return [
        f'<path class="fill k0" fill-opacity="{0.1 + 0.9 * shade / SHADES:.2f}" d="{"".join(path)}"/>'
        for shade, path in sorted(shades.items())
    ]


def _bubbles(figure: Grid, left: float, top: float, step: float, tall: float) -> list[str]:
    most = max((p.value for p in figure.points), default=0.0) or 1.0
    largest = min(max(1.5 * step, 8.0), max(tall, 8.0), 26.0) * 0.54
    return [
        f'<circle class="bubble k0" cx="{left + step * (p.column + 0.5):.1f}" cy="{top + tall * (p.row + 0.5):.1f}" '
        f'r="{largest * (p.value / most) ** 0.5:.1f}"/>'
        for p in figure.points
        if p.value > 0
    ]


def _marks(figure: Grid, left: float, top: float, step: float, tall: float) -> list[str]:
    """One group for each kind of mark, with its meaning; marks are visible however small the cells are."""
    noted = len(figure.marks) <= MOST_NOTES  # beyond that only the kinds are named, or the file grows too large
    groups = []
    for n, kind in enumerate(_kinds(figure)):
        symbol = _symbol(n, max(1.6, min(4.0, min(step, tall) / 3)))
        paths = [
            (f"M{left + step * (m.column + 0.5):.1f} {top + tall * (m.row + 0.5):.1f}{symbol}", m.note)
            for m in figure.marks
            if m.kind == kind
        ]
        if noted:
            drawn = "".join(f'<path d="{path}"><title>{escape(note)}</title></path>' for path, note in paths)
        else:
            drawn = f'<path d="{"".join(path for path, _ in paths)}"/>'
        groups.append(f'<g class="mark"><title>{escape(kind)}</title>{drawn}</g>')
    return groups


def _symbol(number: int, r: float) -> str:
    """A cross, a ring, a triangle or a square of half-width r around the pen."""
    d = 2 * r
    return (
        f"m{-r:.1f} {-r:.1f}l{d:.1f} {d:.1f}m{-d:.1f} 0l{d:.1f} {-d:.1f}",
        f"m{-r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {d:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-d:.1f} 0",
        f"m0 {-r:.1f}l{r:.1f} {d:.1f}h{-d:.1f}z",
        f"m{-r:.1f} {-r:.1f}h{d:.1f}v{d:.1f}h{-d:.1f}z",
    )[number % 4]
