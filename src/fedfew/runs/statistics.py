"""Means over seeds with standard deviation, standard error and 95 % interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import TypeVar

Key = TypeVar("Key")
BEYOND = 2.0
"""Standard errors on either side of a value whose error comes from elsewhere, such as the number of test images."""


@dataclass(frozen=True)
class Interval:
    """A mean over n values with its 95 % interval by Student's t; None if there is only one value."""

    mean: float
    sd: float | None
    n: int
    se: float | None
    low: float | None
    high: float | None
    partial: bool = False
    """Whether it comes from runs that have not finished."""

    @staticmethod
    def of(values: Sequence[float], each: float | None = None) -> "Interval":
        """The interval of some values; ``each`` is the least standard error of one, such as that of its test images.

        Two values that agree by chance are no more certain than that.
        """
        n, centre = len(values), fmean(values)
        sd = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1)) if n > 1 else None
        least = None if each is None else each / math.sqrt(n)
        se, half = least, None if least is None else BEYOND * least
        if sd is not None:
            spread = sd / math.sqrt(n)
            se, half = max(spread, least or 0.0), max(_student(n) * spread, half or 0.0)
        low, high = (None, None) if half is None else (centre - half, centre + half)
        return Interval(centre, sd, n, se, low, high)

    @staticmethod
    def known(values: Sequence[float | None]) -> "Interval | None":
        """The interval of the known values; None if there are none."""
        found = [value for value in values if value is not None]
        return Interval.of(found) if found else None

    def marked(self, partial: bool) -> "Interval":
        return replace(self, partial=partial)

    @property
    def significant(self) -> bool | None:
        """For a difference: whether the interval excludes zero; None if there is no interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


@cache
def _student(n: int) -> float:
    """How many standard errors of ``n`` values make half of a 95 % interval: the 0.975 quantile of Student's t.

    For a whole number ν of degrees of freedom, P(|t| < √ν · tan θ) is a finite series in cos θ (Abramowitz and Stegun
    26.7.3 and 26.7.4). It grows with θ, which is found by bisection.
    """
    degrees = n - 1
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < 0.95 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(theta: float, degrees: int) -> float:
    odd, square = degrees % 2, math.cos(theta) ** 2
    term, total = math.cos(theta) if odd else 1.0, 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= square * (power + 1) / (power + 2)
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


def differences(first: Mapping[Key, float], second: Mapping[Key, float]) -> list[float]:
    """By how much the first is larger, for every seed that both have."""
    return [value - second[seed] for seed, value in first.items() if seed in second]


def sampling_error(share: float, images: int) -> float:
    """Standard error of a share measured on this many images."""
    return math.sqrt(max(share * (1 - share), 0.0) / images)
