"""The front's connections to the SuperLink: kept open, one request at a time on each.

A general HTTP client took more than half of the front's time for a poll; the front needs only this part of one. An
answer is read as a whole, so that a site that reads slowly holds no connection to the SuperLink.
"""

import asyncio
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import IO

import h11

MOST, KEPT = 64, 32
"""Most connections, and how many of them stay open without a request."""
IDLE_SECONDS = 4.0
"""How long a connection is used again; the SuperLink closes it after five seconds."""
PATIENCE = 300.0
"""Seconds for an answer, from the wait for a free connection to its last byte."""
PIECE = 1 << 16
IN_MEMORY = 1 << 18
"""Bytes of a body that stay in memory; the rest is spooled to disk."""
Headers = list[tuple[bytes, bytes]]


class AwayError(Exception):
    """The SuperLink does not answer, or the connection to it broke."""


@dataclass
class _Line:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    used: float = field(default_factory=monotonic)

    def usable(self) -> bool:
        """Whether the next request can be sent: nothing has arrived that no request asked for."""
        silent = not self.http.trailing_data[0] and not self.reader._buffer  # type: ignore[attr-defined]
        return silent and not self.reader.at_eof() and monotonic() - self.used < IDLE_SECONDS

    async def send(self, target: str, headers: Headers, body: IO[bytes]) -> None:
        head = self.http.send(h11.Request(method="POST", target=target, headers=headers)) or b""
        while piece := body.read(PIECE):
            self.writer.write(head + (self.http.send(h11.Data(data=piece)) or b""))
            head = b""
            await self.writer.drain()
        self.writer.write(head + (self.http.send(h11.EndOfMessage()) or b""))

    async def receive(self, body: IO[bytes]) -> h11.Response:
        """The head of the answer; its content is written to ``body``."""
        head: h11.Response | None = None
        while not isinstance(event := self.http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.reader.read(PIECE))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body.write(event.data)
            elif not isinstance(event, h11.InformationalResponse):
                raise AwayError
        assert head is not None
        return head


@dataclass(frozen=True)
class UpstreamAnswer:
    """The SuperLink's answer."""

    status: int
    headers: Headers
    body: IO[bytes]
    """At its beginning; to be closed."""
    size: int


class Upstream:
    """The SuperLink on this machine."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port, self._context = port, context
        self._idle: list[_Line] = []
        self._free = asyncio.Semaphore(MOST)

    async def ask(self, target: str, headers: Iterable[tuple[bytes, bytes]], body: IO[bytes]) -> UpstreamAnswer:
        """POST a body; raises AwayError."""
        content: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - part of the answer
        try:
            async with asyncio.timeout(PATIENCE), self._free:
                head = await self._exchange(target, [(b"host", b"127.0.0.1"), *headers], body, content)
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            content.close()
            raise AwayError from None
        except BaseException:
            content.close()
            raise
        size = content.tell()
        content.seek(0)
        return UpstreamAnswer(head.status_code, list(head.headers), content, size)

    async def _exchange(self, target: str, headers: Headers, body: IO[bytes], content: IO[bytes]) -> h11.Response:
        line, complete = await self._line(), False
        try:
            await line.send(target, headers, body)
            head = await line.receive(content)
            complete = line.http.our_state is h11.DONE and line.http.their_state is h11.DONE
        finally:
            if complete and len(self._idle) < KEPT:
                line.http.start_next_cycle()
                line.used = monotonic()
                self._idle.append(line)
            else:
                line.writer.transport.abort()
        return head

    async def _line(self) -> _Line:
        """The connection that was used last, or a new one."""
        while self._idle:
            line = self._idle.pop()
            if line.usable():
                return line
            line.writer.transport.abort()
        return _Line(*await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context))
