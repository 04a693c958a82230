"""Shamir's scheme: a published example, and any threshold of shares gives the secret back."""

import secrets
from itertools import combinations

import pytest

from fedfew.secure.shamir import PRIME, evaluate, join, split, weights


def test_the_published_example() -> None:
    # Wikipedia, "Shamir's secret sharing", Python example's numbers: 1234 + 166 x + 94 x² modulo 1613
    shares = {i: evaluate([1234, 166, 94], i + 1, 1613) for i in range(6)}
    assert list(shares.values()) == [1494, 329, 965, 176, 1188, 775]
    for three in combinations(range(6), 3):
        assert join(shares, weights(three, 1613), 1613) == 1234


def test_a_threshold_of_shares_is_enough_and_one_fewer_is_not() -> None:
    secret = secrets.randbelow(2**256)
    shares = split(secret, 4, [0, 2, 3, 7, 11, 40])
    for four in combinations(shares, 4):
        assert join(shares, weights(four)) == secret
    for three in combinations(shares, 3):
        assert join(shares, weights(three)) != secret


def test_three_shares_of_a_threshold_of_four_fit_every_secret() -> None:
    shares, held = split(5, 4, [0, 1, 2, 3]), (0, 1, 2)
    for other in (5, 6, 2**200):
        missing = (other - sum(weights(range(4))[i] * shares[i] for i in held)) * pow(weights(range(4))[3], -1, PRIME)
        assert join(shares | {3: missing % PRIME}, weights(range(4))) == other


@pytest.mark.parametrize(("secret", "threshold", "holders"), [(-1, 2, [0, 1]), (PRIME, 2, [0, 1]), (1, 3, [0, 1]),
                                                               (1, 2, [0, 0]), (1, 0, [0])])  # fmt: skip
def test_impossible_requests_are_refused(secret: int, threshold: int, holders: list[int]) -> None:
    with pytest.raises(ValueError, match="secret of the field"):
        split(secret, threshold, holders)
