"""Means over seeds with standard deviation, standard error and 95 % interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

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
        numbers = [value for value in values if value is not None]
        return Interval.of(numbers) if numbers else None

    def marked(self, partial: bool) -> "Interval":
        return replace(self, partial=partial)

    @property
    def significant(self) -> bool | None:
        """For a difference: whether the interval excludes zero; None if there is no interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


@cache
def _student(n: int) -> float:
    """How many standard errors of ``n`` values make half of a 95 % interval: the 0.975 quantile of Student's t."""
    from scipy.special import stdtrit  # a run is read without it

    return float(stdtrit(n - 1, 0.975))
