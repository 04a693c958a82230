"""Gaussian noise that cannot be predicted and leaves no trace in the rounding of floating point.

C. Canonne, G. Kamath, T. Steinke: The Discrete Gaussian for Differential Privacy. NeurIPS 2020 (algorithms 1 to 3),
on whole numbers throughout, for many draws at a time. The random bits are the keystream of ChaCha20 (RFC 8439).

Noise is drawn on a grid of σ/2²⁴, so that in units of the grid its deviation is S = 2²⁴. Why the ε of the Gaussian
mechanism holds: a draw differs from a normal one rounded to the grid by less than 10⁻¹⁶ in total variation (0.02/S² by
the second derivative of the density, and 2⁻⁵⁹ for a few comparisons with rounded thresholds), and rounding what a
private mechanism returned costs nothing. So an answer with d entries has that ε with a δ larger by less than
(1 + e^ε) · d · 10⁻¹⁶: for ten million entries 10⁻⁹.
"""

import secrets
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Numbers modulo 2⁶⁴."""
BITS = 24
S = 1 << BITS
"""Deviation of the noise in units of its grid."""
CHUNK = 1 << 15
"""Draws at a time: the arrays stay in the processor's cache."""


class Keystream:
    """Random 64-bit words from ChaCha20 under a key that is drawn from the system for this object and never stored."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: PLC0415 - of an extra

        self._cipher = Cipher(algorithms.ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> Words:
        """The next words of the stream."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), np.uint64)


def discrete_gaussian(count: int, source: Keystream) -> NDArray[np.int64]:
    """Whole numbers k with probability proportional to exp(−k² / 2S²)."""
    drawn, kept = np.empty(count, np.int64), 0
    while kept < count:
        accepted = _accepted(min(2 * (count - kept) + 64, CHUNK), source)[: count - kept]
        drawn[kept : kept + len(accepted)] = accepted
        kept += len(accepted)
    return drawn


def _accepted(tries: int, source: Keystream) -> NDArray[np.int64]:
    """Discrete Laplace numbers of scale S, each accepted with probability exp(−(|y| − S)² / 2S²)."""
    first = source.words(tries)
    low = first & np.uint64(S - 1)
    kept = _exp_minus(low << np.uint64(64 - BITS), source)  # y mod S
    low, negative = low[kept], (first[kept] >> np.uint64(63)).astype(bool)
    # |y| div S is geometric: it is at least j with probability exp(−j)
    multiples = len(_powers()) - np.searchsorted(_powers(), source.words(len(low)), "right")
    size = low + np.uint64(S) * multiples.astype(np.uint64)
    kept = ~(negative & (size == 0))  # zero has one sign
    size, negative = size[kept], negative[kept]
    distance = np.abs(size.astype(np.int64) - S).astype(np.uint64)
    square = distance * distance  # γ · 2S²
    kept = _exp_minus(square << np.uint64(63 - 2 * BITS), source)  # the fraction of γ
    ones = square >> np.uint64(2 * BITS + 1)  # and its whole part, one by one
    while (more := ones > 0).any():
        kept[more] &= source.words(int(more.sum())) < _powers()[-1]
        ones[more] -= np.uint64(1)
    signed: NDArray[np.int64] = size[kept].astype(np.int64)
    signed[negative[kept]] *= -1
    return signed


def _exp_minus(gamma: Words, source: Keystream) -> NDArray[np.bool_]:
    """True with probability exp(−γ / 2⁶⁴) each: the number of successes of γ, γ/2, γ/3, … before a failure is even."""
    even = np.ones(len(gamma), bool)
    active, k = np.arange(len(gamma)), 1
    while len(active):
        success = source.words(len(active)) < gamma[active]
        if k > 1:
            success &= source.words(len(active)) < np.uint64((1 << 64) // k)
        active = active[success]
        even[active] ^= True
        k += 1
    return even


@cache
def _powers() -> Words:
    """2⁶⁴ e⁻ʲ, rounded down, for j from 44 to 1."""
    with localcontext() as context:
        context.prec = 60
        return np.array([int(Decimal(2**64) * Decimal(-j).exp()) for j in range(44, 0, -1)], np.uint64)
