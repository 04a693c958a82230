"""The TLS front over real sockets: what passes, who is let in, and what strangers can hold."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfew.deploy.certificates import Pair, as_flower_sends_it, authority, server_certificate, site_key
from fedfew.deploy.front import proxy as module
from fedfew.deploy.front import upstream
from fedfew.deploy.front.admission import SiteKeys, Slots, network_of
from fedfew.deploy.front.proxy import Front
from fedfew.deploy.front.upstream import Upstream

HERE = "127.0.0.1"


def signed(pair: Pair, at: datetime | None = None, stamp: str = "") -> dict[str, str]:
    """The headers that a SuperNode sends with a request."""
    private = serialization.load_ssh_private_key(pair.private, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    stamp = stamp or (at or datetime.now(UTC)).isoformat()
    key = as_flower_sends_it(pair.public) + "\n"
    signature = private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(key.encode()).decode(),
        "flwr-signature": base64.b64encode(signature).decode(),
        "flwr-timestamp": stamp,
    }


def answered(content: bytes) -> bytes:
    """What a SuperLink answers."""
    return b"HTTP/1.1 200 OK\r\nx-node: 1\r\ncontent-length: %d\r\n\r\n" % len(content) + content


@dataclass
class Scene:
    """A front on loopback, with what its SuperLink saw."""

    port: int
    key: Pair
    seen: list[tuple[str, bytes, str]] = field(default_factory=list)
    lines: int = 0
    """Connections to the SuperLink."""

    async def request(self, method: str, path: str, content: bytes = b"", **options: Any) -> httpx.Response:
        headers = signed(self.key) if options.pop("sign", True) else {}
        async with httpx.AsyncClient(base_url=f"http://{HERE}:{self.port}", timeout=20) as client:
            return await client.request(method, path, content=content, headers=headers | options.pop("headers", {}))

    def head(self, call: str, length: int, headers: dict[str, str] | None = None) -> bytes:
        """The head of a request to the Fleet API, signed unless other headers are given."""
        lines = {"host": "x", "content-length": length} | (signed(self.key) if headers is None else headers)
        said = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST /v1/fleet/{call} HTTP/1.1\r\n{said}\r\n".encode()

    async def half(self, content: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that sends something and then no more."""
        reader, writer = await asyncio.open_connection(HERE, self.port)
        writer.write(content)
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def scene(
    folder: Path,
    answer: Callable[[bytes], bytes] = lambda content: answered(b"answer"),
    slots: Slots | None = None,
    largest_reply: int = 1 << 40,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Scene]:
    key = site_key("net/a")
    (folder / "a.pub").write_bytes(key.public)
    found = Scene(0, key)

    async def superlink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.lines += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                content = await reader.readexactly(int(headers["content-length"]))
                found.seen.append((head.split()[1], content, headers.get("flwr-timestamp", "")))
                said = answer(content)
                writer.write(said)
                if not said or b"x-bye" in said:
                    writer.close()

    behind = await asyncio.start_server(superlink, HERE, 0)
    inner = Upstream(behind.sockets[0].getsockname()[1], None)
    made = Front(
        inner,
        SiteKeys.of(as_flower_sends_it(path.read_bytes()) for path in folder.glob("*.pub")),
        {"fedfew": "0.1.0"},
        slots,
        lambda: largest_reply,
    )
    server = await asyncio.start_server(lambda r, w: made.accept(r, w, context), HERE, 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        behind.close()


def play(folder: Path, act: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), scene(folder, **options) as found:
            await act(found)

    asyncio.run(run())


def test_the_fleet_api_passes_and_nothing_else(tmp_path: Path) -> None:
    async def act(here: Scene) -> None:
        passed = await here.request("POST", "/v1/fleet/pull-messages", b"question")
        assert (passed.status_code, passed.content, passed.headers["x-node"]) == (200, b"answer", "1")
        ((path, content, stamp),) = here.seen
        assert (path, content) == ("/v1/fleet/pull-messages", b"question") and stamp
        assert (await here.request("GET", "/fedfew", sign=False)).json()["fedfew"] == "0.1.0"
        refused = [
            ("POST", "/v1/control/start-run"), ("POST", "/v1/control/register-node"), ("GET", "/v1/fleet/get-run"),
            ("POST", "/v1/runtime/acquire-task"), ("PUT", "/v1/fleet/pull-messages"), ("GET", "/health"),
            ("POST", "/v1/fleet/..%2fcontrol%2fstart-run"), ("GET", "/"), ("POST", "/v1/fleet/pull-messages?x=1"),
            ("POST", "/v1/fleet/unknown"), ("POST", "//v1/fleet/pull-messages"), ("POST", "/V1/FLEET/pull-messages"),
        ]  # fmt: skip
        for method, place in refused:
            assert (await here.request(method, place)).status_code == 403, place
        unsigned = await here.request("POST", "/v1/fleet/get-run", sign=False)
        assert unsigned.status_code == 400 and "does not know the key" in json.loads(unsigned.content)["detail"]
        assert len(here.seen) == 1

    play(tmp_path, act)


def test_many_requests_and_large_ones_use_one_connection(tmp_path: Path) -> None:
    large = bytes(range(256)) * 20_000

    async def act(here: Scene) -> None:
        async with httpx.AsyncClient(base_url=f"http://{HERE}:{here.port}", timeout=20) as client:
            for _ in range(5):
                answer = await client.post("/v1/fleet/push-object", content=large, headers=signed(here.key))
                assert answer.content == large[::-1]
            assert len(client._transport._pool.connections) == 1  # type: ignore[attr-defined]

    play(tmp_path, act, answer=lambda content: answered(content[::-1]))


def stranger() -> dict[str, str]:
    return signed(site_key("net/b"))


FORGED: dict[str, Callable[[Scene], dict[str, str]]] = {
    "no headers": lambda here: {},
    "another key": lambda here: stranger(),
    "another key's signature": lambda here: signed(here.key) | {"flwr-signature": stranger()["flwr-signature"]},
    "an old signature": lambda here: signed(here.key, datetime.now(UTC) - timedelta(minutes=10)),
    "a signature of tomorrow": lambda here: signed(here.key, datetime.now(UTC) + timedelta(days=1)),
    "another time than signed": lambda here: signed(here.key) | {"flwr-timestamp": datetime.now(UTC).isoformat()},
    "no time": lambda here: signed(here.key, stamp="now"),
    "a time of no place": lambda here: signed(here.key, stamp="2026-01-01T00:00:00"),
    "no base64": lambda here: signed(here.key) | {"flwr-public-key": "%%%"},
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_without_a_sites_signature_nothing_of_a_body_is_read(
    tmp_path: Path, forge: Callable[[Scene], dict[str, str]]
) -> None:
    async def act(here: Scene) -> None:
        reader, writer = await here.half(here.head("push-object", 9_999_999, forge(here)))  # and no body
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
        assert not here.seen

    play(tmp_path, act)


def test_large_and_slow_bodies_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(module, "OBJECT_LIMIT", 1 << 20)
    monkeypatch.setattr(module, "BODY_LIMIT", 1000)

    async def act(here: Scene) -> None:
        assert (await here.request("POST", "/v1/fleet/push-messages", bytes(1001))).status_code == 413
        assert (await here.request("POST", "/v1/fleet/push-object", bytes(1 << 20))).status_code == 200

        async def chunks() -> AsyncIterator[bytes]:
            yield bytes(100)

        assert (await here.request("POST", "/v1/fleet/push-object", chunks())).status_code == 411  # type: ignore[arg-type]
        more = {"content-length": "0", "transfer-encoding": "chunked"}
        assert (await here.request("POST", "/v1/fleet/push-object", headers=more)).status_code == 411
        reader, _ = await here.half(here.head("push-object", 999_999) + b"12345")
        assert await reader.read() == b""  # closed, long before the test's patience
        assert len(here.seen) == 1

    play(tmp_path, act)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/fleet/push-object HTTP/1.1\r\nhost:", b"\0\0\0", b"x" * 40_000])
def test_who_sends_half_a_head_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.3)

    async def act(here: Scene) -> None:
        reader, _ = await here.half(sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""

    play(tmp_path, act)


def test_strangers_make_room_and_sites_stay(tmp_path: Path) -> None:
    """More half-sent heads than there are places: the oldest go, and a site is served at once."""
    slots = Slots(most=12, strangers=8, of_address=6)

    async def act(here: Scene) -> None:
        async with httpx.AsyncClient(base_url=f"http://{HERE}:{here.port}", timeout=5) as site:

            async def ask() -> int:
                return (await site.post("/v1/fleet/pull-messages", headers=signed(here.key))).status_code

            assert await ask() == 200
            held = [await here.half(b"POST /v1") for _ in range(30)]
            assert await ask() == 200 and len(site._transport._pool.connections) == 1  # type: ignore[attr-defined]
            assert (await here.request("POST", "/v1/fleet/pull-messages")).status_code == 200
            ended = [reader for reader, _ in held if reader.at_eof() or reader.exception()]
            assert len(slots._open) <= 7 and len(ended) >= 24

    play(tmp_path, act, slots=slots)


def test_strangers_of_one_address_do_not_push_out_those_of_another() -> None:
    ended: list[str] = []
    slots = Slots(strangers=8, of_address=6)
    for address in ["10.0.0.1", "10.0.0.2", *["10.9.9.9"] * 20, "10.0.0.3"]:
        assert slots.take(address, lambda address=address: ended.append(address))  # type: ignore[misc]
    assert set(ended) == {"10.9.9.9"} and len(slots._open) == 8


def test_an_ipv6_network_counts_as_one_address() -> None:
    slots = Slots(of_address=2)
    for number in range(5):
        assert slots.take(f"2001:db8::{number}", lambda: None)
    assert len(slots._open) == 2 and network_of("::1") == network_of("::2") != network_of("10.0.0.1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")


def test_connections_come_only_so_fast_and_those_of_sites_do_not_wait_for_strangers() -> None:
    now = [100.0]
    slots = Slots(by_address=(10, 1), by_strangers=(30, 2), clock=lambda: now[0])

    def come(address: str, times: int) -> int:
        taken = [slots.take(address, lambda: None) for _ in range(times)]
        return sum(slot is not None for slot in taken)

    home = slots.take("10.0.0.1", lambda: None)
    assert home is not None and slots.belongs(home, "key")
    assert come("10.9.9.9", 50) == 10, "the burst of one address"
    assert sum(come(f"10.8.0.{n}", 10) for n in range(9)) == 19, "and that of all strangers, of which the site was one"
    assert come("10.7.0.1", 1) == 0 and come("10.0.0.1", 20) == 9
    now[0] += 3
    assert come("10.9.9.9", 50) == 3 and come("10.7.0.1", 5) == 3


def test_connections_that_are_ended_in_their_handshake_leave_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio has no transport left then; thousands of tracebacks filled the log, and took the front's time."""
    ca = authority("net", 1)
    server = server_certificate(ca, HERE, 1)
    (tmp_path / "server.pem").write_bytes(server.public + server.private)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    trust = ssl.create_default_context(cadata=ca.public.decode())

    async def act(here: Scene) -> None:
        strangers = (asyncio.open_connection(HERE, here.port, ssl=trust) for _ in range(100))
        await asyncio.gather(*strangers, return_exceptions=True)  # each pushes out the one before the last
        async with httpx.AsyncClient(base_url=f"https://{HERE}:{here.port}", verify=trust) as site:
            assert (await site.post("/v1/fleet/get-run", headers=signed(here.key))).status_code == 200
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    play(tmp_path, act, slots=Slots(of_address=2, by_address=(999, 99)), context=context)


def test_a_site_uploads_one_reply_and_no_more_until_it_announces_the_next(tmp_path: Path) -> None:
    async def act(here: Scene) -> None:
        async def push(call: str, size: int) -> int:
            return (await here.request("POST", f"/v1/fleet/{call}", bytes(size))).status_code

        assert [await push("push-object", 400_000) for _ in range(4)] == [200, 200, 413, 413]
        assert await push("push-messages", 100) == 200
        assert [await push("push-object", 900_000) for _ in range(2)] == [200, 413]

    play(tmp_path, act, largest_reply=1_000_000)


def test_one_site_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    async def act(here: Scene) -> None:
        clients = [httpx.AsyncClient(base_url=f"http://{HERE}:{here.port}") for _ in range(3)]
        codes = [(await one.post("/v1/fleet/get-run", headers=signed(here.key))).status_code for one in clients]
        assert codes == [200, 200, 503]
        for one in clients:
            await one.aclose()

    play(tmp_path, act, slots=Slots(of_key=2))


def test_one_connection_to_the_superlink_serves_many_requests_and_is_replaced_when_closed(tmp_path: Path) -> None:
    bye = [b"", b"", b"x-bye: 1\r\n", b""]

    def answer(content: bytes) -> bytes:
        return answered(b"answer").replace(b"\r\n\r\n", b"\r\n" + bye.pop(0) + b"\r\n")

    async def act(here: Scene) -> None:
        for lines in (1, 1, 1, 2):
            assert (await here.request("POST", "/v1/fleet/get-run", b"x")).content == b"answer"
            assert here.lines == lines
            await asyncio.sleep(0.05)  # time for a closed connection to show

    play(tmp_path, act, answer=answer)


@pytest.mark.parametrize(
    "said", [b"", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx-bye: 1\r\n\r\nhalf"]
)
def test_a_broken_answer_of_the_superlink_ends_that_request_only(tmp_path: Path, said: bytes) -> None:
    answers = [said, answered(b"answer")]

    async def act(here: Scene) -> None:
        with contextlib.suppress(httpx.RemoteProtocolError):  # the site sees the half, then the end
            assert (await here.request("POST", "/v1/fleet/get-run", b"x")).status_code == 503
        assert (await here.request("POST", "/v1/fleet/get-run", b"x")).content == b"answer" and here.lines == 2

    play(tmp_path, act, answer=lambda content: answers.pop(0))


def test_chunked_answers_and_interim_ones_are_relayed(tmp_path: Path) -> None:
    chunks = b"3\r\nans\r\n3\r\nwer\r\n0\r\n\r\n"
    said = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks

    async def act(here: Scene) -> None:
        for _ in range(2):
            assert (await here.request("POST", "/v1/fleet/get-run", b"x")).content == b"answer"
        assert here.lines == 1

    play(tmp_path, act, answer=lambda content: said)


def test_sites_that_read_slowly_hold_no_connection_to_the_superlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "MOST", 2)
    large = bytes(8 << 20)

    async def act(here: Scene) -> None:
        held = [await here.half(here.head("pull-object", 5) + b"large") for _ in range(4)]
        async with asyncio.timeout(10):
            while len(here.seen) < 4:
                await asyncio.sleep(0.01)
            assert (await here.request("POST", "/v1/fleet/pull-messages", b"small")).content == b"answer"
        for _, writer in held:
            writer.transport.abort()

    play(tmp_path, act, answer=lambda content: answered(large if content == b"large" else b"answer"))


def test_a_site_that_reads_too_slowly_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(module, "BODY_RATE", 1 << 30)

    async def act(here: Scene) -> None:
        reader, _ = await here.half(here.head("pull-object", 0))
        await reader.read(1)  # the front has begun to answer, however busy the machine is
        await asyncio.sleep(1.0)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read(-1)) < 32 << 20

    play(tmp_path, act, answer=lambda content: answered(bytes(32 << 20)))


def test_what_no_request_asked_for_is_given_to_nobody(tmp_path: Path) -> None:
    async def act(here: Scene) -> None:
        for lines in (1, 2):
            assert (await here.request("POST", "/v1/fleet/get-run", b"x")).content == b"answer"
            assert here.lines == lines
            await asyncio.sleep(0.05)

    play(tmp_path, act, answer=lambda content: answered(b"answer") + answered(b"for whom?"))
