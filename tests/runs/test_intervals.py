"""Intervals and p-values, against scipy and values by hand; their coverage by simulation."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, t, ttest_1samp

from fedfew.runs.intervals import (
    ALPHA,
    Interval,
    effective_share,
    exchanged,
    holm,
    mcnemar,
    of_accuracy,
    of_pair,
    tango,
)

COVERED = 0.93
"""Of all simulated test sets, the share of which an interval must contain the truth."""


def images(*counts: tuple[bool, int]) -> NDArray[np.bool_]:
    return np.repeat([value for value, _ in counts], [count for _, count in counts])


@pytest.mark.parametrize("n", [3, 4, 5, 10, 31, 200, 2000])
def test_the_interval_and_p_of_a_mean_are_students(n: int) -> None:
    values = [float(k % 7) - 2 for k in range(n)]
    own = Interval.of(values)
    assert own.se is not None
    low, high = t.interval(1 - ALPHA, n - 1, loc=own.mean, scale=own.se)
    assert (own.low, own.high) == pytest.approx((low, high), rel=1e-12)
    assert own.p == pytest.approx(ttest_1samp(values, 0).pvalue) and own.values == tuple(values)


def test_two_seeds_give_their_values_and_no_interval() -> None:
    own = Interval.of([0.4, 0.6])
    assert (own.mean, own.low, own.high, own.p, own.values) == (0.5, None, None, None, (0.4, 0.6))


def test_values_that_agree_are_as_uncertain_as_each_of_them() -> None:
    assert Interval.of([0.5, 0.5], each=0.02).half == pytest.approx(2 * 0.02 / 2**0.5)


def test_seeds_needed_find_the_difference_in_four_of_five_studies() -> None:
    values = [0.01, 0.03, -0.01, 0.02, 0.0]
    own = Interval.of(values)
    needed = own.seeds_needed
    assert needed is not None and 5 < needed < 30
    drawn = np.random.default_rng(0).normal(own.mean, own.sd or 0, (4000, needed))
    assert (ttest_1samp(drawn, 0, axis=1).pvalue < ALPHA).mean() == pytest.approx(0.8, abs=0.05)
    assert Interval.of([1e-6, 0.5, -0.5]).seeds_needed == 1001 and Interval.of([0.1, 0.2]).seeds_needed is None


def test_holm_by_hand() -> None:
    # sorted .01, .02, .03, .04 → 4·.01, max(.04, 3·.02), max(.06, 2·.03), max(.06, .04); unknown ones do not count
    assert holm([0.03, None, 0.01, 0.04, 0.02]) == pytest.approx([0.06, None, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(("right", "n"), [(0, 5), (20, 20), (7, 10), (300, 400)])
def test_an_accuracy_has_the_exact_interval(right: int, n: int) -> None:
    own, exact = of_accuracy(images((True, right), (False, n - right))), binomtest(right, n).proportion_ci(0.95)
    assert (own.low, own.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize(("gained", "lost", "p"), [(4, 0, 0.125), (6, 0, 0.03125), (0, 0, 1.0), (45, 24, 0.0155)])
def test_four_gained_and_none_lost_is_no_gain(gained: int, lost: int, p: float) -> None:
    first = images((True, gained), (False, lost), (True, 80))
    second = images((False, gained), (True, lost), (True, 80))
    gap = of_pair(first, second)
    assert gap.p == pytest.approx(p, rel=0.01)
    assert gap.significant == (p < ALPHA) and gap.mean == (gained - lost) / len(first)
    back = of_pair(second, first)
    assert (back.low, back.high) == pytest.approx((-(gap.high or 0), -(gap.low or 0)))


def test_tangos_interval_inverts_his_score_test() -> None:
    """At its ends, the restricted estimate by hand makes the score 1.96."""
    gained, lost, n = 43, 0, 50  # Tango's example: 0.7 – 0.9
    low, high = (float(end) for end in tango(gained, lost, n))
    for end, sign in ((low, 1), (high, -1)):
        q = np.linspace(max(0.0, -end), (1 - end) / 2, 2_000_001)[1:-1]
        likelihood = gained * np.log(q + end) + (n - gained - lost) * np.log(1 - 2 * q - end)
        best = q[likelihood.argmax()]
        score = (gained - lost - n * end) / np.sqrt(n * (2 * best + end - end**2))
        assert score == pytest.approx(sign * 1.96, abs=0.002)


@pytest.mark.parametrize("n", [10, 30, 100, 1000])
def test_intervals_of_small_test_sets_cover_the_truth(n: int) -> None:
    rng = np.random.default_rng(n)
    for truth in (0.05, 0.5, 0.8, 0.95, 0.99):
        counts, times = np.unique(rng.binomial(n, truth, 4000), return_counts=True)
        spans = [of_accuracy(np.arange(n) < count) for count in counts]
        inside = [(span.low or 0) <= truth <= (span.high or 0) for span in spans]
        assert times[inside].sum() / 4000 >= 0.95 - 0.01  # exact: never below 95 %
    for gain, loss in ((0.01, 0.03), (0.05, 0.05), (0.1, 0.0), (0.2, 0.01), (0.2, 0.1), (0.4, 0.2)):
        drawn = rng.multinomial(n, [gain, loss, 1 - gain - loss], 4000)
        pairs, times = np.unique(drawn[:, :2], axis=0, return_counts=True)
        low, high = tango(pairs[:, 0], pairs[:, 1], n)
        zero = np.array([mcnemar(b, c) >= ALPHA for b, c in pairs.tolist()])
        low, high = np.where(zero, np.minimum(low, 0), low), np.where(zero, np.maximum(high, 0), high)
        assert times[(low <= gain - loss) & (gain - loss <= high)].sum() / 4000 >= COVERED
        assert not (times[~zero].sum() / 4000 > ALPHA and gain == loss)  # no gain is found where there is none


def test_groups_of_images_count_as_fewer() -> None:
    """Ten images of each of 40 patients, all alike within a patient: as certain as 40 images, and no more."""
    patients, groups = images((True, 30), (False, 10)), np.repeat(np.arange(40), 10)
    alone, alike = of_accuracy(patients), of_accuracy(patients.repeat(10), groups)
    assert (alike.low, alike.high) == pytest.approx((alone.low, alone.high), abs=0.012)
    assert (of_accuracy(patients.repeat(10)).half or 0) < 0.4 * (alike.half or 0)
    perfect = of_accuracy(np.ones(400, bool), groups)
    assert perfect.low == pytest.approx(of_accuracy(np.ones(40, bool)).low, abs=0.01)
    assert of_accuracy(np.ones(400, bool), groups // 20).low is None  # two groups
    # six patients improve in all their images: McNemar would say p = 2⁻⁵⁹, whole patients say 2⁻⁵
    base = np.zeros(400, bool)
    better = groups < 6
    assert exchanged(better.astype(int), groups) == pytest.approx(2 / 2**6)
    assert of_pair(better, base, groups).p == pytest.approx(2 / 2**6)
    assert effective_share(better.astype(int), np.arange(400)) == pytest.approx(1, abs=0.02)


def test_intervals_over_groups_cover_the_truth() -> None:
    rng, covered, kept = np.random.default_rng(5), 0, 0
    for _ in range(300):
        sizes = rng.integers(2, 12, 30)
        groups, easy = np.repeat(np.arange(30), sizes), rng.beta(4, 1, 30).repeat(sizes)  # mean 0.8
        right = rng.random(len(groups)) < easy
        span = of_accuracy(right, groups)
        covered += (span.low or 0) <= 0.8 <= (span.high or 0)
        shift = np.where(rng.random(30) < 0.5, 0.15, -0.15).repeat(sizes)  # two models, equally good on average
        pair = of_pair(rng.random(len(groups)) < 0.6 + shift, rng.random(len(groups)) < 0.6 - shift, groups)
        kept += not pair.significant
    assert covered / 300 >= COVERED and kept / 300 >= COVERED
