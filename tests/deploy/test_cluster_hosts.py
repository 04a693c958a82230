"""Server and sites on hosts of their own (network namespaces), one of them behind a proxy; and clocks a year ahead."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.cluster import Cluster, cluster, eventually

from fedfew.deploy import joining
from fedfew.deploy.audit import events

pytestmark = pytest.mark.slow

PROXY = """
import sys, threading
from http.server import ThreadingHTTPServer
from tests.deploy.test_deploy_commands import Proxy
class Told(Proxy):
    asked = type("Told", (), {"append": staticmethod(lambda path: print(path, flush=True))})()
ThreadingHTTPServer(("10.77.1.1", 3128), Told).serve_forever()
"""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Namespaces: the server's at 10.77.0.1; a and b see it, c sees only 10.77.1.1, where the proxy is."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    names = {name: f"ff{os.getpid()}{name}" for name in ("server", "a", "b", "c")}
    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        server = names["server"]
        for bridge in ("near", "far"):
            ip("-n", server, "link", "add", bridge, "type", "bridge")
            ip("-n", server, "addr", "add", f"10.77.{int(bridge == 'far')}.1/24", "dev", bridge)
            ip("-n", server, "link", "set", bridge, "up")
        for number, name in enumerate(("a", "b", "c")):
            net, bridge = ("1", "far") if name == "c" else ("0", "near")
            ip("-n", server, "link", "add", f"to-{name}", "type", "veth", "peer", "name", "up0", "netns", names[name])
            ip("-n", server, "link", "set", f"to-{name}", "master", bridge, "up")
            ip("-n", names[name], "addr", "add", f"10.77.{net}.{10 + number}/24", "dev", "up0")
            ip("-n", names[name], "link", "set", "up0", "up")
        yield names
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_three_sites_on_hosts_of_their_own_one_behind_a_proxy_and_one_cut_off(
    tmp_path: Path, hosts: dict[str, str]
) -> None:
    changes = {"rounds": 5, "fleet.min_clients": 1, "fleet.timeout": 90.0}
    command = ["ip", "netns", "exec", hosts["server"], sys.executable, "-c", PROXY]
    with (tmp_path / "proxy.log").open("wb") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=subprocess.DEVNULL)
    try:
        with cluster(tmp_path, changes, sites=("a", "b", "c"), host="10.77.0.1") as network:
            network.hosts |= {name: ("ip", "netns", "exec", space) for name, space in hosts.items()}
            way = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), "http://10.77.1.1:3128")
            server = network.server()
            for name in ("a", "b"):
                network.site(name)
            network.site("c", environment=way)
            assert network.round_done(1), network.words()
            checked = doctor(network, "c", way)
            assert '"ok": true' in checked and "through the proxy http://10.77.1.1:3128" in checked, checked
            assert "cannot be reached" in doctor(network, "c", {})
            ip("-n", hosts["server"], "link", "set", "to-b", "down")
            assert network.round_done(len(network.rounds()) + 2, 300), network.words()
            ip("-n", hosts["server"], "link", "set", "to-b", "up")
            assert server.wait(400) == 0, network.words()
            assert {k for record in network.rounds() for k in record["cohort"]} == {0, 1, 2}
            missed = [fault["client"] for record in network.rounds() for fault in record["missing"]]
            assert set(missed) <= {1} and not any(record["skipped"] for record in network.rounds())
    finally:
        proxy.kill()
        proxy.wait()
    asked = (tmp_path / "proxy.log").read_text().splitlines()
    assert set(asked) == {f"10.77.0.1:{network.plan.port}"}, "c reached its server through the proxy, and nobody else"


def doctor(network: Cluster, name: str, environment: dict[str, str]) -> str:
    """What the doctor of a site prints."""
    state, data = network.folder / "sites" / name, network.folder / f"{name}.npz"
    words = ("deploy", "doctor", "client", str(state), "--data", str(data), "--json")
    started = network.start(*words, environment=environment, host=name)
    started.wait()
    return started.log.with_suffix(".out").read_text()


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime")
def test_a_clock_400_days_ahead_is_an_expired_certificate_until_it_is_renewed(tmp_path: Path) -> None:
    ahead = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+400d"}
    with cluster(tmp_path, {"rounds": 2}, sites=("a",)) as network:
        refused = network.server(environment=ahead)
        assert refused.wait(120) == 2 and "E505" in refused.errors() and "expired on" in refused.errors()
        site = network.site("a", environment=ahead)
        assert site.wait(120) == 2 and "E505" in site.errors(), site.errors()
        folder = tmp_path / "sites" / "a"
        (folder / "ledger.jsonl").touch()
        words = ("deploy", "renew", str(network.plan.folder), "--days", "365", "--json")
        assert network.start(*words, environment=ahead).wait() == 0, network.words()
        admission = tmp_path / "net" / "admissions" / "a.admission"
        shown = joining.read_admission(folder, admission)[2]
        words = ("deploy", "join", str(folder), str(admission), "--fingerprint", shown)
        assert network.start(*words, environment=ahead).wait() == 0, network.words()
        server = network.server(environment=ahead)
        front = network.plan.folder / "logs" / "front.log"  # libfaketime breaks waits with a timeout, as of retries
        assert eventually(lambda: front.exists() and "listening" in front.read_text()), network.words()
        network.site("a", environment=ahead)
        assert network.round_done(2, 150), network.words()
        assert server.wait(120) == 0, network.words()
        assert len(network.rounds()) == 2 and (folder / "ledger.jsonl").stat().st_size > 0
    assert [e["event"] for e in events(network.plan.folder)][:1] == ["renewed"]
