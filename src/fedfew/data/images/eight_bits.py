"""Grey values of any kind to 8 bits, a slab of rows at a time, so that a large image is not in memory several times."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.dataset import Unreadable

SLAB = 2**20
"""Pixels converted at a time."""


def to_eight_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey values to 8 bits: whole numbers are scaled by the smallest of 8, 10, 12, 14, 16 bits that holds the largest.

    Scanners store 10, 12 or 14 bits in files of 16; a fixed division by 257 would leave such images black. Floats in
    0..1 are taken as they are, and anything else is stretched between its smallest and largest value.
    """
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():  # NaN makes both non-finite, infinity one
        raise Unreadable("holds values that are not numbers")
    if values.dtype.kind in "iu" and low >= 0 and high < 2**16:
        bits = next(bits for bits in (8, 10, 12, 14, 16) if high < 2**bits)
        low, high = 0.0, float(2**bits - 1)
    elif values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return stretched(values, low, high)


def stretched(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """``low`` becomes 0 and ``high`` 255; values outside are clipped."""
    scale = 255 / (high - low) if high > low else 0.0
    grey = np.empty(values.shape, np.uint8)
    rows = max(1, SLAB // max(values[0].size, 1)) if len(values) else 1
    for top in range(0, len(values), rows):
        slab = values[top : top + rows].astype(np.float32)
        grey[top : top + rows] = np.rint((slab - np.float32(low)) * np.float32(scale)).clip(0, 255)
    return grey
