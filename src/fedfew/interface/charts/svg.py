"""Figures as SVG: small, crisp, in the colours of the surrounding page, with a title and a text for screen readers."""

from collections.abc import Sequence
from html import escape
from importlib import resources

from fedfew.interface.charts import COLOURS, Bars, Figure, Grid, Lines, Series
from fedfew.interface.charts.grid import Paper, draw_grid, legend, text
from fedfew.interface.charts.scale import Scale, extent, labelled, outline, thinned, ticks, whole_ticks, writer

WIDTH, HEIGHT = 460, 270
MOST_POINTS = 600


def svg(figure: Figure, *, width: int = WIDTH, alone: bool = False) -> str:
    """The figure as an SVG element; ``alone`` makes it a separate file with its own title and colours."""
    match figure:
        case Lines():
            paper = _lines(figure, width)
        case Bars():
            paper = _bars(figure, width)
        case Grid():
            paper = draw_grid(figure, width)
    name = f"{figure.key}{width}"
    head = 26 if alone else 0
    size = f'viewBox="0 {-head} {width} {paper.height + head}"'
    outside = f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{paper.height + head}"' if alone else ""
    inside = f"<style>{chart_style()}</style>{text(4, -9, figure.title, 'name')}" if alone else ""
    return (
        f'<svg class="chart" data-axes="{paper.axes}" {size}{outside} role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(figure.title)}</title><desc id="{name}-d">{escape(figure.about)}</desc>'
        f"{inside}{paper.content}</svg>"
    )


def chart_style() -> str:
    return (resources.files("fedfew.interface.charts") / "charts.css").read_text("utf-8")


def _keys(names: Sequence[tuple[str, str]], width: int) -> tuple[str, float]:
    """A legend of names and their classes; a single name needs none."""
    if len(names) < 2:
        return "", 8.0
    line, box = 'd="M0 -4h14"', 'd="M2 -9h10v10h-10z"'
    return legend([(n, f'<path class="{c}" {line if "line" in c else box}/>') for n, c in names], width)


def _lines(figure: Lines, width: int) -> Paper:
    names = [(s.name, f"{_look(s)} k{s.colour % COLOURS}") for s in figure.series]
    keys, top = _keys(names, width)
    values = [v for s in figure.series for v in _reach(s)] + [level.y for level in figure.levels]
    low, high = extent(values, figure.unit)
    marks = ticks(low, high)
    write = writer(figure.unit, marks)
    left = 16 + 6.8 * max(len(write(v)) for v in marks)
    xs = [x for s in figure.series for x in s.x] or [0.0, 1.0]
    x = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, left + 4, width - 14)
    y = Scale(low, high, HEIGHT - 40, top + (8 if figure.levels else 0))
    parts = [keys, _frame(figure.x, [(y(v), write(v)) for v in marks], left, width)]
    parts += [text(x(t), HEIGHT - 23, f"{t:g}", "mid") for t in whole_ticks(x.low, max(xs), 7)]
    parts += [_curve(s, x, y) for s in figure.series]
    parts += _levels(figure, left, width, y)
    if not any(v is not None for v in values):
        parts.append(text((left + width) / 2, HEIGHT / 2, "nothing to show yet", "mid"))
    axes = f"lines {x.low:g} {x.high:g} {x.start:g} {x.end:g}"
    return Paper("".join(parts), HEIGHT, axes)


def _levels(figure: Lines, left: float, width: int, y: Scale) -> list[str]:
    """Reference lines, each with its name at its right end: above it, or below if another line is close above."""
    parts: list[str] = []
    above = -99.0
    for level in sorted(figure.levels, key=lambda level: -level.y):
        height = y(level.y)
        words = height + 13 if height - above < 16 else height - 4
        parts.append(f'<path class="level line" d="M{left:g} {height:g}H{width - 14}"/>')
        parts.append(text(width - 14, words, level.name, "end over"))
        above = height
    return parts


def _look(series: Series) -> str:
    return {"line": "line", "dashed": "line dashed", "points": "point"}[series.style]


def _reach(series: Series) -> Sequence[float | None]:
    """The values that must fit on an axis, the band included."""
    if not series.spread:
        return series.y
    pairs = [(v, d or 0.0) for v, d in zip(series.y, series.spread, strict=True) if v is not None]
    return [v - d for v, d in pairs] + [v + d for v, d in pairs]


def _curve(series: Series, x: Scale, y: Scale) -> str:
    """A line with gaps where values are unknown, or points; and the band behind it."""
    colour = f"k{series.colour % COLOURS}"
    if series.style == "points":
        known = thinned(len(series.x), MOST_POINTS)
        spots = "".join(f"M{x(series.x[i]):g} {y(v):g}h0" for i in known if (v := series.y[i]) is not None)
        return f'<path class="spots {colour}" d="{spots}"/>'
    known = outline(series.y, MOST_POINTS)
    path, pen = [], "M"
    for i in known:
        value = series.y[i]
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(series.x[i]):g} {y(value):g}")
        pen = "L"
    band = _band(series, known, x, y, colour) if series.spread else ""
    line = "".join(path)
    if len(path) == 1:
        line += "h.01"  # draws a single round as a dot
    return f'{band}<path class="{_look(series)} {colour}" d="{line}"/>'


def _band(series: Series, known: Sequence[int], x: Scale, y: Scale, colour: str) -> str:
    sure = [(series.x[i], v, series.spread[i] or 0.0) for i in known if (v := series.y[i]) is not None]
    if not any(d for _, _, d in sure):
        return ""
    upper = "L".join(f"{x(a):g} {y(v + d):g}" for a, v, d in sure)
    lower = "L".join(f"{x(a):g} {y(v - d):g}" for a, v, d in reversed(sure))
    return f'<path class="band {colour}" d="M{upper}L{lower}Z"/>'


def _frame(x_name: str, marks: Sequence[tuple[float, str]], left: float, width: int) -> str:
    """Grid lines with their values, and the name of the axis below."""
    rules = "".join(f"M{left:g} {height:g}H{width - 10}" for height, _ in marks)
    values = "".join(text(left - 6, height + 4, label, "end") for height, label in marks)
    names = text((left + width - 10) / 2, HEIGHT - 5, x_name, "mid faint")
    return f'<path class="rule" d="{rules}"/>{values}{names}'


def _bars(figure: Bars, width: int) -> Paper:
    keys, top = _keys([(name, f"fill k{i % COLOURS}") for i, (name, _) in enumerate(figure.series)], width)
    count = len(figure.names)
    if figure.stacked:
        tops = [sum(values[i] for _, values in figure.series) for i in range(count)]
    else:
        tops = [v for _, values in figure.series for v in values]
    high = max(tops, default=0.0) * 1.04 or 1.0
    marks = ticks(0.0, high)
    write = writer(figure.unit, marks)
    left = 16 + 6.8 * max(len(write(v)) for v in marks)
    step = (width - 14 - left) / max(count, 1)
    names, bottom = _names(figure.names, left, step)
    y = Scale(0.0, high, HEIGHT - bottom, top)
    frame = _frame(figure.x, [(y(v), write(v)) for v in marks], left, width)
    axes = f"bars {left:g} {step:g}"
    return Paper("".join([keys, frame, names, *_columns(figure, left, step, y)]), HEIGHT, axes)


def _names(names: Sequence[str], left: float, step: float) -> tuple[str, float]:
    """The bars' names and the room they take: slanted if they are too long to be horizontal."""
    longest = max((len(name) for name in names), default=1)
    centres = [left + step * (i + 0.5) for i in range(len(names))]
    if 6.8 * longest + 6 > step >= 12 and not all(name.isdecimal() for name in names):
        short = [name if len(name) <= 12 else f"{name[:11]}…" for name in names]
        slant = "".join(
            f'<text class="end" transform="translate({x + 3:.1f} {HEIGHT - 64}) rotate(-38)">{escape(name)}</text>'
            for x, name in zip(centres, short, strict=True)
        )
        return slant, 76.0
    room = int(step * len(names) / (9 + 7 * longest))
    return "".join(text(centres[i], HEIGHT - 23, names[i], "mid") for i in labelled(names, room)), 40.0


def _columns(figure: Bars, left: float, step: float, y: Scale) -> list[str]:
    """The bars of a series are one path."""
    count = len(figure.names)
    base = [0.0] * count
    wide = step * (0.72 if count < 40 else 0.86)
    each = wide if figure.stacked else wide / max(len(figure.series), 1)
    parts = []
    for n, (_, values) in enumerate(figure.series):
        path = []
        for i, value in enumerate(values):
            start = left + step * i + (step - wide) / 2 + (0 if figure.stacked else n * each)
            low = y(base[i])
            tall = round(low - y(base[i] + value), 2)
            if tall > 0:
                path.append(f"M{start:.2f} {low:g}h{each:.2f}v-{tall:g}h-{each:.2f}z")
            if figure.stacked:
                base[i] += value
        parts.append(f'<path class="fill k{n % COLOURS}" d="{"".join(path)}"/>')
    return parts


def spark(values: Sequence[float | None], about: str) -> str:
    """A curve the size of a word, without axes."""
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    x = Scale(0, max(len(values) - 1, 1), 1, 99)
    y = Scale(min((v for _, v in known), default=0.0), max((v for _, v in known), default=1.0), 22, 2)
    points = [known[i] for i in thinned(len(known), 80)]
    path = "L".join(f"{x(i):g} {y(v):g}" for i, v in points)
    size = 'viewBox="0 0 100 24" preserveAspectRatio="none"'
    return (
        f'<svg class="chart spark" {size} role="img" aria-label="{escape(about)}">'
        f'<path class="line k0" d="{"M" + path if len(points) > 1 else ""}"/></svg>'
    )
