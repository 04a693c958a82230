"""A thousand honest sites poll the TLS front while strangers attack it: every poll must be answered.

    python -m benchmarks.reliability.load [SITES [SECONDS]]

prints {"sites", "calm", "attacked", "attack", "front"}: polls, how many were not answered, and the seconds that they
took, without the strangers and beside them; and what both cost the front, which is the real one in a process of its
own. Behind it answers a stand-in for the SuperLink. Each site has its key and an address of its own (127.1.x.y), signs
every request, polls every three seconds as Flower's SuperNodes do, and connects anew now and then. The strangers have
no key and eight addresses: on a thousand lines they open what is never finished (handshakes, heads, 60 MB bodies), and
again a second after the front has ended it.
"""

import asyncio
import base64
import contextlib
import json
import os
import random
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfew.deploy.certificates import as_flower_sends_it, site_key
from fedfew.deploy.front import proxy
from fedfew.deploy.plan import LARGEST_REPLY, SERVER, make_network, settings
from fedfew.deploy.processes import free_ports

HERE = "127.0.0.1"
PAUSE, ANEW = 3.0, 0.05
"""Seconds between two polls of a site, and the share of polls for which it connects anew."""
PATIENCE = 30.0
"""Seconds after which a SuperNode gives a request up."""
STRANGERS = 8
MOST_MB = 256
_LINE = b"POST /v1/fleet/%s HTTP/1.1\r\nhost: x\r\n"
ATTACKS: dict[str, bytes] = {
    "handshake": b"",
    "head": _LINE % b"pull-messages" + b"x-filler: ",
    "body": _LINE % b"push-object" + b"content-length: 62914560\r\n\r\n" + bytes(16_000),
}
"""What strangers send before they fall silent; the first not even in TLS."""


@dataclass
class Site:
    """An honest one."""

    number: int
    key: ec.EllipticCurvePrivateKey
    public: bytes
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def request(self) -> bytes:
        stamp = datetime.now(UTC).isoformat().encode()
        signature = base64.b64encode(self.key.sign(stamp, ec.ECDSA(hashes.SHA256())))
        signed = b"flwr-public-key: %s\r\nflwr-signature: %s\r\nflwr-timestamp: %s\r\n" % (
            self.public,
            signature,
            stamp,
        )
        return _LINE % b"pull-messages" + signed + b"content-length: 8\r\n\r\nquestion"

    async def poll(self, port: int, trust: ssl.SSLContext) -> bool:
        """Whether the front answered in time; a line that is down is tried again each second, as by Flower's client."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not await self._answered(port, trust):
                    self.hang_up()
                    await asyncio.sleep(1)
                return True
        self.hang_up()
        return False

    async def _answered(self, port: int, trust: ssl.SSLContext) -> bool:
        try:
            if self.streams is None:
                source = f"127.1.{self.number // 250}.{1 + self.number % 250}"
                self.streams = await asyncio.open_connection(
                    HERE, port, ssl=trust, local_addr=(source, 0), server_hostname=HERE
                )
            reader, writer = self.streams
            writer.write(self.request())
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(6)
        except (OSError, asyncio.IncompleteReadError):
            return False
        return head.startswith(b"HTTP/1.1 200")

    def hang_up(self) -> None:
        if self.streams is not None:
            self.streams[1].transport.abort()
        self.streams = None


@dataclass
class Polls:
    """What became of them."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def said(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        times = {
            name: round(ordered[int(share * (len(ordered) - 1))], 2) if ordered else None
            for name, share in (("median", 0.5), ("of_100_the_99th", 0.99), ("longest", 1.0))
        }
        return {"polls": len(ordered) + self.failed, "failed": self.failed, "seconds": times}


async def crowd(sites: list[Site], port: int, trust: ssl.SSLContext, seconds: float, seed: int) -> Polls:
    """All sites poll for a while."""
    result, rng, end = Polls(), random.Random(seed), monotonic() + seconds

    async def live(site: Site, start: float) -> None:
        await asyncio.sleep(start)
        while monotonic() < end:
            if rng.random() < ANEW:
                site.hang_up()
            began = monotonic()
            if await site.poll(port, trust):
                result.seconds.append(monotonic() - began)
            else:
                result.failed += 1
            await asyncio.sleep(PAUSE)

    await asyncio.gather(*(live(site, rng.uniform(0, PAUSE)) for site in sites))
    return result


async def superlink(port: int, certificate: Path, key: Path) -> None:
    """A stand-in that answers at once."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nanswer")
        writer.transport.abort()

    await (await asyncio.start_server(serve, HERE, port, ssl=context)).serve_forever()


async def strangers(port: int, seconds: float) -> None:
    """Open and never finish, from some addresses, until the time is over; says what was opened and how many ended."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    rng, end, opened, ended = random.Random(3), monotonic() + seconds, 0, 0

    async def attack() -> None:
        nonlocal opened, ended
        while monotonic() < end:
            words = ATTACKS[rng.choice(list(ATTACKS))]
            source = f"127.2.0.{rng.randint(1, STRANGERS)}"
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(max(end - monotonic(), 0.1)):
                    secure: dict[str, Any] = {"ssl": trust, "server_hostname": HERE} if words else {}
                    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(source, 0), **secure)
                    opened += 1
                    try:
                        writer.write(words)
                        await reader.read()  # until the front has enough of it
                    finally:
                        writer.transport.abort()
                        ended += 1
            await asyncio.sleep(1)

    await asyncio.gather(*(attack() for _ in range(1_000)))
    sys.stdout.write(json.dumps({"opened": opened, "ended": ended, "lines": 1_000}) + "\n")


def peak_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)


def make_sites(folder: Path, count: int) -> list[Site]:
    """Their keys, the public ones where the front looks for them."""
    sites = []
    for number in range(count):
        pair = site_key(f"net/{number}")
        (folder / f"{number}.pub").write_bytes(pair.public)
        private = serialization.load_ssh_private_key(pair.private, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        sites.append(Site(number, private, base64.b64encode(as_flower_sends_it(pair.public).encode())))
    return sites


@contextlib.contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A process, ended at the end."""
    process = subprocess.Popen([sys.executable, "-m", *map(str, words)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def measure(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    behind, port = free_ports(2)
    plan = make_network(folder / "net", ["site"], port=port)
    (plan.folder / LARGEST_REPLY).write_text(str(1 << 20))
    sites = make_sites(plan.folder / "keys", count)
    members = replace(plan, sites=tuple(str(site.number) for site in sites))
    (plan.folder / SERVER).write_bytes(settings(members))
    trust = ssl.create_default_context(cafile=plan.ca)
    with (
        started("benchmarks.reliability.load", "superlink", behind, plan.certificate, plan.key),
        started(proxy.__name__, plan.folder, behind) as door,
    ):
        await asyncio.to_thread(door.stdout.readline)  # type: ignore[union-attr]
        times = [cpu_seconds(door.pid)]
        calm = await crowd(sites, port, trust, seconds, 1)
        before = peak_mb(door.pid)
        times.append(cpu_seconds(door.pid))
        with started("benchmarks.reliability.load", "strangers", port, seconds + 5) as mob:
            await asyncio.sleep(5)
            attacked = await crowd(sites, port, trust, seconds, 2)
            attack = json.loads(await asyncio.to_thread(mob.stdout.readline))  # type: ignore[union-attr]
        grown = [before, peak_mb(door.pid)]
        times.append(cpu_seconds(door.pid))
    used = [round(later - earlier, 1) for earlier, later in pairwise(times)]
    taken: dict[str, object] = {"mb": grown, "cpu_seconds": used}
    return {"sites": count, "calm": calm.said(), "attacked": attacked.said(), "attack": attack, "front": taken}


def main(words: list[str]) -> int:
    helpers: dict[str, Callable[..., Awaitable[None]]] = {"superlink": superlink, "strangers": strangers}
    if words[:1] and words[0] in helpers:
        with contextlib.suppress(KeyboardInterrupt):
            options = [int(words[1]), *(map(float, words[2:]) if words[0] == "strangers" else map(Path, words[2:]))]
            asyncio.run(helpers[words[0]](*options))  # type: ignore[arg-type]
        return 0
    count, seconds = ([int(word) for word in words] + [1_000, 40][len(words) :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), count, seconds))
    good = not result["calm"]["failed"] and not result["attacked"]["failed"] and result["front"]["mb"][1] < MOST_MB
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
