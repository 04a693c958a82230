"""Frames on the Unix socket between Flower's short-lived ClientApp and the warm site: a JSON head and raw arrays.

Standard library only: Flower imports it for every message.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

Arrays = Mapping[str, bytes | memoryview]
"""Raw bytes by name, e.g. of a vector; the head says what they mean."""

_START = struct.Struct(">4sIQ")
_MAGIC = b"FFW1"
HEAD_LIMIT = 64 << 20
LIMIT = 4 << 30
"""Most bytes of arrays in one frame, unless the receiver sets another limit."""


class FrameError(Exception):
    """The connection is closed, or what arrived is not a frame, or is too large."""


def send(end: socket.socket, head: Mapping[str, Any], arrays: Arrays) -> None:
    """Send one frame."""
    send_pieces(end, encode(head, arrays))


def encode(head: Mapping[str, Any], arrays: Arrays) -> list[bytes | memoryview]:
    """The bytes of a frame: the head, then each array."""
    views = [memoryview(array).cast("B") if len(array) else memoryview(b"") for array in arrays.values()]
    sizes = [[name, len(view)] for name, view in zip(arrays, views, strict=True)]
    text = json.dumps({"head": head, "arrays": sizes}).encode()
    return [_START.pack(_MAGIC, len(text), sum(size for _, size in sizes)) + text, *views]


def send_pieces(end: socket.socket, pieces: Sequence[bytes | memoryview]) -> None:
    """Send an encoded frame."""
    try:
        for piece in pieces:
            end.sendall(piece)
    except OSError as error:
        raise FrameError(f"the connection is closed ({error})") from error


def receive(end: socket.socket, limit: int = LIMIT) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """The next frame; one that claims more than ``limit`` bytes is refused before anything is allocated for it."""
    magic, head_size, size = _START.unpack(_exactly(end, _START.size))
    if magic != _MAGIC:
        raise FrameError("the data received are not a frame")
    if head_size > HEAD_LIMIT or size > limit:
        raise FrameError(f"a frame of {head_size + size:,} bytes is over the limit of {limit:,}")
    try:
        outer = json.loads(_exactly(end, head_size))
        head, sizes = outer["head"], [(str(name), int(length)) for name, length in outer["arrays"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"the head of a frame cannot be read ({error})") from None
    if not isinstance(head, dict) or any(length < 0 for _, length in sizes) or sum(n for _, n in sizes) != size:
        raise FrameError("the arrays of a frame do not add up")
    return head, {name: memoryview(_exactly(end, length)) for name, length in sizes}


def _exactly(end: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        try:
            count = end.recv_into(view[done:])
        except OSError as error:
            raise FrameError(f"the connection is closed ({error})") from error
        if not count:
            raise FrameError("the connection is closed")
        done += count
    return content


def connect(path: str, timeout: float | None = None) -> socket.socket:
    """Connect to a socket; only the same user can open it."""
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(timeout)
    try:
        end.connect(path)
    except OSError as error:
        end.close()
        raise FrameError(f"nothing listens at {path!r} ({error})") from error
    return end
