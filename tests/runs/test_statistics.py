"""Intervals over seeds against scipy."""

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
