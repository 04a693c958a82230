"""A bad line between the sites and the server: connections break, the line is cut, bytes drip; the run must go on.

    python -m benchmarks.reliability.network

prints {"rounds", "missing", "skipped", "broken", "seconds"}. To drop packets needs netem in the kernel, so a proxy is
in the line: 30 % of the pieces wait up to a second, as when TCP sends lost packets again, and 5 % tear the connection;
then the line is cut for 20 s; then at most 2 kB pass every 0.1 s.
"""

import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.deploy.cluster import Cluster, cluster

from fedfew.config.files import dumps
from fedfew.deploy.plan import ServerPlan
from fedfew.deploy.processes import free_ports
from fedfew.runtime.record import left_out

ROUNDS = 5
LOST, TORN = 0.3, 0.05
"""Shares of the pieces that come late, and that are the last of their connection."""


class Line:
    """A TCP proxy on loopback whose quality changes."""

    def __init__(self, port: int, target: int) -> None:
        self.target, self.quality, self.broken = target, "good", 0
        self._rng, self._open = random.Random(4), set[socket.socket]()
        self._door = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def become(self, quality: str) -> None:
        """From now on: good, lossy, cut or drip; a cut ends what is open."""
        self.quality = quality
        for end in list(self._open) if quality == "cut" else ():
            _shut(end)

    def _accept(self) -> None:
        while True:
            near, _ = self._door.accept()
            if self.quality == "cut":
                _shut(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                _shut(near)
                continue
            far.settimeout(None)  # before the threads, one of which may end both
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(2_000 if self.quality == "drip" else 16_000):
                if self.quality == "lossy" and self._rng.random() < TORN:
                    self.broken += 1
                    break
                if self.quality == "lossy" and self._rng.random() < LOST:
                    time.sleep(self._rng.uniform(0.2, 1.0))
                elif self.quality == "drip":
                    time.sleep(0.1)
                sink.sendall(piece)
        for end in (source, sink):
            _shut(end)
            self._open.discard(end)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def behind(plan: ServerPlan) -> Line:
    """Move the server to another port, and stand where its sites look for it."""
    inner = free_ports(1)[0]
    settings = plan.folder / "server.toml"
    text = settings.read_text("utf-8")
    moved = text.replace(dumps({"port": plan.port}).strip(), dumps({"port": inner}).strip())
    assert moved != text
    settings.write_text(moved, "utf-8")
    return Line(plan.port, inner)


def another(network: Cluster, count: int = 1) -> None:
    assert network.round_done(len(network.rounds()) + count, 500), network.words()


def attack(base: Path) -> dict[str, Any]:
    began = time.monotonic()
    with cluster(base, {"rounds": ROUNDS, "fleet.timeout": 200.0, "fleet.min_clients": 1}) as network:
        line = behind(network.plan)
        server = network.server()
        for name in ("a", "b"):
            network.site(name)
        another(network)
        for quality in ("lossy", "cut", "drip"):
            line.become(quality)
            if quality == "cut":
                time.sleep(20)
                line.become("good")
            another(network)
            sys.stderr.write(f"{quality}: {len(network.rounds())} rounds\n")
        line.become("good")
        assert server.wait(600) == 0, network.words()
        records = network.rounds()
    missing = [fault["code"] for record in records for fault in left_out(record)]
    result = {"rounds": [record["round"] for record in records], "missing": missing}
    skipped = sum(bool(record["skipped"]) for record in records)
    return result | {"skipped": skipped, "broken": line.broken, "seconds": round(time.monotonic() - began)}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        result = attack(Path(folder))
    sys.stdout.write(json.dumps(result) + "\n")
    good = result["rounds"] == list(range(1, ROUNDS + 1)) and not result["skipped"]
    return 0 if good and set(result["missing"]) <= {"E410", "E416"} else 1


if __name__ == "__main__":
    sys.exit(main())
