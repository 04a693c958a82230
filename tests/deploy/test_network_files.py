"""Certificates, bundles, folders, the front and the supervisor: what of a network needs no Flower process."""

import io
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from PIL import Image
from tests.deploy.cluster import alive, eventually
from tests.runtime.tiny_run import TINY

from fedfew.config.files import dumps
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.deploy import certificates, processes
from fedfew.deploy.doctor import examine_server
from fedfew.deploy.plan import make_network, open_bundle, open_server
from fedfew.deploy.processes import ManagedProcess, Supervisor, check_port, flower_environment, free_ports
from fedfew.deploy.server.job import Job
from fedfew.deploy.site.images import count_images, load_images, read_npz
from fedfew.deploy.versions import check_versions, versions
from fedfew.interface.deploy.site_status import NodeLog
from fedfew.training import sgd


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(FedfewError) as fault:
        action()
    assert fault.value.remedy
    return fault.value.code


def test_a_network_has_keys_for_its_owner_alone_and_is_not_overwritten(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "clinic", ["a", "b"], host="fed.example.org")
    secret = [plan.key, plan.folder / "ca.key", *(tmp_path / "clinic" / "bundles").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600} and len(secret) == 4
    assert open_server(tmp_path / "clinic") == open_server(plan.folder) == plan
    assert code_of(lambda: make_network(tmp_path / "clinic", ["a"])) == "E301"
    before = plan.key.read_bytes()
    again = make_network(tmp_path / "clinic", ["a", "b"], force=True)
    assert again.network != plan.network and plan.key.read_bytes() != before


def test_the_server_certificate_is_for_its_names_and_for_servers(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "n", ["a"], host="fed.example.org")
    certificate = x509.load_pem_x509_certificate(plan.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
    ssl.create_default_context(cafile=plan.ca).load_cert_chain(plan.certificate, plan.key)
    certificates.check_certificate(plan.certificate, plan.ca)
    assert certificates.check_certificate(plan.ca) > certificate.not_valid_before_utc


def test_expired_and_foreign_certificates_are_refused(tmp_path: Path) -> None:
    old = make_network(tmp_path / "old", ["a"], days=-1)
    new = make_network(tmp_path / "new", ["a"])
    assert code_of(lambda: certificates.check_certificate(old.certificate, old.ca)) == "E505"
    assert code_of(lambda: certificates.check_certificate(new.certificate, old.ca)) == "E505"
    assert code_of(lambda: certificates.check_certificate(tmp_path / "none.crt")) == "E505"


@pytest.mark.parametrize("sites", [["a", "a"], ["../x"], ["a b"], [""]])
def test_odd_names_of_sites_are_refused(tmp_path: Path, sites: list[str]) -> None:
    assert code_of(lambda: make_network(tmp_path / "n", sites)) == "E103"
    assert not (tmp_path / "n").exists()


def test_a_bundle_unpacks_once_and_only_for_its_network(tmp_path: Path) -> None:
    make_network(tmp_path / "one", ["a", "b"])
    make_network(tmp_path / "two", ["a"])
    site = open_bundle(tmp_path / "one" / "bundles" / "b.tar", tmp_path / "here")
    assert (site.name, site.number, site.sites) == ("b", 1, 2)
    assert stat.S_IMODE(site.key.stat().st_mode) == 0o600
    certificates.check_site_key(site.key)
    assert (
        open_bundle(tmp_path / "one" / "bundles" / "b.tar", tmp_path / "here") == site == open_bundle(tmp_path / "here")
    )
    assert code_of(lambda: open_bundle(tmp_path / "two" / "bundles" / "a.tar", tmp_path / "here")) == "E506"
    assert code_of(lambda: open_bundle(tmp_path / "one" / "bundles" / "a.tar", tmp_path / "here")) == "E506"
    site.key.chmod(0o644)
    assert code_of(lambda: certificates.check_site_key(site.key)) == "E505"


@pytest.mark.parametrize("name", ["server.toml", "site.toml"])
def test_a_key_that_nobody_knows_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    plan = make_network(tmp_path / "n", ["a"])
    site = open_bundle(tmp_path / "n" / "bundles" / "a.tar", tmp_path / "a")
    folder = plan.folder if name == "server.toml" else site.folder
    (folder / name).write_text((folder / name).read_text() + "prot = 9093\n")
    with pytest.raises(FedfewError, match=r"E511.*prot"):
        (open_server if name == "server.toml" else open_bundle)(folder)


def tar_of(path: Path, names: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
            archive.addfile(entry, io.BytesIO(content))
    return path


def sparse(path: Path, files: dict[str, bytes]) -> Path:
    """A bundle of some kilobytes whose key is said to be 64 GB with one hole in it."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if name == "site.key":
                holes = {"map": f"0,{len(content)}", "size": str(64 << 30), "name": name}
                entry.pax_headers = {f"GNU.sparse.{key}": value for key, value in holes.items()}
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_a_bundle_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    whole = dict.fromkeys(("site.toml", "ca.crt", "site.key", "site.pub"), b"")
    odd = [
        tar_of(tmp_path / "1.tar", {"../site.toml": b""}),
        tar_of(tmp_path / "2.tar", whole | {"/tmp/x": b""}),
        tar_of(tmp_path / "3.tar", whole, tarfile.SYMTYPE),
        tar_of(tmp_path / "4.tar", whole),
        tar_of(tmp_path / "5.tar", whole | {"site.toml": b"port = 'x'"}),
        tmp_path / "none.tar",
    ]
    (tmp_path / "6.tar").write_bytes(b"no archive")
    make_network(tmp_path / "n", ["a"])
    real = tmp_path / "n" / "bundles" / "a.tar"
    with tarfile.open(real) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    two, odd_name = files["ca.crt"] * 2, files["site.toml"].replace(b'"a"', b'"../a"')
    odd += [tar_of(tmp_path / "7.tar", files | {"site.toml": odd_name}), sparse(tmp_path / "8.tar", files)]
    assert code_of(lambda: open_bundle(tar_of(tmp_path / "9.tar", files | {"ca.crt": two}), tmp_path / "x")) == "E513"
    for path in [*odd, tmp_path / "6.tar"]:
        assert code_of(lambda path=path: open_bundle(path, tmp_path / "site")) == "E511"  # type: ignore[misc]
    assert not (tmp_path / "site").exists()


def test_images_of_a_site(tmp_path: Path) -> None:
    pixels = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8)
    np.savez(tmp_path / "grey.npz", images=pixels, labels=np.zeros(3))
    assert load_images(tmp_path / "grey.npz", (1, 8, 8)).numpy().tolist() == pixels[:, None].tolist()
    assert "3 images" in count_images(tmp_path / "grey.npz")
    assert code_of(lambda: load_images(tmp_path / "grey.npz", (3, 8, 8))) == "E417"
    np.savez(tmp_path / "float.npz", images=pixels.astype(np.float32))
    np.savez(tmp_path / "other.npz", pictures=pixels)
    np.savez(tmp_path / "empty.npz", images=pixels[:0])
    np.savez(tmp_path / "objects.npz", images=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("no")
    for name in ("float", "other", "objects", "text"):
        assert code_of(lambda name=name: read_npz(tmp_path / f"{name}.npz")) == "E509"  # type: ignore[misc]
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 28, 28), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:  # 713 TiB, it says
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + b"few bytes")
    assert code_of(lambda: read_npz(tmp_path / "claim.npz")) == "E509"
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((80_000, 32, 32), np.uint8))
    assert code_of(lambda: read_npz(tmp_path / "bomb.npz")) == "E205"
    for place in (tmp_path / "empty.npz", tmp_path / "none", tmp_path / "none.npz"):
        assert code_of(lambda place=place: count_images(place)) == "E509"  # type: ignore[misc]
    (tmp_path / "folder").mkdir()
    assert code_of(lambda: count_images(tmp_path / "folder")) == "E509"
    (tmp_path / "folder" / "note.doc").write_text("the images are elsewhere")
    assert code_of(lambda: count_images(tmp_path / "folder")) == "E509"
    Image.fromarray(np.full((9, 9, 3), 7, np.uint8)).save(tmp_path / "folder" / "x.png")
    assert "2 files" in count_images(tmp_path / "folder")
    assert load_images(tmp_path / "folder", (3, 8, 8)).unique().tolist() == [7]


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


def pids(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_a_killed_process_is_started_again_and_closing_ends_the_whole_family(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    process = supervisor.add(
        "family", [sys.executable, "-c", FAMILY, str(tmp_path / "pids")], flower_environment(tmp_path)
    )
    assert eventually(lambda: len(pids(tmp_path / "pids")) == 2)
    first = pids(tmp_path / "pids")
    os.kill(first[0], signal.SIGKILL)
    assert eventually(lambda: pids(tmp_path / "pids") != first and len(pids(tmp_path / "pids")) == 2)
    assert process.starts == 2 and not alive(first)
    second = pids(tmp_path / "pids")
    supervisor.close()
    assert not alive(second)


OWNER = """
import sys, time
from pathlib import Path
from fedfew.deploy.processes import Supervisor, flower_environment
place = Path(sys.argv[1])
Supervisor(place).add("family", [sys.executable, "-c", sys.argv[2], str(place / "pids")], flower_environment(place))
time.sleep(600)
"""


def test_a_log_has_times_and_no_colours(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    code = "print(chr(27) + '[92mINFO' + chr(27) + '[0m: ready'); raise SystemExit(3)"
    process = supervisor.add("one", [sys.executable, "-c", code], flower_environment(tmp_path), restart=False)
    assert eventually(lambda: not process.running, 30)
    supervisor.close()
    (line,) = process.log.read_text().splitlines()
    assert json.loads(line)["text"] == "INFO: ready" == process.log_tail()
    assert datetime.now(UTC) - datetime.fromisoformat(json.loads(line)["time"]) < timedelta(minutes=1)


def test_a_folder_with_the_name_of_the_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fedfew").mkdir()
    (tmp_path / "fedfew" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    supervisor = Supervisor(tmp_path / "logs")
    command = [sys.executable, "-c", "import fedfew.deploy.versions as v; print(v.build())"]
    process = supervisor.add("one", command, flower_environment(tmp_path), restart=False)
    assert eventually(lambda: not process.running, 30)
    supervisor.close()
    assert versions()["build"] in process.log.read_text()


def test_nothing_survives_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), FAMILY], start_new_session=True)
    try:
        assert eventually(lambda: len(pids(tmp_path / "pids")) == 2, 60)
    finally:
        owner.kill()
        owner.wait()
    assert eventually(lambda: not alive(pids(tmp_path / "pids")))


TALKER = "import time\nfor n in range(10**6):\n    print(f'line {n:09d}', flush=True)\n    time.sleep(0.001)"


def test_a_long_log_is_put_aside_while_the_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_CAP", 3_000)
    supervisor = Supervisor(tmp_path)
    process = supervisor.add("talker", [sys.executable, "-c", TALKER], flower_environment(tmp_path))
    aside = tmp_path / "talker.log.1"
    try:
        assert eventually(aside.exists)
        first = aside.read_text().splitlines()[0]
        assert eventually(lambda: aside.exists() and aside.read_text().splitlines()[:1] not in ([], [first]))
        assert eventually(lambda: process.log.stat().st_size > 0)
        assert process.log.read_bytes()[:1] in (b"{", b"")  # emptied, not left with a hole
        assert process.running and process.starts == 1
    finally:
        supervisor.close()
    assert {path.name for path in tmp_path.glob("talker*")} == {"talker.log", "talker.log.1"}


def test_a_site_tells_when_its_state_changes_and_not_again(tmp_path: Path) -> None:
    log = tmp_path / "node-a.log"
    log.write_text("SuperNode ID: 1\n")  # of a start before this one
    node = ManagedProcess("node-a", [sys.executable, "-c", "input()"], flower_environment(tmp_path), log)
    watch = NodeLog(node, log.stat().st_size)

    def said(text: str) -> str:
        with log.open("a") as file:
            file.write(text)
        return watch.news()

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as node.process:
        node.starts = 1
        assert (watch.news(), watch.news()) == ("connecting", "")
        assert said("Failed to initialize the connection: no such key\n").startswith("refused by the server: Failed")
        assert said("Connection attempt failed, retrying\n") == "the server cannot be reached; trying again"
        assert said("Connection successful after 2 tries\n") == "connecting"
        assert (said("SuperNode ID: 2"), said("34\n")) == ("", "online")
        assert said("Connection attempt failed, retrying\n") == "the server cannot be reached; trying again"
        assert said("Connection successful after 2 tries\n") == "online"
        assert said("received\n" * 5_000) == ""
        log.write_text("")  # put aside
        assert said("received\n") == ""
        assert node.process.stdin is not None
        node.process.stdin.write(b"\n")
    assert watch.news() == "offline; starting again"
    node.starts = 2
    assert (watch.news(), said("SuperNode ID: 3\n")) == ("connecting", "offline; starting again")


def test_the_status_follows_the_servers_answers_whatever_the_log_said_last(tmp_path: Path) -> None:
    log, contact = tmp_path / "node-a.log", tmp_path / "contact"
    log.write_text("Connection attempt failed, retrying\n")
    node = ManagedProcess("node-a", [], {}, log, starts=1)
    watch = NodeLog(node, contact=contact)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as node.process:
        assert watch.news() == "the server cannot be reached; trying again"
        contact.touch()
        assert watch.news() == "online"
        os.utime(contact, (1e9, 1e9))
        assert watch.news() == "the server cannot be reached; trying again"
        contact.touch()
        assert (watch.news(), watch.news()) == ("online", "")
        with log.open("a") as file:
            file.write("ERROR :     Client error '400 ' for url 'https://x/v1/fleet/pull-messages'\n")
        assert watch.news() == "", "an answer just came"
        os.utime(contact, (1e9, 1e9))
        assert "its key was revoked" in watch.news()
        contact.touch()
        assert watch.news() == "online"
        assert node.process.stdin is not None
        node.process.stdin.write(b"\n")
    assert watch.news() == "offline; starting again"


def test_versions_fit_within_a_minor_release_and_equal_numbers_must_be_one_build() -> None:
    ours = versions()
    major, minor = ours["fedfew"].split(".")[:2]
    check_versions(ours)
    check_versions(ours | {"fedfew": f"{major}.{minor}.99", "build": "another", "torch": ours["torch"] + "+cu128"})
    for other in ({"build": "another"}, {"fedfew": f"{major}.{int(minor) + 1}.0"}, {"torch": "1.0"}, {"flwr": "0.9"}):
        with pytest.raises(FedfewError) as fault:
            check_versions(ours | other)
        assert (fault.value.code, fault.value.where) == ("E417", "versions")


def test_a_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert code_of(lambda: check_port("127.0.0.1", other.getsockname()[1])) == "E504"
    assert len(set(free_ports(5))) == 5


def test_flower_is_told_to_stay_at_home(tmp_path: Path) -> None:
    environment = flower_environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0" and environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["FLWR_HOME"] == str(tmp_path)


def test_the_doctor_trains_for_one_pass_and_repeats_no_warmup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {"name": "mini-mnist", "validation": 50, "test": 100}
    chosen = {"dataset": images, "method": {"name": "fedfew", "warmup": 300}, "fleet": {"kind": "flower"}}
    plan = make_network(tmp_path / "n", ["a", "b"], config=dumps(TINY | {"clients": 2} | chosen))
    passes: list[int] = []
    real = sgd.descend

    def counted(network: Network, how: sgd.LocalSGD, *rest: Any) -> int:
        passes.append(how.epochs)
        return real(network, how, *rest)

    monkeypatch.setattr("fedfew.training.supervised.descend", counted)
    findings = {found.name: found for found in examine_server(plan.folder)}
    step = findings["data and a training step"]
    assert step.passed and "σ is finite" in step.detail, step
    assert passes == [1]


def test_a_job_tells_its_supervisor_how_it_ended(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "job"), "run", "network", {})
    job.prepare()
    assert job.ended() == (None, "it left no message")
    job.end(traceback="line 1")
    assert job.ended() == (None, "line 1")
    job.end(FedfewError("E503", "network", "offline: a, b", "Start them"))
    fault, _ = job.ended()
    assert str(fault) == "E503 network: offline: a, b. Start them"
