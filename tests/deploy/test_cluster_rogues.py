"""A real cluster with TLS and keys, and those who do not belong: refused on the same path on which a site is let in."""

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from tests.deploy.cluster import FEDFEW, Cluster, cluster, eventually, named
from tests.deploy.test_front import signed

from fedfew.deploy.certificates import Pair, site_key
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.processes import Supervisor, flower_environment, free_ports
from fedfew.runtime.record import left_out

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server that waits for its third site for as long as the tests take."""
    changes = {"fleet.wait": 3000.0, "fleet.min_clients": 3, "rounds": 2}
    with cluster(tmp_path_factory.mktemp("rogues"), changes, sites=("a", "b", "c")) as found:
        found.server()
        found.site("a")
        plan = found.plan
        assert eventually(lambda: answer(found, "GET", "/fedfew") == 200, 200), found.words()
        assert eventually(lambda: "online" in found.started[1].errors(), 200), found.words()
        assert plan.port
        yield found


def answer(
    network: Cluster, method: str, path: str, ca: Path | None = None, headers: dict[str, str] | None = None
) -> int:
    """Status of a request to the front, over TLS."""
    context = ssl.create_default_context(cafile=ca or network.plan.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", network.plan.port, timeout=60, context=context)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, headers={"content-type": "application/x-protobuf"} | (headers or {}))
            return connection.getresponse().status
        except ConnectionError:
            return 0


def node(folder: Path, network: Cluster, *options: str, seconds: float = 60.0) -> tuple[bool, str]:
    """Whether Flower's SuperNode gets in with these options, and what it said."""
    supervisor = Supervisor(folder)
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{network.plan.port}", "--host", "127.0.0.1"]
    process = supervisor.add(
        "node", [*command, "--port", str(free_ports(1)[0]), *options], flower_environment(folder), restart=False
    )
    try:
        deadline = monotonic() + seconds
        while monotonic() < deadline and process.running:
            if "SuperNode ID:" in process.log_tail(50):
                return True, process.log_tail(50)
            sleep(0.2)
        return False, process.log_tail(50)
    finally:
        supervisor.close()


def keys(folder: Path) -> Path:
    pair = site_key("rogue")
    (folder / "rogue.key").write_bytes(pair.private)
    (folder / "rogue.key").chmod(0o600)
    return folder / "rogue.key"


def trusting(ca: Path, key: Path) -> list[str]:
    return ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]


def test_only_a_key_of_the_network_that_is_not_online_gets_in(network: Cluster, tmp_path: Path) -> None:
    bundles, ca = network.folder / "net" / "bundles", network.plan.ca
    a, b = (open_bundle(bundles / f"{name}.tar", tmp_path / name) for name in "ab")
    let_in, words = node(tmp_path / "free", network, *trusting(b.ca, b.key), seconds=300.0)
    assert let_in, words
    let_in, words = node(tmp_path / "unregistered", network, *trusting(ca, keys(tmp_path)))
    assert not let_in and "Failed to initialize" in words, words
    assert not node(tmp_path / "keyless", network, "--root-certificates", str(ca))[0]
    assert not node(tmp_path / "plain", network, "--insecure", seconds=25)[0]
    assert not node(tmp_path / "second", network, *trusting(a.ca, a.key))[0]


def test_a_site_with_another_authority_does_not_connect(network: Cluster, tmp_path: Path) -> None:
    other = make_network(tmp_path / "other", ["a"])
    with pytest.raises(ssl.SSLCertVerificationError):
        answer(network, "GET", "/fedfew", ca=other.ca)
    assert not node(tmp_path, network, *trusting(other.ca, keys(tmp_path)), seconds=25)[0]


def test_control_calls_do_not_pass_the_front_but_reach_the_superlink(network: Cluster) -> None:
    settings = tomllib.loads((network.plan.folder / "flower" / "config.toml").read_text())
    inside = int(settings["superlink"]["fedfew"]["address"].rpartition(":")[2])
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/health"):
        assert answer(network, "POST", path) == 403, path
    context = ssl.create_default_context(cafile=network.plan.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", inside, timeout=60, context=context)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/control/list-nodes", headers={"content-type": "application/x-protobuf"})
        assert connection.getresponse().status not in (403, 404)
    assert answer(network, "POST", "/v1/fleet/pull-messages") == 400


def memory_of(pid: int) -> int:
    """Bytes a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024


def test_who_has_no_key_can_neither_fill_the_front_nor_keep_sites_out(network: Cluster) -> None:
    """30 unfinished bodies of 60 MB, 1,010 half-sent heads from other addresses; a site's key works all the while."""
    (front,) = named(network.started[0].pid, "fedfew.deploy.front.proxy")
    context = ssl.create_default_context(cafile=network.plan.ca)
    held: list[ssl.SSLSocket] = []

    def hold(content: bytes) -> None:
        with contextlib.suppress(OSError):
            elsewhere = (f"127.0.0.{2 + len(held) % 50}", 0)
            plain = socket.create_connection(("127.0.0.1", network.plan.port), timeout=60, source_address=elsewhere)
            end = context.wrap_socket(plain, server_hostname="localhost")
            held.append(end)
            end.settimeout(2)
            end.sendall(content)

    before = memory_of(front)
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 62914560\r\n"
    try:
        for _ in range(30):
            hold(head + b"\r\n" + bytes(1 << 20))
        for number in range(1010):
            hold(head)
            if number % 200 == 0:
                start = monotonic()
                assert answer(network, "GET", "/fedfew") == 200
                assert monotonic() - start < 10
        assert memory_of(front) - before < 64 << 20
        bundle = open_bundle(network.folder / "net" / "bundles" / "b.tar", network.folder / "signed")
        headers = signed(Pair((bundle.folder / "site.pub").read_bytes(), bundle.key.read_bytes()))
        assert answer(network, "POST", "/v1/fleet/get-run", headers=headers) not in (0, 400, 403, 503)
        assert answer(network, "POST", "/v1/fleet/get-run") == 400
    finally:
        for end in held:
            end.close()
    assert "offline" not in network.started[1].errors()


def test_flowers_own_command_line_gets_nothing_through_the_front(network: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    address, ca = f"127.0.0.1:{network.plan.port}", network.plan.ca
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "{address}"\nroot-certificates = "{ca}"\n'
    )
    flwr = Path(sysconfig.get_path("scripts")) / "flwr"
    command = [str(flwr), "supernode", "list", "x", "--format", "json"]
    done = subprocess.run(command, env=flower_environment(home), capture_output=True, text=True, timeout=600)
    assert '"success": true' not in done.stdout


def doctor(*arguments: str) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [*FEDFEW, "deploy", "doctor", *arguments, "--json"], capture_output=True, text=True, timeout=600
    )
    assert "Traceback" not in done.stderr, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (0 if result["ok"] else 2)
    return {check["name"]: check for check in result["checks"]}


def test_the_doctor_passes_a_site_that_belongs(network: Cluster, tmp_path: Path) -> None:
    bundle, data = network.folder / "net" / "bundles" / "b.tar", network.folder / "b.npz"
    found = doctor("client", str(bundle), "--data", str(data), "--state", str(tmp_path / "b"))
    assert all(check["passed"] for check in found.values()), found
    assert set(found) >= {"server", "clock", "versions", "key registered", "images and a training step"}


def test_the_doctor_passes_a_server_that_runs(network: Cluster) -> None:
    found = doctor("server", str(network.plan.folder))
    assert all(check["passed"] for check in found.values()), found
    assert "running" in str(found["port"]["detail"])


def test_the_doctor_finds_a_key_that_is_not_registered(network: Cluster, tmp_path: Path) -> None:
    site = open_bundle(network.folder / "net" / "bundles" / "b.tar", tmp_path / "b")
    shutil.move(keys(tmp_path), site.key)
    found = doctor("client", str(site.folder), "--data", str(network.folder / "b.npz"))
    assert [name for name, check in found.items() if not check["passed"]] == ["key registered"]


def test_at_last_the_run_goes_through(network: Cluster) -> None:
    """The positive control of everything above: the sites that belong come online, and the same server trains."""
    network.site("b")
    network.site("c")
    assert network.started[0].wait(500) == 0, network.words()
    assert [record["cohort"] for record in network.rounds()] == [[0, 1, 2]] * 2
    assert not any(left_out(record) for record in network.rounds())
