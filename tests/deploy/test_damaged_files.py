"""Damaged and hostile files of a network: each reader gives what is in them or a named error, and nothing else."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedfew.core.errors import FedfewError
from fedfew.deploy import audit, joining
from fedfew.deploy.plan import make_network, open_bundle, open_server
from fedfew.deploy.site.ledger import NAME, Ledger, verify
from fedfew.deploy.site.limits import LIMITS, site_terms

VALUES = [b'""', b"-1", b"1e999", b"nan", b"[]", b"{}", b"null", b'"../../x"', b"9" * 30, b'"os:system"', b"\xff\xfe"]
COMPRESSED = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAAAhAw" + "A" * 43 + " a\n"
"""A key of the right kind in a form that `cryptography` does not read."""


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut out or put in, and values replaced."""
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(max(len(content), 1)), rng.random()
        lines = content.split(b"\n")
        line = rng.randrange(len(lines))
        parts = lines[line].split(sep := b" = " if b" = " in lines[line] else b": ")
        if kind < 0.3:
            content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        elif kind < 0.5:
            content = content[:at] + content[at + rng.randint(1, 30) :]
        elif kind < 0.6 or len(parts) < 2:
            content = content[:at] + rng.choice(VALUES) + content[at:]
        else:
            parts[rng.randrange(1, len(parts))] = rng.choice(VALUES)
            lines[line] = sep.join(parts)
            content = b"\n".join(lines)
    return content


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A network with a site that was online, a ledger, an audit log, a request and an admission."""
    plan = make_network(tmp_path / "net", ["a", "b"])
    site = open_bundle(tmp_path / "net" / "bundles" / "a.tar", tmp_path / "a").folder
    (site / LIMITS).write_text('accept = "ask"\nmin_images = 30\n')
    Ledger(site).append(
        [{"decision": "approved", "plan": "3fa91c" * 10}, {"run": "f00d", "received": "train", "bytes": 3}]
    )
    audit.record(plan.folder, "answer", site="a", answer="agreed", versions={"fedfew": "0.1.0"})
    audit.note_seen(plan.folder, {"a": 1000.0, "b": 2000.5})
    joining.request(tmp_path / "c")
    joining.admit(plan, tmp_path / "c.request")
    return tmp_path


def rows(folder: Path) -> object:
    return joining.site_rows(open_server(folder / "net"))


READERS: dict[str, Callable[[Path], object]] = {
    "c.request": lambda folder: joining.read_request(folder / "c.request"),
    "net/admissions/c.admission": lambda folder: joining.accept(folder / "c", folder / "net/admissions/c.admission"),
    "a/site.toml": lambda folder: open_bundle(folder / "a"),
    f"a/{LIMITS}": lambda folder: site_terms(folder / "a"),
    f"a/{NAME}": lambda folder: verify(folder / "a"),
    "net/server/server.toml": rows,
    f"net/server/{audit.NAME}": rows,
    f"net/server/{audit.SEEN}": rows,
    "net/server/keys/a.pub": rows,
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_by_name(name: str, network: Path) -> None:
    path, rng, refused = network / name, random.Random(name), 0
    content = path.read_bytes()
    for _ in range(120):
        path.write_bytes(damaged(content, rng))
        (network / "c" / "site.toml").unlink(missing_ok=True)
        try:
            READERS[name](network)
        except FedfewError as fault:
            refused += fault.code.startswith(("E5", "E1"))
    path.write_bytes(content)
    assert READERS[name](network)
    assert refused or name.endswith((audit.NAME, audit.SEEN))


def test_a_key_in_another_form_is_no_key(network: Path) -> None:
    request = network / "c.request"
    key = next(line for line in request.read_text().splitlines() if line.startswith("key"))
    request.write_text(request.read_text().replace(key, f'key = "{COMPRESSED.strip()}"'))
    with pytest.raises(FedfewError, match="E513"):
        joining.read_request(request)
    (network / "net" / "server" / "keys" / "a.pub").write_text(COMPRESSED)
    with pytest.raises(FedfewError, match="E513"):
        rows(network)


def test_files_that_are_gone_are_named(network: Path) -> None:
    (network / "net" / "server" / "keys" / "b.pub").unlink()
    with pytest.raises(FedfewError, match=r"E505 .*b\.pub"):
        rows(network)
    shutil.rmtree(network / "net" / "server" / "keys")
    with pytest.raises(FedfewError, match="E505"):
        rows(network)


def test_a_line_that_a_crash_cut_off_takes_no_other_line_of_the_audit_log_with_it(tmp_path: Path) -> None:
    audit.record(tmp_path, "created")
    with (tmp_path / audit.NAME).open("ab") as file:
        file.write(b'{"time": "2026-11-19T05')
    audit.record(tmp_path, "admitted", site="a")
    assert [event["event"] for event in audit.events(tmp_path)] == ["created", "admitted"]
