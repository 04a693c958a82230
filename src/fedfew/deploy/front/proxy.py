"""The TLS front, which sites reach from outside. It forwards the Fleet API and nothing else of the SuperLink.

The SuperLink's port also accepts calls that submit runs, which is code execution; so it listens on loopback only. A
request must carry the signature of a site's key before any of its body is read, and everything before that has tight
limits: a peer without a key holds no resource for longer than a few seconds.
"""

import asyncio
import asyncio.sslproto
import contextlib
import json
import logging
import resource
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import h11

from fedfew.deploy.audit import Refusals, note_seen
from fedfew.deploy.front.admission import SiteKeys, Slot, Slots
from fedfew.deploy.front.upstream import IN_MEMORY, PIECE, AwayError, Upstream, UpstreamAnswer
from fedfew.deploy.plan import LARGEST_REPLY, ServerPlan, open_server
from fedfew.deploy.versions import versions

_SEEN_SECONDS = 5.0
HEAD_SECONDS = 10.0
"""Time limit for the TLS handshake, and again for the head of a request from its first byte."""
IDLE_SECONDS = 120.0
"""Time limit between two requests of a site on one connection."""
BODY_SECONDS, BODY_RATE = 30.0, 32 << 10
"""Time limit for a body: a base, plus its length at this many bytes a second."""
HEAD_LIMIT = 32 << 10
BODY_LIMIT, OBJECT_LIMIT = 1 << 20, 16 << 20
"""Most bytes of a request, and of one that carries an object: Flower sends tensors in pieces of 5 MB."""
_READ_BUFFER = 1 << 15
"""Read buffer of each TLS connection in bytes: two records, instead of asyncio's 256 kB."""
_HOP = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"content-length"}
CALLS = (
    "register-node",
    "activate-node",
    "deactivate-node",
    "unregister-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
_PUSH_OBJECT, _PUSH_MESSAGES = b"/v1/fleet/push-object", b"/v1/fleet/push-messages"
_UNKNOWN = json.dumps({"code": 2004, "detail": "This network does not know the key, or the clocks differ."}).encode()
"""For requests without a known key: Flower's error with status 400. A SuperNode exits on a 401 and says no reason."""


class _EndError(Exception):
    """The connection must be closed: the peer is gone, too slow, or does not speak HTTP."""


class Front:
    """POST /v1/fleet/CALL from a known key goes through, GET /fedfew reports the versions, all else is refused."""

    def __init__(
        self,
        upstream: Upstream,
        keys: SiteKeys,
        about: dict[str, str],
        slots: Slots | None = None,
        largest_reply: Callable[[], int] = lambda: 1 << 40,
        refused: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        self._refused, self.seen = refused, dict[str, float]()
        """``seen``: key → when a site last asked for something."""
        self._upstream, self._keys, self._about, self._slots = upstream, keys, about, slots or Slots()
        self._largest_reply = largest_reply
        self._uploaded: dict[str, int] = {}
        """Bytes of objects by key since the site last announced a reply: the SuperLink itself has no limit."""

    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
    ) -> None:
        """Serve one connection, from its TLS handshake to its end."""
        address = str((writer.get_extra_info("peername") or ("",))[0])
        line = writer.transport
        slot = self._slots.take(address, line.abort)
        if slot is None:
            line.abort()
            return
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                if context is not None:
                    await _secure(writer, context)
            slot.abort = writer.transport.abort
            await _Exchange(self, reader, writer, slot).serve()
        except (OSError, TimeoutError, ssl.SSLError, _EndError, h11.RemoteProtocolError, h11.LocalProtocolError):
            pass  # the peer has hung up
        finally:
            self._slots.free(slot)
            line.abort()

    def refusal(self, request: h11.Request, slot: Slot) -> tuple[int, bytes] | None:
        """Status and body for a request that is refused; None for one that passes. Its body is not read yet."""
        path = request.target.decode("latin-1")
        if request.method == b"GET" and path == "/fedfew":
            return 200, json.dumps(self._about | {"time": time.time()}).encode()
        call = path.removeprefix("/v1/fleet/")
        if request.method != b"POST" or not path.startswith("/v1/fleet/") or call not in CALLS:
            return 403, b""
        headers = {name.lower(): value for name, value in request.headers}
        key = self._keys.verified(headers)
        if key is None:
            self._refused(slot.address, "unknown key, or a signature that is wrong or too old")
            return 400, _UNKNOWN
        self.seen[key] = time.time()
        return self._room(request, headers, slot, key)

    def _room(
        self, request: h11.Request, headers: dict[bytes, bytes], slot: Slot, key: str
    ) -> tuple[int, bytes] | None:
        """None if a site may send this body now; its bytes are counted before they arrive."""
        if not self._slots.belongs(slot, key):
            return 503, b""
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 12 or b"transfer-encoding" in headers:
            return 411, b""
        total = int(length) + (self._uploaded.get(key, 0) if request.target == _PUSH_OBJECT else 0)
        if int(length) > limit_of(request) or total > self._largest_reply():
            return 413, b""
        if request.target == _PUSH_OBJECT:
            self._uploaded[key] = total
        return None

    async def forward(self, request: h11.Request, body: IO[bytes], size: int, key: str) -> UpstreamAnswer:
        """The SuperLink's answer to a request; raises AwayError."""
        headers = [(name, value) for name, value in request.headers if name.lower() not in _HOP]
        headers.append((b"content-length", str(size).encode()))
        answer = await self._upstream.ask(request.target.decode("latin-1"), headers, body)
        if request.target == _PUSH_MESSAGES and answer.status == 200:
            self._uploaded[key] = 0
        return answer


async def _secure(writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
    """The TLS handshake; raises if the connection ends during it."""
    line = writer.transport
    try:
        await writer.start_tls(context, ssl_handshake_timeout=HEAD_SECONDS)
    except AttributeError:  # asyncio has no transport if the connection has just ended
        writer._transport = line  # type: ignore[attr-defined]
        raise _EndError from None


class _Exchange:
    """The requests of one connection, one after the other."""

    def __init__(self, front: Front, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slot: Slot) -> None:
        self._front, self._reader, self._writer, self._slot = front, reader, writer, slot
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)

    async def serve(self) -> None:
        """Serve until either side closes; a connection that has not shown a key gets one answer."""
        while True:
            async with asyncio.timeout(IDLE_SECONDS if self._slot.key else HEAD_SECONDS):
                await self._fill()
            async with asyncio.timeout(HEAD_SECONDS):
                request = await self._event()
            if not isinstance(request, h11.Request):
                return
            refused = self._front.refusal(request, self._slot)
            if refused is not None:
                await self._answer(*refused)
                return
            await self._pass(request)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _fill(self) -> None:
        """Wait for bytes, unless some of the next request have arrived already."""
        if not self._http.trailing_data[0]:
            self._http.receive_data(await self._reader.read(PIECE))

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE))
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise _EndError
        return event

    async def _pass(self, request: h11.Request) -> None:
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as body:
            try:
                size = await self._read(request, body)
            except _EndError:
                await self._answer(413)
                return
            body.seek(0)
            try:
                answer = await self._front.forward(request, body, size, self._slot.key)
            except AwayError:
                await self._answer(503)  # the SuperLink is restarting: nodes try again
                return
        with answer.body:
            async with asyncio.timeout(BODY_SECONDS + answer.size / BODY_RATE):
                await self._relay(answer)

    async def _read(self, request: h11.Request, body: IO[bytes]) -> int:
        """A request's body, within its limits of size and time."""
        size, limit = 0, limit_of(request)
        async with asyncio.timeout(BODY_SECONDS) as patience:
            while not isinstance(event := await self._event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > limit:
                        raise _EndError
                    body.write(event.data)
                    patience.reschedule((patience.when() or 0.0) + len(event.data) / BODY_RATE)
        return size

    async def _relay(self, answer: UpstreamAnswer) -> None:
        """Relay the SuperLink's answer piece by piece, as the site reads it."""
        headers = [(name, value) for name, value in answer.headers if name.lower() not in _HOP]
        headers.append((b"content-length", str(answer.size).encode()))
        await self._send(h11.Response(status_code=answer.status, headers=headers))
        while piece := answer.body.read(PIECE):
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def _answer(self, status: int, body: bytes = b"") -> None:
        """Send a short answer and close the connection."""
        headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        headers += [(b"content-type", b"application/json")] if body else []
        await self._send(h11.Response(status_code=status, headers=headers))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())
        with contextlib.suppress(OSError):
            self._writer.close()
            async with asyncio.timeout(HEAD_SECONDS):
                await self._writer.wait_closed()

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        if content := self._http.send(event):
            self._writer.write(content)
            async with asyncio.timeout(BODY_SECONDS):
                await self._writer.drain()


def limit_of(request: h11.Request) -> int:
    """Most bytes of a request's body."""
    return OBJECT_LIMIT if request.target == _PUSH_OBJECT else BODY_LIMIT


async def serve(plan: ServerPlan, superlink: int) -> None:
    """Listen until ended; ``superlink``: its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(plan.certificate, plan.key)
    asyncio.sslproto.SSLProtocol.max_size = _READ_BUFFER
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns about every peer that hangs up in a handshake
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16_384 if most == resource.RLIM_INFINITY else min(16_384, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, wanted), most))
    upstream = Upstream(superlink, ssl.create_default_context(cafile=plan.ca))
    numbers, ca = plan.numbers_of_keys(), plan.ca.read_text()
    about, keys = versions() | {"network": plan.network, "ca": ca}, SiteKeys.of(numbers)
    # three files each: the connection, its spooled body, the connection to the SuperLink
    refused = Refusals(plan.folder).add
    front = Front(
        upstream, keys, about, Slots(most=max(files, wanted) // 3),
        lambda: int((plan.folder / LARGEST_REPLY).read_bytes()), refused,
    )  # fmt: skip
    server = await asyncio.start_server(
        lambda reader, writer: front.accept(reader, writer, context), plan.listen, plan.bound, backlog=1024
    )
    print(f"listening on {plan.listen}:{plan.bound}", flush=True)
    async with server:
        while True:
            await asyncio.sleep(_SEEN_SECONDS)
            note_seen(plan.folder, {plan.sites[numbers[key]]: at for key, at in front.seen.items()})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(open_server(Path(sys.argv[1])), int(sys.argv[2])))
