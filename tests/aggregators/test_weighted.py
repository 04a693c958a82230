"""FedFreq (Eq. 10), its cap, and the other rules, each against numbers worked out here."""

from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.methods.tiny import contribution, generator

import fedfew
from fedfew.aggregators.weighted import capped, fedavg, fedfreq, fedfreq_weights, uniform
from fedfew.core.errors import FedfewError
from fedfew.core.types import Aggregate, Contribution

ZERO = torch.zeros(2)
VECTORS = ([1.0, 10.0], [2.0, 20.0], [4.0, 40.0])


def three(
    participation: tuple[int, int, int] = (1, 1, 1), examples: tuple[int, int, int] = (1, 1, 1)
) -> list[Contribution]:
    numbers = zip((4, 7, 9), VECTORS, examples, participation, strict=True)
    return [contribution(k, v, n, q) for k, v, n, q in numbers]


def combined(weights: tuple[Fraction, ...]) -> list[float]:
    """Σ w_k ψ_k of the three vectors above, exactly."""
    return [float(sum(w * Fraction(v[i]) for w, v in zip(weights, VECTORS, strict=True))) for i in (0, 1)]


def check(result: Aggregate, weights: tuple[Fraction, ...]) -> None:
    assert result.weights == pytest.approx({k: float(w) for k, w in zip((4, 7, 9), weights, strict=True)})
    assert result.vector.tolist() == pytest.approx(combined(weights))
    assert result.vector.dtype == torch.float32


def test_fedfreq_of_1_2_5() -> None:
    # Σq = 8, p = (1, 2, 5)/8, 1 − p = (7, 6, 3)/8, and m − 1 = 2 halves it
    expected = tuple(Fraction(n, 16) for n in (7, 6, 3))
    assert fedfreq_weights([1, 2, 5]) == [float(w) for w in expected]
    assert fedfew.fedfreq_weights is fedfreq_weights
    check(fedfreq(three((1, 2, 5)), ZERO, ZERO), expected)


def test_equal_counts_weigh_the_same_and_one_client_weighs_all() -> None:
    assert fedfreq_weights([3, 3, 3, 3]) == [0.25] * 4
    check(fedfreq(three((6, 6, 6)), ZERO, ZERO), (Fraction(1, 3),) * 3)
    assert fedfreq_weights([17]) == [1.0]
    alone = fedfreq([contribution(3, [5.0, 6.0], participation=17)], ZERO, ZERO)
    assert alone.vector.tolist() == [5.0, 6.0] and alone.weights == {3: 1.0}


@pytest.mark.parametrize("counts", [[0, 0], [-1, 2], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_counts_that_are_none_are_refused(counts: list[float]) -> None:
    given = ", ".join(f"{q:g}" for q in counts)
    with pytest.raises(FedfewError, match=rf"E103 counts: {given} are not numbers of rounds\. Count .* from 1"):
        fedfreq_weights(counts)


def test_a_client_that_never_took_part_weighs_the_most() -> None:
    assert fedfreq_weights([0, 3, 1]) == [0.5, 0.125, 0.375]


def test_fedfreq_can_weigh_by_images_too() -> None:
    # n (1 − p) = (3·7, 1·6, 2·3)/8 = (21, 6, 6)/8
    result = fedfreq(three((1, 2, 5), (3, 1, 2)), ZERO, ZERO, by="frequency×examples")
    check(result, tuple(Fraction(n, 33) for n in (21, 6, 6)))
    # nobody has images: nothing to weigh by, so all alike
    check(fedfreq(three((1, 2, 5), (0, 0, 0)), ZERO, ZERO, by="frequency×examples"), (Fraction(1, 3),) * 3)


def test_the_cap_holds_a_lone_newcomer_down() -> None:
    pair = [contribution(0, [0.0], participation=1), contribution(1, [1.0], participation=99)]

    def weights(cap: float) -> list[float]:
        return list(fedfreq(pair, ZERO[:1], ZERO[:1], cap=cap).weights.values())

    assert weights(0) == pytest.approx([0.99, 0.01])
    assert weights(1.5) == pytest.approx([0.75, 0.25])  # 1.5/2
    assert weights(1.0) == pytest.approx([0.5, 0.5])
    assert weights(2.0) == pytest.approx([0.99, 0.01])  # cap/m = 1: with two survivors only a cap below 2 binds


def test_what_the_cap_takes_goes_to_the_others_in_proportion() -> None:
    # limit 1.5/3 = ½; 0.7 is cut by 0.2, the others keep their ratio 2 : 1
    assert capped([0.7, 0.2, 0.1], 1.5) == pytest.approx([1 / 2, 1 / 3, 1 / 6])
    # limit 1.2/4 = 0.3; after 0.6 is cut to 0.3 the second would get 0.3·0.7/0.4 = 0.525, so it is cut as well
    assert capped([0.6, 0.3, 0.06, 0.04], 1.2) == pytest.approx([0.3, 0.3, 0.24, 0.16])
    assert capped([1.0, 0.0, 0.0], 1.5) == pytest.approx([0.5, 0.25, 0.25])
    assert capped([0.5, 0.5], 0.0) == [0.5, 0.5]


counts_of_clients = st.lists(st.integers(1, 1000), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(counts_of_clients)
def test_fedfreq_weights_sum_to_one_and_fall_with_the_count(counts: list[int]) -> None:
    weights = fedfreq_weights(counts)
    assert sum(weights) == pytest.approx(1)
    assert all(w >= 0 for w in weights)
    if len(counts) > 1:
        total = Fraction(sum(counts))
        expected = [(1 - Fraction(q) / total) / (len(counts) - 1) for q in counts]
        assert weights == pytest.approx([float(w) for w in expected])
        assert all(
            (a < b) == (v > w)
            for a, v in zip(counts, weights, strict=True)
            for b, w in zip(counts, weights, strict=True)
        )


raw_weights = st.lists(st.floats(0, 1), min_size=1, max_size=10)


@settings(max_examples=150, deadline=None)
@given(raw_weights, st.floats(0.5, 12), st.randoms(use_true_random=False))
def test_capped_weights_sum_to_one_stay_under_the_cap_and_keep_their_order(
    raw: list[float], cap: float, random: Random
) -> None:
    assume(sum(raw) > 1e-3)
    weights, m = [w / sum(raw) for w in raw], len(raw)

    result = capped(weights, cap)

    assert sum(result) == pytest.approx(1)
    assert max(result) <= max(cap, 1) / m + 1e-9 or cap >= m
    assert all(w >= 0 for w in result)
    rising = sorted(range(m), key=weights.__getitem__)
    assert all(result[a] <= result[b] + 1e-9 for a, b in pairwise(rising))
    turn = list(range(m))
    random.shuffle(turn)
    assert capped([weights[i] for i in turn], cap) == pytest.approx([result[i] for i in turn], abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(counts_of_clients, st.floats(0, 4), st.randoms(use_true_random=False))
def test_fedfreq_does_not_care_in_which_order_clients_come(counts: list[int], cap: float, random: Random) -> None:
    noise = torch.randn(len(counts), 5, generator=generator(1))
    parts = [contribution(k, noise[k], examples=k + 1, participation=q) for k, q in enumerate(counts)]
    turned = list(parts)
    random.shuffle(turned)
    one, other = (fedfreq(p, noise[0], noise[0], cap=cap, by="frequency×examples") for p in (parts, turned))
    torch.testing.assert_close(one.vector, other.vector)
    assert one.weights == pytest.approx(other.weights)


def test_fedavg_weighs_by_images() -> None:
    parts = three(examples=(1, 2, 5), participation=(9, 1, 1))
    check(fedavg(parts, ZERO, ZERO), tuple(Fraction(n, 8) for n in (1, 2, 5)))
    check(fedavg(three(examples=(0, 0, 0)), ZERO, ZERO), (Fraction(1, 3),) * 3)
    check(uniform(parts, ZERO, ZERO), (Fraction(1, 3),) * 3)


def test_sums_are_taken_in_double_precision() -> None:
    # in float32 1e8 + 1 is 1e8, so the ones would be lost
    parts = [contribution(0, [1e8]), *(contribution(k, [1.0]) for k in range(1, 4)), contribution(4, [-1e8])]
    assert uniform(parts, ZERO[:1], ZERO[:1]).vector.item() == pytest.approx(3 / 5)
