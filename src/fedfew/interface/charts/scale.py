"""Axes: round tick values, the position of a value, and numbers as people write them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedfew.core.text import UNITS, percent, size
from fedfew.interface.charts import Unit


@dataclass(frozen=True)
class Scale:
    """A linear map from values to positions."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return round(self.start + (value - self.low) / span * (self.end - self.start), 2)


def extent(values: Iterable[float | None], unit: Unit) -> tuple[float, float]:
    """The range of an axis: a margin around the data, never beyond what the unit allows."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 0.5
    if unit in ("bytes", "seconds"):
        return 0.0, high + margin
    if unit == "percent":
        return max(0.0, low - margin), min(1.0, high + margin)
    return (0.0 if 0 <= low < 0.4 * high else low - margin), high + margin


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round values within the range."""
    span = high - low
    if not span > 0:
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * m for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.10g}") for n in range(first, last + 1)]


def whole_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """The same for counts."""
    step = every(math.floor(high) - math.ceil(low) + 1, count)
    return [float(n) for n in range(math.ceil(low), math.floor(high) + 1) if n % step == 0 or step == 1]


def writer(unit: Unit, values: Sequence[float]) -> Callable[[float], str]:
    """How to write the values of an axis, all with the same number of digits."""
    span = (max(values) - min(values)) if len(values) > 1 else (abs(values[0]) if values else 1.0)
    step = span / max(len(values) - 1, 1)
    if unit == "percent":
        digits = 0 if step >= 0.0099 else (1 if step >= 0.00099 else 2)
        return lambda v: f"{100 * v:.{digits}f} %"
    if unit == "bytes":
        return _bytes(max((abs(v) for v in values), default=0.0), step)
    if max((abs(v) for v in values), default=0.0) >= 10_000:
        return lambda v: f"{v:,.0f}".replace(",", " ")
    digits = next((d for d in range(7) if abs(step * 10**d - round(step * 10**d)) < 1e-6 * step * 10**d), 0)
    suffix = " s" if unit == "seconds" else ""
    return lambda v: f"{v:.{digits}f}{suffix}"


def _bytes(largest: float, step: float) -> Callable[[float], str]:
    power = min(3, int(math.log10(largest) // 3)) if largest >= 1 else 0
    digits = 0 if step / 1000.0**power >= 0.99 or not power else 1
    return lambda v: f"{v / 1000.0**power:.{digits}f} {UNITS[power]}"


def amount(value: float | None, unit: Unit) -> str:
    """A single value, as a person writes it."""
    if value is None:
        return "–"
    if unit in ("percent", "bytes"):
        return percent(value) if unit == "percent" else size(value)
    if unit == "seconds":
        return f"{value:.2f} s"
    return f"{value:,.0f}".replace(",", " ") if float(value).is_integer() else f"{value:.4g}"


def every(count: int, room: int) -> int:
    """Label each n-th of ``count`` things if there is room for ``room`` labels."""
    if count <= room:
        return 1
    rough = count / max(room, 1)
    power = 10 ** math.floor(math.log10(rough))
    return int(next(power * m for m in (1, 2, 5, 10) if power * m >= rough))


def labelled(labels: Sequence[str], room: int) -> list[int]:
    """Which of the labels to write if there is room for ``room``; of numbers the round ones."""
    step = every(len(labels), room)
    if step > 1 and all(label.isdecimal() for label in labels):
        positions = [i for i, label in enumerate(labels) if int(label) % step == 0]
        if 1 < len(positions) <= room + 1:
            return positions
    return list(range(0, len(labels), step))


def thinned(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` positions, evenly spaced, including first and last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def outline(values: Sequence[float | None], most: int) -> list[int]:
    """At most ``most`` positions that keep a curve's shape: the lowest, the highest and a gap of every stretch."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    for start, end in pairwise(round(i * count / (most // 3 - 1)) for i in range(most // 3)):
        stretch = [(value, i) for i, value in enumerate(values[start:end], start) if value is not None]
        kept |= {min(stretch)[1], max(stretch)[1]} if stretch else set()
        kept |= {next(i for i in range(start, end) if values[i] is None)} if len(stretch) < end - start else set()
    return sorted(kept)
