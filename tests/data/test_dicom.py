"""DICOM files: windows, inverted grey, frames, and what is refused."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.data.digit_folders import write_digits

from fedfew.core.errors import FedfewError
from fedfew.data.dataset import Unreadable
from fedfew.data.images.decode import decode, probe
from fedfew.data.images.folders import scan

pydicom = pytest.importorskip("pydicom")


def ct_slice(pixels: NDArray[Any], syntax: str = "1.2.840.10008.1.2.1", **tags: Any) -> bytes:
    """A small CT slice, or a stack of them."""
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    file.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    file.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    file.SOPClassUID, file.SOPInstanceUID = pydicom.uid.CTImageStorage, "1.2.3"
    frames = pixels if pixels.ndim == 3 else pixels[None]
    file.Rows, file.Columns = frames.shape[1:]
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    bits = 8 * pixels.dtype.itemsize
    file.BitsAllocated, file.BitsStored, file.HighBit = bits, bits, bits - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    if len(frames) > 1:
        file.NumberOfFrames = len(frames)
    file.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(file, name, value)
    out = io.BytesIO()
    file.save_as(out, enforce_file_format=True)
    return out.getvalue()


def values() -> NDArray[np.uint16]:
    return np.arange(256, dtype=np.uint16).reshape(16, 16) * 16


def test_values_are_stretched_or_seen_through_the_window() -> None:
    np.testing.assert_array_equal(decode(ct_slice(values()), 16, 1)[0][0], np.arange(256).reshape(16, 16))
    # rescaled to HU = v − 1024; a window of 401 around 40.5 shows −160 as black and 240 as white
    windowed, _ = decode(
        ct_slice(values(), RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=40.5, WindowWidth=401), 16, 1
    )
    expected = np.rint((values().astype(float) - 1024 + 160) * 255 / 400).clip(0, 255)
    np.testing.assert_array_equal(windowed[0], expected)


def test_inverted_grey_and_frames() -> None:
    inverted, _ = decode(ct_slice(values(), PhotometricInterpretation="MONOCHROME1"), 16, 1)
    np.testing.assert_array_equal(inverted[0], 255 - np.arange(256).reshape(16, 16))
    pixels, remark = decode(ct_slice(np.stack([values(), 2 * values()])), 16, 3)
    assert remark == "has 2 frames, the first is used"
    np.testing.assert_array_equal(pixels, np.stack([np.arange(256).reshape(16, 16)] * 3))
    assert probe(ct_slice(values())) == (16, 16, False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ct_slice(values(), Rows=60_000, Columns=60_000), "claims"),
        (ct_slice(values(), NumberOfFrames=500), "500 frames"),
        (ct_slice(values(), SamplesPerPixel=2), "2 values a pixel"),
        (ct_slice(values())[:300], "is damaged"),
        (ct_slice(values()).replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99"), "deflated"),
    ],
)
def test_what_cannot_be_used_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        decode(content, 16, 1)


def test_a_folder_of_scans_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    root = write_digits(tmp_path / "digits", server=20, clients=20, test=0)
    (root / "clients" / "hospital-0" / "scan.dcm").write_bytes(ct_slice(values()))
    assert len(scan(root).read(16, 1).rows("clients")) == 21
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "other"))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(FedfewError, match=r"E112.*\.\[data\]"):
        scan(root).read(16, 1)
