"""DICOM images to 8-bit pixels as a viewer would show them; needs the extra ``data``."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.core.extras import import_optional
from fedfew.data.dataset import Unreadable
from fedfew.data.images.eight_bits import stretched

DEFLATED = b"1.2.840.10008.1.2.1.99"


def is_dicom(content: bytes) -> bool:
    """Whether the DICOM mark follows the preamble."""
    return content[128:132] == b"DICM"


def decode_dicom(content: bytes, pixel_cap: int, frame_cap: int) -> tuple[NDArray[np.uint8], str]:
    """The first frame, H×W or H×W×3, with the file's own rescaling and window applied, and a remark on other frames."""
    pydicom = import_optional("pydicom", "fedfew[data]", "DICOM images")
    try:
        if DEFLATED in content:  # it would be decompressed completely before anything could be checked
            raise Unreadable("is a deflated DICOM file, which may hide any amount of data")
        header = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True)
        frames = int(header.get("NumberOfFrames") or 1)
        rows, columns, samples = int(header.Rows), int(header.Columns), int(header.get("SamplesPerPixel") or 1)
        if frames > frame_cap:
            raise Unreadable(f"has {frames} frames, the limit is {frame_cap}")
        if rows * columns * frames > pixel_cap:
            raise Unreadable(f"claims {columns:,}×{rows:,}×{frames} pixels, the limit is {pixel_cap // 10**6} million")
        if samples not in (1, 3):
            raise Unreadable(f"has {samples} values a pixel")
        return _picture(pydicom.dcmread(io.BytesIO(content)), samples), (
            f"has {frames} frames, the first is used" if frames > 1 else ""
        )
    except Unreadable:
        raise
    except Exception as error:  # as with other formats: a damaged file can raise nearly anything
        text = " ".join(str(error).split())[:100] or type(error).__name__
        raise Unreadable(f"is a DICOM file that cannot be decoded ({text})") from None


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
