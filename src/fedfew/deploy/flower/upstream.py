"""The front's connections to the SuperLink: kept open, one request at a time on each.

A general HTTP client took more than half of the front's time for a poll; the front needs only this part of one.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import IO

import h11

MOST, KEPT = 64, 32
"""Most connections, and how many of them stay open without a request."""
PATIENCE = 300.0
"""Seconds that the SuperLink has for an answer, and for each piece of it."""
PIECE = 1 << 16
Headers = list[tuple[bytes, bytes]]


class AwayError(Exception):
    """The SuperLink does not answer, or the connection to it broke."""


@dataclass
class _Line:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection

    def usable(self) -> bool:
        """Whether the next request can be sent; the SuperLink closes connections that are idle for some seconds."""
        return self.http.our_state is h11.IDLE and not self.reader.at_eof() and not self.writer.is_closing()

    async def send(self, target: str, headers: Headers, body: IO[bytes]) -> None:
        head = self.http.send(h11.Request(method="POST", target=target, headers=headers)) or b""
        while piece := body.read(PIECE):
            self.writer.write(head + (self.http.send(h11.Data(data=piece)) or b""))
            head = b""
            await self.writer.drain()
        self.writer.write(head + (self.http.send(h11.EndOfMessage()) or b""))

    async def event(self) -> object:
        try:
            async with asyncio.timeout(PATIENCE):
                while (event := self.http.next_event()) is h11.NEED_DATA:
                    self.http.receive_data(await self.reader.read(PIECE))
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            raise AwayError from None
        if isinstance(event, h11.ConnectionClosed):
            raise AwayError
        return event


@dataclass(frozen=True)
class Answer:
    """The SuperLink's answer; its content is still to be read."""

    status: int
    headers: Headers
    _line: _Line

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its content as it arrives."""
        while not isinstance(event := await self._line.event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)


class SuperLink:
    """The SuperLink on this machine."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port, self._context = port, context
        self._idle: list[_Line] = []
        self._free = asyncio.Semaphore(MOST)

    @contextlib.asynccontextmanager
    async def ask(self, target: str, headers: Iterable[tuple[bytes, bytes]], body: IO[bytes]) -> AsyncIterator[Answer]:
        """POST a body and give the answer; raises AwayError."""
        async with self._free:
            line = await self._line()
            try:
                head = await self._head(line, target, [(b"host", b"127.0.0.1"), *headers], body)
                yield Answer(head.status_code, list(head.headers), line)
                if line.http.our_state is h11.DONE and line.http.their_state is h11.DONE and len(self._idle) < KEPT:
                    line.http.start_next_cycle()
                    self._idle.append(line)
            finally:
                if line not in self._idle:
                    line.writer.transport.abort()

    async def _line(self) -> _Line:
        """The connection that was used last, or a new one."""
        while self._idle:
            line = self._idle.pop()
            if line.usable():
                return line
            line.writer.transport.abort()
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)
        except (OSError, TimeoutError):
            raise AwayError from None
        return _Line(reader, writer, h11.Connection(h11.CLIENT))

    async def _head(self, line: _Line, target: str, headers: Headers, body: IO[bytes]) -> h11.Response:
        try:
            async with asyncio.timeout(PATIENCE):
                await line.send(target, headers, body)
        except (OSError, TimeoutError):
            raise AwayError from None
        while not isinstance(head := await line.event(), h11.Response):
            pass  # "100 Continue" and the like
        return head
