"""Intervals over seeds against scipy."""

import math

import pytest
from scipy.stats import t

from fedfew.runs.statistics import Interval


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 31, 200, 2000])
def test_the_interval_of_a_mean_is_students(n: int) -> None:
    values = [float(k % 7) for k in range(n)]
    found = Interval.of(values)
    assert found.se is not None
    low, high = t.interval(0.95, n - 1, loc=found.mean, scale=found.se)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


def test_values_that_agree_by_chance_are_no_more_certain_than_each_of_them() -> None:
    found = Interval.of([0.1, 0.1], each=0.02)
    assert found.se == pytest.approx(0.02 / math.sqrt(2))
    assert found.low == pytest.approx(0.1 - 2 * 0.02 / math.sqrt(2))
    apart = Interval.of([0.0, 0.2], each=0.02)
    assert (apart.se, apart.high) == pytest.approx((0.1, 0.1 + 12.7062 * 0.1))
