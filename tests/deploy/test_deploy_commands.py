"""fedfew deploy on the command line: what it writes and prints, what it refuses, and the doctor's failures."""

import contextlib
import io
import json
import os
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pytest
from tests.config.test_tables import drawn
from tests.deploy.cluster import FEDFEW

from fedfew import from_arrays, predict
from fedfew import run as train
from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked
from fedfew.deploy.audit import events
from fedfew.deploy.doctor import Check, examine_client, examine_server
from fedfew.deploy.plan import STATUS, ServerPlan, make_network, open_bundle, open_server
from fedfew.deploy.processes import free_ports
from fedfew.deploy.versions import versions
from fedfew.interface.cli import app
from fedfew.interface.deploy.printouts import next_steps
from fedfew.methods.fedmoments.share import Share
from fedfew.runs.run import Run


def fedfew(*arguments: object) -> str:
    """What a command prints; its fault is raised, which the entry point would turn into a line and status 2."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(["deploy", *map(str, arguments)], standalone_mode=False)
    return out.getvalue()


def test_a_missing_extra_is_named_and_ends_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'flwr' else found(name, package)\n"
    )
    command = [*FEDFEW, "deploy", "init", str(tmp_path / "x"), "--sites", "a"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2 and "E112" in done.stderr and ".[flower]" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "x").exists()


def test_init_prints_the_next_commands_and_writes_a_config_for_its_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedfew("init", tmp_path / "clinic", "--sites", "north,south", "--server", "fed.example.org", "--json")
    text = (tmp_path / "clinic" / "server" / "config.toml").read_text()
    assert "clients = 2" in text and "participation = 1.0" in text and 'kind = "flower"' in text
    with pytest.raises(FedfewError, match="E301"):
        fedfew("init", tmp_path / "clinic", "--sites", "north,south")
    steps = next_steps(open_server(tmp_path / "clinic"))
    assert f"fedfew deploy server {tmp_path / 'clinic'}" in steps
    assert "fedfew deploy client north.tar --data FOLDER" in steps


def test_printouts(tmp_path: Path) -> None:
    make_network(tmp_path / "n", ["a"], host="fed.example.org", port=9443)
    nginx = fedfew("server", tmp_path / "n", "--nginx")
    assert "listen 9443 ssl" in nginx and "proxy_pass https://127.0.0.1:9444" in nginx and "return 403" in nginx
    assert nginx.count("{") == nginx.count("}")
    unit = fedfew("server", tmp_path / "n", "--systemd")
    assert "Restart=always" in unit and f"deploy server {tmp_path / 'n' / 'server'}" in unit
    unit = fedfew("client", tmp_path / "n" / "bundles" / "a.tar", "--data", "/data", "--systemd")
    assert "Restart=always" in unit and "--data /data" in unit
    unit = fedfew("client", tmp_path / "n" / "bundles" / "a.tar", "--data", "/my scans/100 % $x", "--systemd")
    assert '--data "/my scans/100 %% $$x"\n' in unit
    strict = ("--unit", "image", "--min-noise", "1.5", "--max-epsilon", "8")
    unit = fedfew("client", tmp_path / "n" / "bundles" / "a.tar", "--data", "/data", *strict, "--systemd")
    (command,) = (line.split("=", 1)[1].split() for line in unit.splitlines() if line.startswith("ExecStart="))
    assert Path(command[0]).is_file() and command[-6:] == ["--min-noise", "1.5", *strict[:2], "--max-epsilon", "8.0"]


PLACES = ("n", "m", "nowhere", "nowhere.tar", "nothing", "n/bundles/a.tar")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("server nowhere", "E511"),
        ("client nowhere.tar --data x", "E511"),
        ("client n/bundles/a.tar", "E509"),
        ("client n/bundles/a.tar --data nothing", "E509"),
        ("init m --sites a,a", "E103"),
        ("init m --sites a --config qick", "E101"),
        ("server n --set rouns=3", "E104"),
        ("local quick --set fleet.sits=3", "E104"),
    ],
)
def test_bad_input_has_a_code(tmp_path: Path, line: str, code: str) -> None:
    make_network(tmp_path / "n", ["a"], config='[method]\nname = "fedmix"\n[dataset]\nname = "mini-mnist"\n')
    with pytest.raises(FedfewError) as fault:
        fedfew(*(tmp_path / word if word in PLACES else word for word in line.split()))
    assert fault.value.code == code
    assert not (tmp_path / "m").exists()


# --- the doctor ---


class Front(BaseHTTPRequestHandler):
    """What the front says about itself."""

    about: dict[str, Any]

    def do_GET(self) -> None:
        content = json.dumps(self.about).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


@pytest.fixture
def network(tmp_path: Path) -> ServerPlan:
    np.savez(tmp_path / "a.npz", images=np.zeros((20, 28, 28), np.uint8))
    return make_network(tmp_path / "n", ["a"], port=free_ports(1)[0])


@pytest.fixture
def told(network: ServerPlan) -> Iterator[dict[str, Any]]:
    """A server that shows this network's certificate and tells what is in the dict."""
    about: dict[str, Any] = versions() | {"network": network.network, "time": time()}
    handler = type("Told", (Front,), {"about": about})
    server = HTTPServer(("127.0.0.1", network.port), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(network.certificate, network.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield about
    server.shutdown()
    server.server_close()


def failures(findings: Iterator[Check], *, without: str = "key registered") -> dict[str, str]:
    """Name → code of what failed. Going online takes a real server and is tested with one."""
    return {f.name: f.detail.split()[0] for f in findings if not f.passed and f.name != without}


def look(network: ServerPlan, tmp_path: Path, data: str = "a.npz") -> Iterator[Check]:
    return examine_client(tmp_path / "n" / "bundles" / "a.tar", tmp_path / data, tmp_path / "state")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.deploy.doctor._ONLINE", 0.0)


def test_the_doctor_finds_clock_and_versions(network: ServerPlan, told: dict[str, Any], tmp_path: Path) -> None:
    assert failures(look(network, tmp_path)) == {}
    told.update(time=time() - 300)
    assert failures(look(network, tmp_path)) == {"clock": "E510"}
    told.update(time=time(), torch="1.0")
    assert failures(look(network, tmp_path)) == {"versions": "E417"}


class Proxy(BaseHTTPRequestHandler):
    """Connects to where it is asked to, and counts."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as other:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: other, other: self.connection}
            while True:
                for end in select.select(list(ends), [], [], 10)[0]:
                    if not (content := end.recv(1 << 16)):
                        return
                    ends[end].sendall(content)

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


def test_the_doctor_goes_through_the_proxy_as_the_client_does(
    network: ServerPlan, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (Proxy,), {"asked": asked}))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert failures(look(network, tmp_path)) == {} and asked == [f"127.0.0.1:{network.port}"]
    proxy.shutdown()
    proxy.server_close()
    assert failures(look(network, tmp_path)) == {"server": "E510"}


def test_the_doctor_believes_a_client_that_runs(network: ServerPlan, told: dict[str, Any], tmp_path: Path) -> None:
    with locked(open_bundle(tmp_path / "n" / "bundles" / "a.tar", tmp_path / "state").folder):
        for status, fault in (("online", {}), ("refused by the server: no such key", {"key registered": "E510"})):
            (tmp_path / "state" / STATUS).write_text(status)
            assert failures(look(network, tmp_path), without="") == fault


def test_the_doctor_finds_another_authority(network: ServerPlan, told: dict[str, Any], tmp_path: Path) -> None:
    other = make_network(tmp_path / "other", ["a"], port=network.port)
    findings = examine_client(tmp_path / "other" / "bundles" / "a.tar", tmp_path / "a.npz", tmp_path / "elsewhere")
    assert other.network != network.network and failures(findings) == {"server": "E505"}


def test_the_doctor_finds_missing_images(network: ServerPlan, told: dict[str, Any], tmp_path: Path) -> None:
    assert failures(look(network, tmp_path, "none.npz")) == {"images and a training step": "E509"}
    (tmp_path / "folder").mkdir()
    assert failures(look(network, tmp_path, "folder")) == {"images and a training step": "E509"}


def test_the_doctor_refuses_one_image_and_shows_the_limits(
    network: ServerPlan, told: dict[str, Any], tmp_path: Path
) -> None:
    np.savez(tmp_path / "one.npz", images=np.zeros((1, 28, 28), np.uint8))
    assert failures(look(network, tmp_path, "one.npz")) == {"images and a training step": "E417"}
    (tmp_path / "state" / "limits.toml").write_text("min_images = 1")
    checks = {check.name: check for check in look(network, tmp_path, "one.npz")}
    assert checks["images and a training step"].passed
    assert "min_images 1, min_class 5" in checks["limits"].detail


def test_the_doctor_finds_what_is_wrong_at_a_server(tmp_path: Path) -> None:
    config = '[dataset]\nname = "mini-mnist"\n[model]\nname = "cnn"\n'
    plan = make_network(tmp_path / "n", ["a"], days=-1, port=free_ports(1)[0], config=config)
    plan.key.chmod(0o644)
    plan.public_key("a").unlink()
    faults = dict.fromkeys(("certificate", "authority", "private key", "site keys"), "E505")
    assert failures(examine_server(plan.folder)) == faults
    with socket.socket() as other:
        other.bind(("127.0.0.1", plan.port))
        other.listen()
        assert failures(examine_server(plan.folder))["port"] == "E504"
    (plan.folder / "config.toml").write_text('[dataset]\nname = "no-such"\n')
    assert failures(examine_server(plan.folder))["data and a training step"] == "E105"
    assert failures(examine_server(tmp_path)) == {"settings": "E511"}


def test_the_model_is_made_again_without_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.methods.fedmoments.server.judged_share", lambda *_: Share(1.0, 1.0, 1.0))
    clients = [drawn(80, 10 + k, (k, (k + 1) % 4))[0] for k in range(3)] + [drawn(80, 20)[0][:, ::-1].copy()]
    config = from_arrays(drawn(24, 1), clients, drawn(300, 2), path=tmp_path / "x")
    plan = make_network(tmp_path / "net", ["a", "b", "c", "odd"])
    chosen = {"rounds": 4, "fleet.kind": "inline"}
    run = train(config, chosen | {"method.name": "fedmoments"}, out=tmp_path / "run", progress=False)
    where = (tmp_path / "net", "--run")
    about = json.loads(fedfew("forget", "odd", *where, run.path, "--json"))
    assert about["model_before"] == run.summary["model_sha256"] != about["model"]
    assert about["sites_left"] == ["a", "b", "c"] and about["accuracy_before"] == pytest.approx(
        run.accuracy(), abs=1e-5
    )
    probabilities = predict(tmp_path / "run-without-odd" / "model.safetensors", drawn(300, 2)[0])
    right = float((probabilities.argmax(1).numpy() == drawn(300, 2)[1]).mean())
    assert right == pytest.approx(about["accuracy"], abs=0.03)
    assert [event["event"] for event in events(plan.folder)] == ["forgotten"]
    assert Run.open(run.path).summary["model_sha256"] == about["model_before"], "the run stays as it is"
    with pytest.raises(FedfewError, match="E103"):
        fedfew("forget", "nobody", *where, run.path)
    other = train(config, chosen | {"rounds": 1, "method.name": "fedavg"}, out=tmp_path / "other", progress=False)
    with pytest.raises(FedfewError, match="E515"):
        fedfew("forget", "odd", *where, other.path)
