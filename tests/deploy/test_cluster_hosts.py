"""Server and sites on hosts of their own (network namespaces), one of them behind a proxy; and clocks a year ahead."""

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.deploy.cluster import Cluster, cluster, eventually

from fedfew.deploy import joining
from fedfew.deploy.audit import events
from fedfew.deploy.plan import open_server
from fedfew.deploy.processes import free_ports
from fedfew.interface.deploy.printouts import nginx

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


AROUND = """user root;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/unused;
    uwsgi_temp_path {folder}/unused;
    scgi_temp_path {folder}/unused;
    include {folder}/front.conf;
}}
"""


@contextmanager
def nginx_before(network: Cluster, folder: Path) -> Iterator[Path]:
    """nginx as the network's front; its log of errors."""
    toml = network.plan.folder / "server.toml"
    toml.write_text(toml.read_text().replace("behind = 0", f"behind = {free_ports(1)[0]}"))
    (folder / "front.conf").write_text(nginx(open_server(network.plan.folder)))
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log"), "-g", "daemon off;"]
    process = subprocess.Popen(command)
    try:
        yield folder / "error.log"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")
def test_three_sites_train_through_nginx_which_forwards_nothing_else(tmp_path: Path) -> None:
    changes = {"fleet.min_clients": 3, "model.width": 16}
    with cluster(tmp_path, changes, sites=("a", "b", "c")) as network, nginx_before(network, tmp_path) as log:
        server = network.server()
        for name in ("a", "b", "c"):
            network.site(name)
        assert network.round_done(1), network.words()
        trusted = ssl.create_default_context(cafile=str(network.plan.ca))
        with httpx.Client(base_url=f"https://127.0.0.1:{network.plan.port}", verify=trusted, trust_env=False) as front:
            for path in ("/v1/runtime/pull-messages", "/v1/control/start-run", "/v1/fleet/push-object/x", "/health"):
                assert front.post(path, content=b"x").status_code == 403, path
            assert front.get("/v1/fleet/pull-messages").status_code == 403
            assert front.post("/v1/fleet/pull-messages", content=b"no key").is_client_error
            assert front.post("/v1/fleet/pull-messages", content=bytes(2 << 20)).status_code == 413
            assert front.get("/fedfew").json()["network"] == network.plan.network
        words = ("deploy", "doctor", "client", str(tmp_path / "sites" / "a"), "--data", str(tmp_path / "a.npz"))
        checked = network.start(*words)
        assert checked.wait() == 0, checked.log.with_suffix(".out").read_text()
        assert server.wait(300) == 0, network.words()
    assert [len(record["cohort"]) - len(record["missing"]) for record in network.rounds()] == [3, 3, 3]
    assert "[alert]" not in log.read_text() and "[crit]" not in log.read_text()
