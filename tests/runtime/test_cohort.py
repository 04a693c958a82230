"""Who takes part: the right number, all different, as often as availability says, and repeatable round by round."""

import math
from collections import Counter

import numpy as np
import pytest

from fedfew.runtime.exchange import Availability, draw_cohort, drop_out


@pytest.mark.parametrize(
    "how", [Availability(), Availability("zipf"), Availability("zipf", 2.5), Availability("zipf", 0.0)]
)
@pytest.mark.parametrize(("clients", "size"), [(20, 5), (20, 20), (1000, 20), (1, 1)])
def test_clients_are_different_sorted_and_repeatable(how: Availability, clients: int, size: int) -> None:
    seen = []
    for t in range(20):
        cohort = draw_cohort(3, t, clients, size, how)
        assert cohort == sorted(set(cohort))
        assert len(cohort) == size
        assert 0 <= cohort[0] <= cohort[-1] < clients
        assert cohort == draw_cohort(3, t, clients, size, how)
        seen.append(tuple(cohort))
    if size < clients:
        assert len(set(seen)) > 10
        assert any(draw_cohort(4, t, clients, size, how) != list(seen[t]) for t in range(20))


@pytest.mark.parametrize("exponent", [1.0, 2.0])
@pytest.mark.parametrize("clients", [9, 40])
def test_zipf_takes_one_client_as_often_as_its_share(exponent: float, clients: int) -> None:
    """Cohorts of one: the client of rank r comes with probability ∝ 1/r^exponent, by either way of drawing."""
    rounds = 3_000
    counts = Counter(draw_cohort(1, t, clients, 1, Availability("zipf", exponent))[0] for t in range(rounds))
    shares = np.arange(1, clients + 1, dtype=float) ** -exponent
    shares /= shares.sum()
    found = sorted((counts[k] for k in range(clients)), reverse=True)
    for share, times in list(zip(shares, found, strict=True))[:4]:
        assert abs(times - rounds * share) < 5 * math.sqrt(rounds * share * (1 - share))


def test_a_steep_zipf_does_not_wait_for_clients_that_never_come() -> None:
    """With exponent 30 all but a few shares vanish in rounding; twenty of a thousand must be found nevertheless."""
    cohort = draw_cohort(0, 0, 1_000, 20, Availability("zipf", 30.0))
    assert len(set(cohort)) == 20
    again = draw_cohort(0, 1, 1_000, 20, Availability("zipf", 30.0))
    assert len(set(cohort) & set(again)) > 10  # nearly always the same ones


def test_a_million_clients_cost_nothing() -> None:
    assert len(draw_cohort(0, 0, 1_000_000, 100, Availability())) == 100
    assert len(draw_cohort(0, 0, 1_000_000, 100, Availability("zipf"))) == 100


def test_dropout_takes_its_share_whatever_the_cohort() -> None:
    cohort = list(range(100, 150))
    gone = [drop_out(0, t, cohort, 0.3) for t in range(200)]
    assert all(lost <= set(cohort) for lost in gone)
    total = sum(map(len, gone))
    assert abs(total - 3_000) < 5 * math.sqrt(10_000 * 0.3 * 0.7)
    assert gone[7] == drop_out(0, 7, cohort, 0.3)
    assert drop_out(0, 0, cohort, 0.0) == set()
    assert drop_out(0, 0, cohort, 1.0) == set(cohort)
