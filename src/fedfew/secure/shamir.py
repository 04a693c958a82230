"""Shamir's secret sharing over a prime field (A. Shamir: How to Share a Secret. CACM 1979).

    f(x) = secret + a_1 x + … + a_{t−1} x^{t−1}  mod p,  a_i uniform;   share of site i: f(i + 1)

Any t shares determine f(0); fewer say nothing about it.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**521 - 1
"""A Mersenne prime: secrets of 32 bytes fit, and every share takes ``SHARE`` bytes."""
SHARE = 66


def split(secret: int, threshold: int, holders: Sequence[int], prime: int = PRIME) -> dict[int, int]:
    """A share for each holder (numbers from 0); any ``threshold`` of them give the secret back."""
    if not 0 <= secret < prime or not 1 <= threshold <= len(set(holders)) == len(holders):
        raise ValueError("a secret of the field, and at least as many holders as the threshold")
    coefficients = [secret, *(secrets.randbelow(prime) for _ in range(threshold - 1))]
    return {holder: evaluate(coefficients, holder + 1, prime) for holder in holders}


def evaluate(coefficients: Sequence[int], x: int, prime: int) -> int:
    """f(x), by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % prime
    return value


@lru_cache(64)
def weights(holders: tuple[int, ...] | range, prime: int = PRIME) -> dict[int, int]:
    """Lagrange's weights at 0: the secret is Σ weight · share over these holders."""
    at_zero = {}
    for i in holders:
        over, under = 1, 1
        for j in holders:
            if i != j:
                over, under = over * (j + 1) % prime, under * (j - i) % prime
        at_zero[i] = over * pow(under, -1, prime) % prime
    return at_zero


def join(shares: Mapping[int, int], by: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret, from the shares of the holders whose weights these are."""
    return sum(by[holder] * shares[holder] for holder in by) % prime
