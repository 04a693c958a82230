"""Frames on a Unix socket between Flower's short-lived processes and our warm ones: a JSON head and raw parts.

Imported by the ClientApp and the ServerApp, which Flower starts often: standard library only.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

Parts = Mapping[str, bytes | memoryview]
"""Raw content by name, e.g. the bytes of a vector; the head says what they mean."""

_START = struct.Struct(">4sIQ")
_MAGIC = b"FFW1"
HEAD_LIMIT = 64 << 20
LIMIT = 4 << 30
"""Most bytes of parts in one frame, unless the receiver sets another limit."""


class FrameError(Exception):
    """The connection is closed, or what arrived is not a frame, or is too large."""


def send(end: socket.socket, head: Mapping[str, Any], parts: Parts) -> None:
    """Send one frame."""
    send_pieces(end, encode(head, parts))


def encode(head: Mapping[str, Any], parts: Parts) -> list[bytes | memoryview]:
    """The bytes of a frame: the head, then each part."""
    views = [memoryview(part).cast("B") if len(part) else memoryview(b"") for part in parts.values()]
    sizes = [[name, len(view)] for name, view in zip(parts, views, strict=True)]
    text = json.dumps({"head": head, "parts": sizes}).encode()
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
        head, sizes = outer["head"], [(str(name), int(length)) for name, length in outer["parts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"the head of a frame cannot be read ({error})") from None
    if not isinstance(head, dict) or any(length < 0 for _, length in sizes) or sum(n for _, n in sizes) != size:
        raise FrameError("the parts of a frame do not add up")
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


def connect(variable: str, timeout: float | None = None) -> socket.socket:
    """Connect to the socket whose path is in an environment variable; only the same user can open it."""
    path = os.environ.get(variable, "")
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(timeout)
    try:
        end.connect(path)
    except OSError as error:
        end.close()
        raise FrameError(f"nothing listens at {variable}={path!r} ({error})") from error
    return end
