"""Damaged images: real files with bytes flipped, cut, repeated, swapped and inserted, from a seed."""

import zlib
from collections.abc import Iterator

import numpy as np
from tests.data.image_zoo import good, remarked

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
