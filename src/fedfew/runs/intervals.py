"""95 % intervals and p-values: of means over seeds, of an accuracy, and of two models on the same test images.

Everything holds for small numbers: Student's t over seeds, Clopper and Pearson's exact interval for an accuracy, and
Tango's score interval (Statistics in Medicine 17, 1998) with McNemar's exact test for a pair. Where several images
belong to one patient or another group, they count as fewer (Korn and Graubard, Survey Methodology 24, 1998).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Signs = NDArray[np.int64]
Groups = NDArray[np.int64]
ALPHA = 0.05
FEWEST = 3
"""Seeds, or groups of images, below which there is no interval."""
POWER = 0.8
MOST_SEEDS = 1000
BEYOND = 2.0
"""Standard errors on either side of a value whose error comes from elsewhere, such as the number of test images."""
ALL_FLIPS, FLIPS = 12, 5_000
"""Groups up to which all exchanges of two models are counted; how many are drawn at random for more."""
Z = 1.959963984540054


@dataclass(frozen=True)
class Interval:
    """A mean over n values with its 95 % interval; None if there are too few of them."""

    mean: float
    sd: float | None
    n: int
    se: float | None
    low: float | None
    high: float | None
    partial: bool = False
    """Whether it comes from runs that have not finished."""
    p: float | None = None
    """Of a difference: how probable one at least as large is where there is none."""
    values: tuple[float, ...] = ()
    """The values themselves, if they are seeds'."""

    @staticmethod
    def of(values: Sequence[float], each: float | None = None) -> "Interval":
        """By Student's t; ``each`` is the least standard error of one value, such as that of its test images.

        Values that agree by chance are no more certain than that. Two values give an interval only with ``each``.
        """
        n, centre = len(values), fmean(values)
        sd = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1)) if n > 1 else None
        least = None if each is None else each / math.sqrt(n)
        se, half, p = least, None if least is None else BEYOND * least, None
        if sd is not None:
            spread = sd / math.sqrt(n)
            se = max(spread, least or 0.0)
            if n >= FEWEST or half is not None:
                half = max(_student(n) * spread, half or 0.0)
                p = _student_p(centre, se, n)
        low, high = (None, None) if half is None else (centre - half, centre + half)
        return Interval(centre, sd, n, se, low, high, p=p, values=tuple(values))

    @staticmethod
    def known(values: Sequence[float | None]) -> "Interval | None":
        """The interval of the known values; None if there are none."""
        numbers = [value for value in values if value is not None]
        return Interval.of(numbers) if numbers else None

    @property
    def half(self) -> float | None:
        """Half of the interval's width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def significant(self) -> bool | None:
        """For a difference: whether the interval excludes zero; None if there is no interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0

    @property
    def seeds_needed(self) -> int | None:
        """Seeds with which a difference of this size is found in four of five studies; None if it cannot be said."""
        if not self.sd or not self.mean or self.n < FEWEST:
            return None
        ratio = self.sd / abs(self.mean)
        counts = range(FEWEST, MOST_SEEDS + 1)
        return next((n for n in counts if (_student(n) + _student(n, POWER)) * ratio <= math.sqrt(n)), MOST_SEEDS + 1)


@cache
def _student(n: int, share: float = 1 - ALPHA / 2) -> float:
    """The quantile of Student's t for the mean of ``n`` values: half of a 95 % interval in standard errors."""
    from scipy.special import stdtrit  # a run is read without it

    return float(stdtrit(n - 1, share))


def _student_p(mean: float, se: float, n: int) -> float:
    from scipy.special import stdtr

    if not se:  # all values are equal: as far as signs can tell
        return float(2.0 ** (1 - n)) if mean else 1.0
    return float(2 * stdtr(n - 1, -abs(mean) / se))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for all of them together (Holm); unknown ones stay so and do not count."""
    order = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected, highest = list[float | None]([None] * len(values)), 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[i] = highest
    return corrected


def of_accuracy(right: NDArray[np.bool_], groups: Groups | None = None) -> Interval:
    """The share of images that are right, with its exact interval (Clopper and Pearson)."""
    from scipy.special import betaincinv

    mean, share = float(right.mean()), effective_share(right.astype(np.int64), groups)
    if share is None:
        return Interval(mean, None, 1, None, None, None)
    n = share * len(right)
    hits, misses = mean * n, (1 - mean) * n
    low = float(betaincinv(hits, misses + 1, ALPHA / 2)) if hits else 0.0
    high = float(betaincinv(hits + 1, misses, 1 - ALPHA / 2)) if misses else 1.0
    return Interval(mean, None, 1, math.sqrt(mean * (1 - mean) / n), low, high)


def of_pair(first: NDArray[np.bool_], second: NDArray[np.bool_], groups: Groups | None = None) -> Interval:
    """How many more images the first has right: Tango's score interval, and p by McNemar's exact test.

    The interval includes zero wherever the test does not exclude it.
    """
    signs = first.astype(np.int64) - second.astype(np.int64)
    mean, share, n = float(signs.mean()), effective_share(signs, groups), len(signs)
    if share is None:
        return Interval(mean, None, 1, None, None, None)
    gained, lost = float((signs > 0).sum()), float((signs < 0).sum())
    p = mcnemar(int(gained), int(lost)) if groups is None else exchanged(signs, groups)
    low, high = (float(end) for end in tango(share * gained, share * lost, share * n))
    if p >= ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    se = math.sqrt(max(gained + lost - n * mean**2, 0.0) / share) / n
    return Interval(mean, None, 1, se, low, high, p=p)


def tango(gained: ArrayLike, lost: ArrayLike, n: float) -> tuple[Floats, Floats]:
    """Both ends of the score interval of (gained − lost) / n; arrays are pairs of their own."""
    b, c = np.asarray(gained, float), np.asarray(lost, float)

    def score(delta: Floats) -> Floats:
        linear = (2 * n - b + c) * delta - b - c
        q = (np.sqrt(np.maximum(linear**2 + 8 * n * c * delta * (1 - delta), 0)) - linear) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        result: Floats = (b - c - n * delta) / np.sqrt(np.maximum(variance, 1e-300))
        return result

    def end(low: Floats, high: Floats, target: float) -> Floats:
        for _ in range(50):  # the score falls as delta grows
            middle = (low + high) / 2
            above = score(middle) > target
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return (low + high) / 2

    centre = (b - c) / n
    return end(np.full_like(centre, -1), centre, Z), end(centre, np.full_like(centre, 1), -Z)


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact p-value: how one-sided so many images that only one model has right would be by chance."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5))) if gained + lost else 1.0


def exchanged(signs: Signs, groups: Groups) -> float:
    """The same with groups: the two models are exchanged in whole groups, in every way or in many at random."""
    sums = np.bincount(np.unique(groups, return_inverse=True)[1], signs)
    sums = sums[sums != 0]
    if len(sums) <= ALL_FLIPS:
        ways = (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1
        return float((np.abs((2 * ways - 1) @ sums) >= abs(sums.sum())).mean())
    ways = np.random.default_rng(0).integers(0, 2, (FLIPS, len(sums)))
    return float((1 + (np.abs((2 * ways - 1) @ sums) >= abs(sums.sum())).sum()) / (1 + FLIPS))


def effective_share(values: Signs, groups: Groups | None) -> float | None:
    """How many independent images each image counts for: 1 without groups, less where those of a group are alike.

    From the spread between the groups' sums, and Student's t for their number. None with too few groups.
    """
    if groups is None:
        return 1.0
    _, members = np.unique(groups, return_inverse=True)
    count, n = int(members.max()) + 1, len(values)
    if count < FEWEST:
        return None
    rest = values - values.mean()
    within, between = float((rest**2).sum()), float((np.bincount(members, rest) ** 2).sum())
    inflated = between * count / (count - 1) / within if within else n / count
    return (Z / _student(count)) ** 2 / max(inflated, 1.0)
