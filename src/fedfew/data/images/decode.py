"""Decodes one image file of any kind to uint8 pixels of a given size; limits are checked before decoding."""

import io
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedfew.core.errors import FedfewError
from fedfew.data.dataset import Unreadable
from fedfew.data.images.grey import FRAME_CAP, decode_dicom, is_dicom, to_eight_bits

Pixels8 = NDArray[np.uint8]

FILE_CAP = 64 * 2**20
"""Bytes of the largest file that is read."""
PIXEL_CAPS = {"JPEG": 50_000_000, "PNG": 25_000_000, "BMP": 25_000_000, "TIFF": 15_000_000, "WEBP": 12_000_000}
"""Pixels of the largest image: with these caps ``fedfew check`` stays below 512 MB with torch. JPEG is decoded at
an eighth to a half of its size where that is enough, so images of today's cameras fit."""
PROGRESSIVE_CAP = 20_000_000
"""Progressive JPEG: its coefficients are in memory for the whole image, whatever the target size."""
SCAN_CAP = 100
"""Scans of the longest progressive JPEG: each goes over all pixels, and 75 bytes are enough for one. The other formats'
time is bounded by the caps above (half a minute for the worst file that fits), so decoders need no timeout."""
SIZE_CAP = 1024
"""The largest side to which an image is resized."""

SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "PNG"),
    (b"\xff\xd8\xff", 0, "JPEG"),
    (b"BM", 0, "BMP"),
    (b"WEBP", 8, "WEBP"),
    (b"II*\0", 0, "TIFF"),
    (b"MM\0*", 0, "TIFF"),
    (b"II+\0", 0, "TIFF"),
    (b"MM\0+", 0, "TIFF"),
)
OTHER_FORMATS: tuple[tuple[bytes, int, str], ...] = (
    (b"GIF8", 0, "a GIF file"),
    (b"%PDF", 0, "a PDF file"),
    (b"PK\x03\x04", 0, "a ZIP archive"),
    (b"\x1f\x8b", 0, "a gzip archive"),
    (b"ftyp", 4, "a HEIC, AVIF or video file"),
    (b"8BPS", 0, "a Photoshop file"),
    (b"<svg", 0, "an SVG drawing"),
    (b"<", 0, "an XML or HTML file"),
    (b"\x93NUMPY", 0, "a NumPy array"),
    (b"\x89HDF", 0, "an HDF5 file"),
    (b"\0\0\x01\0", 0, "an icon"),
    (b"\0\0\0\x0cjP  ", 0, "a JPEG 2000 file"),
    (b"\xff\x0a", 0, "a JPEG XL file"),
    (b"P4", 0, "a PNM file"), (b"P5", 0, "a PNM file"), (b"P6", 0, "a PNM file"),
)  # fmt: skip
KNOWN = "PNG, JPEG, BMP, WebP and TIFF are read"
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION = 0x0112


def read_file(path: Path) -> bytes:
    """The bytes of a regular file within the cap; pipes and devices are never opened."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable("is not a regular file")
        if about.st_size > FILE_CAP:
            raise Unreadable(f"has {about.st_size / 2**20:,.0f} MB, the limit is {FILE_CAP // 2**20}")
        with path.open("rb") as file:
            return file.read(FILE_CAP)
    except OSError as error:
        raise Unreadable(f"cannot be opened: {error.strerror or error}") from None


def decode(content: bytes, size: int, channels: int) -> tuple[Pixels8, str]:
    """The image as channels×size×size, and a remark on unused parts (usually empty).

    The shorter side is resized to ``size`` and the centre cropped; an image of that size keeps its pixels.
    """
    with _guarded():
        if is_dicom(content):
            grey, remark = decode_dicom(content)
            return _planes(_fit(Image.fromarray(grey), size), channels), remark
        with _open(content) as image:
            frames = _frames(image)
            image.draft("L" if channels == 1 else None, (2 * size, 2 * size))
            image.load()
            turn = _turn(image)
            small = _fit(_eight_bits(image), size)
    if turn is not None:
        small = small.transpose(turn)
    return _planes(small, channels), f"has {frames} frames, the first is used" if frames > 1 else ""


def probe(content: bytes) -> tuple[int, int, bool]:
    """Width, height and whether there is color, from the header."""
    with _guarded():
        if is_dicom(content):
            pixels, _ = decode_dicom(content)
            return pixels.shape[1], pixels.shape[0], pixels.ndim == 3
        with _open(content) as image:
            grey = image.mode in ("1", "L", "LA", "La", "I", "F") or image.mode.startswith("I;")
            return *image.size, not grey


@contextmanager
def _guarded() -> Iterator[None]:
    """Unreadable for a damaged file, which can make a decoder raise nearly anything; only this file is lost."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about invalid tags; serious faults raise an error
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Unreadable, FedfewError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable("claims more pixels than the limit") from None
    except UnidentifiedImageError:
        raise Unreadable("is damaged (its header is invalid)") from None
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise Unreadable(f"is damaged ({text if len(text) <= 100 else f'{text[:99]}…'})") from None


def sniff(content: bytes) -> str:
    """The format by the file's first bytes; other formats are refused with their name."""
    if not content:
        raise Unreadable("is empty")
    for signature, offset, name in SIGNATURES:
        if content[offset : offset + len(signature)] == signature:
            return name
    for signature, offset, name in OTHER_FORMATS:
        if content[offset : offset + len(signature)] == signature:
            raise Unreadable(f"is {name}; {KNOWN}")
    raise Unreadable(f"is not an image of a known format; {KNOWN}")


def _open(content: bytes) -> Image.Image:
    """Read the header only, and check the number of pixels."""
    kind = sniff(content)
    if kind == "WEBP" and (claimed := _webp_size(content)):
        _refuse_bomb(kind, *claimed)  # its decoder takes memory for the whole canvas when it is opened
    scans = content.count(b"\xff\xda") if kind == "JPEG" else 0  # including a thumbnail's
    if scans > SCAN_CAP:
        raise Unreadable(f"has {scans:,} scans, the limit is {SCAN_CAP}")
    image = Image.open(io.BytesIO(content), formats=(kind,))
    _refuse_bomb("progressive" if scans > 2 else kind, *image.size)
    return image


def _refuse_bomb(kind: str, width: int, height: int) -> None:
    cap = PIXEL_CAPS.get(kind, PROGRESSIVE_CAP)
    if width * height > cap:
        raise Unreadable(f"claims {width:,}×{height:,} pixels, the limit is {cap // 10**6} million")


def _webp_size(content: bytes) -> tuple[int, int] | None:
    """The canvas in a WebP header of one of its three kinds."""
    kind, number = content[12:16], int.from_bytes
    if kind == b"VP8X" and len(content) >= 30:
        return number(content[24:27], "little") + 1, number(content[27:30], "little") + 1
    if kind == b"VP8L" and len(content) >= 25:
        bits = number(content[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(content) >= 30:
        return number(content[26:28], "little") & 0x3FFF, number(content[28:30], "little") & 0x3FFF
    return None


def _frames(image: Image.Image) -> int:
    """The number of images in the file, counted up to the cap."""
    if image.format != "TIFF":
        count = int(getattr(image, "n_frames", 1))
    else:  # a list of pages, each found by reading the one before
        count = 1
        try:
            while count <= FRAME_CAP:
                image.seek(count)
                count += 1
        except Exception:  # the end of the list, or damage after the first page
            pass
        image.seek(0)
    if count > FRAME_CAP:
        raise Unreadable(f"has more than {FRAME_CAP} frames")
    return count


def _turn(image: Image.Image) -> Any:
    """The camera's orientation; TIFF's own tag was already applied on loading."""
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # a damaged orientation tag is no reason to lose the image
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """The same image as L, LA, RGB or RGBA."""
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return Image.fromarray(to_eight_bits(np.asarray(image)))
    if image.mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if image.mode in ("LA", "RGBA"):
        return image
    if image.mode == "1":
        return image.convert("L")
    see_through = "transparency" in image.info or image.mode in ("PA", "RGBa", "La")
    return image.convert("RGBA" if see_through else "RGB")


def _fit(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to ``size`` and crop the centre, in one step; transparent parts become white."""
    width, height = image.size
    if (width, height) != (size, size):
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box, reducing_gap=3.0)
    if image.mode in ("LA", "RGBA"):
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert(image.mode[:-1])
    return image


def _planes(image: Image.Image, channels: int) -> Pixels8:
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    return pixels[None].copy() if channels == 1 else pixels.transpose(2, 0, 1).copy()
