"""How sites come and go: requests, admissions, revocations, renewals, and what a kill in between leaves."""

import contextlib
import io
import json
import signal
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization

from fedfew.config.files import dumps
from fedfew.core.errors import FedfewError
from fedfew.deploy import certificates, joining
from fedfew.deploy.audit import Refusals, events
from fedfew.deploy.certificates import Pair, check_certificate, check_expiry, fingerprint
from fedfew.deploy.doctor import examine_server
from fedfew.deploy.plan import ServerPlan, make_network, open_bundle, open_server
from fedfew.interface.cli import app


def fedfew(*arguments: object) -> dict[str, object]:
    """What a command prints as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(["deploy", *map(str, arguments), "--json"], standalone_mode=False)
    told: dict[str, object] = json.loads(out.getvalue().splitlines()[-1])
    return told


@pytest.fixture
def network(tmp_path: Path) -> ServerPlan:
    return make_network(tmp_path / "clinic", [], host="fed.example.org")


def joined(tmp_path: Path, name: str) -> Path:
    """The folder of a site that has asked to join."""
    joining.request(tmp_path / name)
    return tmp_path / name


def test_a_site_joins_by_two_files_without_a_secret(tmp_path: Path) -> None:
    fedfew("init", tmp_path / "clinic", "--server", "fed.example.org")
    asked = fedfew("join", tmp_path / "north")
    again = fedfew("join", tmp_path / "north")
    assert asked == again, "the key is made once"
    key = (tmp_path / "north" / "site.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "north" / "site.key").stat().st_mode) == 0o600
    with pytest.raises(FedfewError, match="E513"):
        fedfew("admit", asked["request"], tmp_path / "clinic", "--fingerprint", "0000 " * 8)
    admitted = fedfew("admit", asked["request"], tmp_path / "clinic", "--fingerprint", asked["fingerprint"])
    for path in (Path(str(asked["request"])), Path(str(admitted["admission"]))):
        assert b"PRIVATE" not in path.read_bytes()
    assert not any(key in path.read_bytes() for path in (tmp_path / "clinic").rglob("*") if path.is_file())
    with pytest.raises(FedfewError, match="E513"):
        fedfew("join", tmp_path / "north", admitted["admission"], "--fingerprint", "0" * 32)
    fedfew("join", tmp_path / "north", admitted["admission"], "--fingerprint", admitted["authority"])
    plan, site = open_server(tmp_path / "clinic"), open_bundle(tmp_path / "north")
    assert (site.name, site.number, site.network, site.host) == ("north", 0, plan.network, "fed.example.org")
    assert site.ca.read_bytes() == plan.ca.read_bytes() and plan.members == ("north",)
    row = fedfew("sites", tmp_path / "clinic")["sites"][0]  # type: ignore[index]
    assert (row["state"], row["fingerprint"]) == ("never seen", asked["fingerprint"])
    assert [event["event"] for event in events(plan.folder)] == ["created", "admitted"]


def test_a_request_that_was_changed_is_refused(network: ServerPlan, tmp_path: Path) -> None:
    joined(tmp_path, "north")
    joined(tmp_path, "south")
    north, south = ((tmp_path / f"{name}.request").read_text() for name in ("north", "south"))
    line = next(line for line in south.splitlines() if line.startswith("key"))
    own = next(line for line in north.splitlines() if line.startswith("key"))
    for text in (north.replace(own, line), north.replace('"north"', '"east"'), "site = 3", "\0", north + "x = 1\n"):
        (tmp_path / "odd.request").write_text(text)
        with pytest.raises(FedfewError, match="E513"):
            joining.admit(network, tmp_path / "odd.request")
    assert open_server(network.folder).sites == ()


def test_numbers_stay_when_sites_come_and_go(network: ServerPlan, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        joined(tmp_path, name)
        joining.admit(network, tmp_path / f"{name}.request")
    joining.revoke(network, "b")
    plan = open_server(network.folder)
    assert plan.members == ("a", "c") and sorted(plan.numbers_of_keys().values()) == [0, 2]
    assert plan.asked("") == ("a", "c") and plan.asked("c, a") == ("c", "a")
    for only in ("b", "x"):
        with pytest.raises(FedfewError, match="E103"):
            plan.asked(only)
    with pytest.raises(FedfewError, match="E103"):
        joining.revoke(network, "b")
    (tmp_path / "b" / "site.key").unlink()  # a new key for the old name
    joining.request(tmp_path / "b")
    joining.admit(network, tmp_path / "b.request")
    plan = open_server(network.folder)
    assert plan.sites == ("a", "b", "c") and plan.members == plan.sites
    assert fingerprint(plan.public_key("b").read_bytes()) == fingerprint((tmp_path / "b" / "site.pub").read_bytes())


def test_another_key_for_a_name_and_another_name_for_a_key_are_refused(network: ServerPlan, tmp_path: Path) -> None:
    joined(tmp_path, "a")
    joining.admit(network, tmp_path / "a.request")
    first = joining.admit(network, tmp_path / "a.request")
    assert open_server(network.folder).sites == ("a",), "admitting twice changes nothing"
    (tmp_path / "other").mkdir()
    joining.request(tmp_path / "other" / "a")
    with pytest.raises(FedfewError, match="E506"):
        joining.admit(network, tmp_path / "other" / "a.request")
    with pytest.raises(FedfewError, match="E506"):
        joining.accept(tmp_path / "other" / "a", first)
    joining.request(tmp_path / "a", "z")
    with pytest.raises(FedfewError, match="E506"):
        joining.admit(network, tmp_path / "a.request")


def test_a_new_bundle_for_an_old_network_keeps_its_authority_and_keys(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "n", ["a", "b"])
    before = {
        path.name: path.read_bytes() for path in plan.folder.rglob("*") if path.suffix in (".crt", ".key", ".pub")
    }
    make_network(tmp_path / "n", ["a", "b", "east"])
    after = {path.name: path.read_bytes() for path in plan.folder.rglob("*") if path.suffix in (".crt", ".key", ".pub")}
    assert after == before | {"east.pub": after["east.pub"]}
    site = open_bundle(tmp_path / "n" / "bundles" / "east.tar")
    assert (site.number, site.network) == (2, plan.network) and open_server(plan.folder).sites == ("a", "b", "east")


def test_renewal_keeps_keys_and_is_trusted_with_the_old_authority(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "n", [], days=30)
    joined(tmp_path, "a")
    joining.accept(tmp_path / "a", joining.admit(plan, tmp_path / "a.request"))
    (tmp_path / "a" / "ledger.jsonl").write_text("kept\n")
    with pytest.raises(FedfewError, match=r"E514.*expires in 29 days"):
        check_expiry(plan.certificate, plan.ca)
    warned = {check.name for check in examine_server(plan.folder) if check.passed and check.remedy}
    assert warned == {"certificate", "authority", "secrets of others"}
    old, keys = plan.ca.read_bytes(), (plan.key.read_bytes(), (plan.folder / "ca.key").read_bytes())
    (admission,) = joining.renew(plan, 400)
    assert keys == (plan.key.read_bytes(), (plan.folder / "ca.key").read_bytes())
    check_expiry(plan.certificate, plan.ca)
    (tmp_path / "old.crt").write_bytes(old)
    check_certificate(plan.certificate, tmp_path / "old.crt")
    ssl.create_default_context(cafile=str(plan.ca)).load_cert_chain(plan.certificate, plan.key)
    site = joining.accept(tmp_path / "a", admission)
    assert site.ca.read_bytes() == plan.ca.read_bytes() != old
    assert (tmp_path / "a" / "ledger.jsonl").read_text() == "kept\n"


def test_a_second_authority_cannot_hide_behind_the_fingerprint_of_the_first(
    network: ServerPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS trusts every certificate of a file; the fingerprint that people compare is of the first."""
    site, evil = joined(tmp_path, "a"), certificates.authority("evil", 4000)
    admission = joining.admit(network, tmp_path / "a.request")
    honest, own = admission.read_text(), network.ca.read_text()
    own_key = serialization.load_pem_private_key((network.folder / "ca.key").read_bytes(), None).public_key()
    evil_key = serialization.load_pem_private_key(evil.private, None)
    forged = certificates._blank(certificates._name("x"), certificates._name("x"), own_key, 4000)  # type: ignore[arg-type]
    unsigned = forged.sign(evil_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
    for ca in (own + evil.public.decode(), own + "\n# \n" + evil.public.decode(), unsigned.decode()):
        admission.write_text(honest.replace(dumps({"ca": own}), dumps({"ca": ca})))
        assert admission.read_text() != honest
        with pytest.raises(FedfewError, match="E513"):
            joining.accept(site, admission)
        assert not (site / "ca.crt").exists()
    admission.write_text(honest)
    plan = joining.accept(site, admission)
    newer = certificates.renewed_authority(Pair(own.encode(), (network.folder / "ca.key").read_bytes()), 4000)
    for told, taken in ((newer.public + evil.public, False), (unsigned, False), (newer.public, True)):
        answer = httpx.Response(200, json={"ca": told.decode()})
        monkeypatch.setattr(httpx, "get", lambda *_, answer=answer, **__: answer)
        assert joining.take_up_authority(plan) is taken
        assert plan.ca.read_bytes() == (newer.public if taken else own.encode())


KILLED = """
import os, sys
from pathlib import Path
from fedfew.core import storage
from fedfew.deploy import certificates, joining
from fedfew.deploy.plan import open_server
write, left = storage.write_atomically, [int(sys.argv[1])]
def dying(path, content):
    if not left[0]:
        path.with_name(f".{path.name}.tmp").write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), 9)
    left[0] -= 1
    write(path, content)
joining.write_atomically = dying
plan = open_server(Path(sys.argv[2]))
joining.admit(plan, Path(sys.argv[3])) if len(sys.argv) > 3 else joining.renew(plan, 700)
"""


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("command", ["admit", "renew"])
def test_a_kill_leaves_a_network_that_works(tmp_path: Path, writes: int, command: str) -> None:
    plan = make_network(tmp_path / "n", ["a"])
    site = joined(tmp_path, "b")
    words = [str(writes), str(plan.folder), *([f"{site}.request"] if command == "admit" else [])]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL or writes == 3, done.stderr
    found = open_server(plan.folder)
    assert found.members in (("a",), ("a", "b")) and len(found.numbers_of_keys()) == len(found.members)
    check_certificate(found.certificate, found.ca)
    ssl.create_default_context(cafile=str(found.ca)).load_cert_chain(found.certificate, found.key)
    joining.accept(site, joining.admit(plan, tmp_path / "b.request"))
    joining.renew(plan, 700)
    assert open_server(plan.folder).members == ("a", "b") and (plan.folder / "ca.key").exists()


def test_refusals_are_logged_once_a_minute_for_an_address(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path)
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"):
        refusals.add(address, "unknown key")
    assert [event["address"] for event in events(tmp_path)] == ["10.0.0.1", "10.0.0.2"]
