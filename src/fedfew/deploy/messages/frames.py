"""Frames on the Unix socket between Flower's short-lived ClientApp and the warm site: a head's text and raw arrays.

Standard library only: Flower imports it for every message.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

Arrays = Mapping[str, bytes | memoryview]
"""Raw bytes by name, e.g. of a vector; the head says what they mean."""

_START = struct.Struct(">4sI")
_MAGIC = b"FFW2"
_INDEX_LIMIT = 8 << 20
LIMIT = 4 << 30
"""Most bytes of a frame, unless the receiver sets another limit."""


def hash_of(head: Mapping[str, Any], arrays: Arrays) -> str:
    """A hash of what a message asks for."""
    digest = sha256(json.dumps(head, sort_keys=True).encode())
    for name, array in arrays.items():
        digest.update(name.encode())
        digest.update(array)
    return digest.hexdigest()


class FrameError(Exception):
    """The connection is closed, or what arrived is not a frame, or is too large."""


def encode(head: str, arrays: Arrays) -> list[bytes | memoryview]:
    """The bytes of a frame: an index of lengths with the head, then each array."""
    text = head.encode()
    index = json.dumps([["head", len(text)], *([name, len(array)] for name, array in arrays.items())]).encode()
    return [_START.pack(_MAGIC, len(index)) + index + text, *arrays.values()]


def send(end: socket.socket, frame: Sequence[bytes | memoryview]) -> None:
    """Send an encoded frame."""
    try:
        for piece in frame:
            end.sendall(piece)
    except OSError as error:
        raise FrameError(f"the connection is closed ({error})") from error


def receive(end: socket.socket, limit: int = LIMIT) -> tuple[str, dict[str, bytes]]:
    """Head and arrays of the next frame; one that claims more than ``limit`` bytes is refused before it is read."""
    with end.makefile("rb") as file:

        def read(size: int) -> bytes:
            content = file.read(size)
            if len(content) < size:
                raise FrameError("the connection is closed")
            return content

        try:
            magic, size = _START.unpack(read(_START.size))
            if magic != _MAGIC or size > _INDEX_LIMIT:
                raise FrameError("the data received are not a frame")
            sizes = [(str(name), int(length)) for name, length in json.loads(read(size))]
            if not sizes or min(length for _, length in sizes) < 0 or sum(length for _, length in sizes) > limit:
                raise FrameError(f"a frame is empty or over the limit of {limit:,} bytes")
            return read(sizes[0][1]).decode(), {name: read(length) for name, length in sizes[1:]}
        except OSError as error:
            raise FrameError(f"the connection is closed ({error})") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise FrameError(f"a frame cannot be read ({error})") from None


def connect(path: str) -> socket.socket:
    """Connect to a socket; only the same user can open it."""
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
    except OSError as error:
        end.close()
        raise FrameError(f"nothing listens at {path!r} ({error})") from error
    return end
