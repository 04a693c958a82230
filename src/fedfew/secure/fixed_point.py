"""Real numbers as whole numbers modulo 2⁶⁴, so that masks cancel exactly and sums cannot overflow.

    word = round(x / step) mod 2⁶⁴,  step ≥ bound · sites / 2⁶²

|x| ≤ bound at every site, so |Σ round(x / step)| ≤ 2⁶² + sites/2 < 2⁶³: the sum is read back without ambiguity, and is
exact to sites · step/2.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Numbers modulo 2⁶⁴."""
ROOM = 2.0**62


def finest(bound: float, sites: int) -> float:
    """The smallest power of two that leaves room for the sum of ``sites`` values up to ``bound``."""
    return float(2.0 ** np.ceil(np.log2(bound * sites / ROOM)))


def encoded(values: NDArray[np.float64], step: float, bound: float, *, cut: bool = False) -> Words:
    """Whole steps, of values that are limited to ± ``bound``; rounded, or ``cut`` towards zero."""
    if not np.isfinite(values).all():
        raise ArithmeticError("a value is not finite")
    steps = np.clip(values, -bound, bound) / step
    return (np.trunc(steps) if cut else np.rint(steps)).astype(np.int64).astype(np.uint64)


def decoded(words: Words, step: float) -> NDArray[np.float64]:
    """The sum of encoded values."""
    return words.astype(np.int64).astype(np.float64) * step
