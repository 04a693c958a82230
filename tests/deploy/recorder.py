"""A relay that writes down what passes: between sockets of this machine, or a site and its server over TLS."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedfew.deploy.plan import ServerPlan


class Recorder:
    """Passes connections on and keeps the bytes of both directions."""

    def __init__(self, listen: Callable[[Any], Awaitable[Any]], connect: Callable[[], Awaitable[Any]]) -> None:
        self.sent, self.received = bytearray(), bytearray()
        """Bytes from who connects, and bytes back to it."""
        self._connect, self._loop = connect, asyncio.new_event_loop()
        self._loop.run_until_complete(listen(self._relay))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @staticmethod
    def on_sockets(inside: Path, outside: Path) -> "Recorder":
        """Between two Unix sockets."""
        return Recorder(partial(asyncio.start_unix_server, path=outside), partial(asyncio.open_unix_connection, inside))

    @staticmethod
    def of_server(plan: ServerPlan, outside: int, inside: int) -> "Recorder":
        """Between two ports, with the server's own certificate."""
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.load_cert_chain(plan.certificate, plan.key)
        trusted = ssl.create_default_context(cafile=str(plan.ca))
        return Recorder(
            partial(asyncio.start_server, host="127.0.0.1", port=outside, ssl=own),
            partial(asyncio.open_connection, "127.0.0.1", inside, ssl=trusted),
        )

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            beyond, back = await self._connect()
            out = self._loop.create_task(_pass(reader, back, self.sent))
            await _pass(beyond, writer, self.received)
            out.cancel()
            back.transport.abort()
        writer.transport.abort()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(_ended(tasks))
        self._loop.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while content := await source.read(1 << 16):
            kept += content
            sink.write(content)
            await sink.drain()
