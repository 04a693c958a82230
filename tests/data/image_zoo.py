"""A zoo of odd image files made on the spot: what each is called, its bytes, and what becomes of it."""

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

READ, SKIPPED, REMARKED = "read", "skipped", "remarked"
Animal = tuple[str, bytes, str]
SIDE = 24


def picture(mode: str = "RGB", width: int = SIDE, height: int = SIDE) -> Image.Image:
    """A bright bar in the upper left corner on a dark gradient, so that every turn and flip shows."""
    grid = np.add.outer(np.arange(height), np.arange(width))
    grey = (grid * 90 / max(grid.max(), 1)).astype(np.uint8)
    grey[: height // 3, : width // 2] = 250
    return Image.fromarray(grey).convert("RGB").convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header claims a size, with a few bytes of content."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def jpeg_of_scans(width: int, height: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again, each time going over all pixels."""
    whole = saved(picture("L", width, height), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * scans + whole[-2:]


def webp_claiming(side: int) -> bytes:
    """A WebP whose extended header claims a canvas."""
    header = bytes(4) + (side - 1).to_bytes(3, "little") * 2
    body = b"WEBPVP8X" + struct.pack("<I", len(header)) + header
    return b"RIFF" + struct.pack("<I", len(body)) + body


def turned(orientation: int, kind: str = "JPEG", **options: Any) -> bytes:
    """A picture whose EXIF note says how the camera was held."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(picture(), kind, exif=exif, **options)


def grey16(top: int) -> Image.Image:
    """16-bit grey whose brightest pixel is ``top``."""
    values = np.linspace(0, top, SIDE * SIDE).round().astype(np.uint16).reshape(SIDE, SIDE)
    return Image.fromarray(values)


def good() -> Iterator[Animal]:
    """Odd, but images."""
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = grey16(65_535) if mode == "I;16" else picture(mode)
        yield f"png-{mode.replace(';', '')}.png", saved(image, "PNG"), READ
    for mode in ("L", "RGB", "CMYK"):
        yield f"jpeg-{mode}.jpg", saved(picture(mode), "JPEG"), READ
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        yield f"bmp-{mode}.bmp", saved(picture(mode), "BMP"), READ
    for mode in ("RGB", "RGBA"):
        yield f"webp-{mode}.webp", saved(picture(mode), "WEBP"), READ
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F", "I;16"):
        image = grey16(4095) if mode == "I;16" else picture("L").convert(mode) if mode in "IF" else picture(mode)
        yield f"tiff-{mode.replace(';', '')}.tif", saved(image, "TIFF"), READ
    for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        yield f"tiff-{name}.tiff", saved(picture(), "TIFF", compression=name), READ
    yield "webp-lossless.webp", saved(picture(), "WEBP", lossless=True), READ
    yield "jpeg-progressive.jpg", saved(picture(), "JPEG", progressive=True), READ
    yield "jpeg-many-scans.jpg", jpeg_of_scans(SIDE, SIDE, 50), READ
    yield "jpeg-turned.jpg", turned(6), READ
    yield "one-pixel.png", saved(picture("RGB", 1, 1), "PNG"), READ
    yield "thread.png", saved(picture("L", 3000, 1), "PNG"), READ
    yield "tower.png", saved(picture("L", 2, 900), "PNG"), READ
    yield "png-called.jpg", saved(picture(), "PNG"), READ
    yield "no-extension", saved(picture(), "PNG"), READ
    yield "=SUM(A1).png", saved(picture(), "PNG"), READ
    yield "näme mit ümläut 画像.png", saved(picture(), "PNG"), READ
    yield "palette-see-through.png", saved(picture("P"), "PNG", transparency=3), READ
    yield "rgb-see-through.png", saved(picture(), "PNG", transparency=(0, 0, 0)), READ
    yield "tail-of-rubbish.png", saved(picture(), "PNG") + bytes(500), READ
    yield "broken-exif.jpg", saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f"), READ


def remarked() -> Iterator[Animal]:
    """Images of which a part is used."""
    frames = [picture(), picture().rotate(90), picture().rotate(180)]
    yield "pages.tif", saved(frames[0], "TIFF", save_all=True, append_images=frames[1:]), REMARKED
    yield "moving.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]), REMARKED
    yield "moving.png", saved(frames[0], "PNG", save_all=True, append_images=frames[1:]), REMARKED


def bad() -> Iterator[Animal]:
    """Not to be read, each for its own reason."""
    png, jpeg = saved(picture(), "PNG"), saved(picture(), "JPEG")
    text = PngImagePlugin.PngInfo()
    text.add_text("k", "A" * 100_000_000, zip=True)
    yield "empty.png", b"", SKIPPED
    yield "text.png", b"this is no picture", SKIPPED
    yield "half.png", png[: len(png) // 2], SKIPPED
    yield "half.tif", saved(picture(), "TIFF")[:600], SKIPPED
    yield "head-only.png", png[:33], SKIPPED
    yield "mark-only.png", png[:8], SKIPPED
    yield "mark-only.jpg", jpeg[:4], SKIPPED
    yield "head-only.jpg", jpeg[:160], SKIPPED
    yield "head-only.webp", saved(picture(), "WEBP")[:20], SKIPPED
    yield "head-only.bmp", saved(picture(), "BMP")[:30], SKIPPED
    yield "moving.gif", saved(picture("P"), "GIF"), SKIPPED
    yield "gif-called.png", saved(picture("P"), "GIF"), SKIPPED
    yield "drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", SKIPPED
    yield "page.html", b"<!doctype html><script>alert(1)</script>", SKIPPED
    yield "program.eps", saved(picture(), "EPS"), SKIPPED
    yield "pnm.ppm", saved(picture(), "PPM"), SKIPPED
    yield "icon.ico", saved(picture(), "ICO"), SKIPPED
    yield "jpeg2000.jp2", saved(picture(), "JPEG2000"), SKIPPED
    yield "database.db", b"\xd0\xcf\x11\xe0" + bytes(500), SKIPPED
    yield "settings.bin", b"\0\0\0\1Bud1" + bytes(500), SKIPPED
    yield "apple-double.png", b"\0\5\x16\7" + bytes(500), SKIPPED
    yield "bomb-30000.png", png_claiming(30_000, 30_000), SKIPPED
    yield "bomb-9000.png", png_claiming(9_000, 9_000), SKIPPED
    yield "bomb-wide.png", png_claiming(2**31 - 1, 1), SKIPPED
    yield "bomb-zero.png", png_claiming(0, 10), SKIPPED
    yield "bomb-scans.jpg", jpeg_of_scans(2_000, 2_000, 5_000), SKIPPED
    yield "bomb-text.png", saved(picture(), "PNG", pnginfo=text), SKIPPED
    yield "bomb.webp", webp_claiming(16_384), SKIPPED
    yield "bomb.bmp", b"BM" + bytes(8) + struct.pack("<IIiiHHI", 54, 40, 30_000, 30_000, 1, 24, 0) + bytes(20), SKIPPED
    yield (
        "stack.tif",
        saved(picture("1", 8, 8), "TIFF", save_all=True, append_images=[picture("1", 8, 8)] * 80),
        SKIPPED,
    )
    yield "not-a-number.tif", saved(Image.fromarray(np.full((9, 9), np.nan, np.float32)), "TIFF"), SKIPPED


@functools.cache
def zoo() -> tuple[Animal, ...]:
    """All of them."""
    return (*good(), *remarked(), *bad())


INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFF)


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes, every third near the header; checksums are often put right, so that damage gets deeper."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        at = int(rng.integers(0, min(len(data), 64) if rng.random() < 0.3 else len(data)))
        length = int(rng.integers(1, 33))
        match int(rng.integers(0, 7)):
            case 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                data[at] = INTERESTING[int(rng.integers(0, len(INTERESTING)))]
            case 2:
                data[at : at + 4] = rng.bytes(4)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = rng.bytes(length)
            case 5:
                data[at:at] = data[at : at + length] * 3
            case _:
                data = data[: max(at, 12)]
    return with_checksums(bytes(data)) if rng.random() < 0.7 else bytes(data)


def with_checksums(content: bytes) -> bytes:
    """A PNG whose chunks have the checksums that belong to them; anything else as it is."""
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        return content
    data, at = bytearray(content), 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        end = at + 8 + length
        if end + 4 > len(data):
            break
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(data)


def mutants(count: int, seed: int = 0) -> Iterator[bytes]:
    """As many damaged files, of all kinds in turn."""
    rng = np.random.default_rng(seed)
    originals = [content for _, content, _ in (*good(), *remarked())]
    for number in range(count):
        yield mutate(originals[number % len(originals)], rng)
