"""Grey values of more than 8 bits to bytes, as a viewer would show them: DICOM (extra ``data``) and other files."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.core.extras import import_optional
from fedfew.data.dataset import Unreadable

PIXEL_CAP, FRAME_CAP = 15_000_000, 64
"""Pixels and frames of the largest DICOM file."""
DEFLATED = b"1.2.840.10008.1.2.1.99"
SLAB = 2**20
"""Pixels converted at a time, so that a large image is not in memory several times."""


def is_dicom(content: bytes) -> bool:
    """Whether the DICOM mark follows the preamble."""
    return content[128:132] == b"DICM"


def decode_dicom(content: bytes) -> tuple[NDArray[np.uint8], str]:
    """The first frame, H×W or H×W×3, with the file's own rescaling and window applied, and a remark on other frames."""
    pydicom = import_optional("pydicom", "fedfew[data]", "DICOM images")
    if DEFLATED in content:  # it would be decompressed completely before anything could be checked
        raise Unreadable("is a deflated DICOM file, which may hide any amount of data")
    header = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True)
    frames = int(header.get("NumberOfFrames") or 1)
    rows, columns, samples = int(header.Rows), int(header.Columns), int(header.get("SamplesPerPixel") or 1)
    if frames > FRAME_CAP:
        raise Unreadable(f"has {frames} frames, the limit is {FRAME_CAP}")
    if rows * columns * frames > PIXEL_CAP:
        raise Unreadable(f"claims {columns:,}×{rows:,}×{frames} pixels, the limit is {PIXEL_CAP // 10**6} million")
    if samples not in (1, 3):
        raise Unreadable(f"has {samples} values a pixel")
    remark = f"has {frames} frames, the first is used" if frames > 1 else ""
    return _picture(pydicom.dcmread(io.BytesIO(content)), samples), remark


def _picture(file: Any, samples: int) -> NDArray[np.uint8]:
    pixels: Any = import_optional("pydicom.pixels", "fedfew[data]", "DICOM images")

    values: NDArray[Any] = pixels.pixel_array(file, index=0)
    if samples == 3:
        return np.ascontiguousarray(values[..., :3]).astype(np.uint8)
    rescaled: NDArray[np.float32] = pixels.apply_modality_lut(values, file).astype(np.float32)
    low, high = _window(file) or (float(rescaled.min()), float(rescaled.max()))
    grey = stretched(rescaled, low, high)
    return 255 - grey if file.get("PhotometricInterpretation") == "MONOCHROME1" else grey


def _window(file: Any) -> tuple[float, float] | None:
    """The values that are black and white in the file's first window (DICOM PS3.3 C.11.2.1.2)."""
    if "WindowCenter" not in file or "WindowWidth" not in file:
        return None
    center, width = (np.atleast_1d(np.asarray(file[key].value, float))[0] for key in ("WindowCenter", "WindowWidth"))
    middle, half = float(center) - 0.5, (float(width) - 1) / 2
    return (middle - half, middle + half) if half > 0 else None


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
