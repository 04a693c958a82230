"""How sites come and go: a site asks to join, the server admits or revokes it, certificates are renewed.

A site's private key is made at the site and never leaves it; what travels are two small text files, and what must not
be forged in them, a key each, has a fingerprint to read over the telephone. Every file is replaced as a whole and
server.toml last, so that a command that is killed leaves the network as it was or as it should be.
"""

import ssl
import tomllib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import httpx

from fedfew.config.files import dumps
from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked, write_atomically
from fedfew.deploy import certificates
from fedfew.deploy.audit import events, last_seen, record
from fedfew.deploy.certificates import Pair, fingerprint
from fedfew.deploy.plan import (
    SERVER,
    SITE,
    ServerPlan,
    SitePlan,
    check_names,
    open_bundle,
    open_server,
    plan_of,
    settings,
    write_new,
)
from fedfew.deploy.roster import sign_member

_ONLINE = 30.0
"""Seconds after which a site that is silent counts as offline: it asks every three."""
REQUEST, ADMISSION = ".request", ".admission"


def request(folder: Path, name: str = "") -> tuple[Path, str]:
    """Make a site's key, once, and write its request beside the folder; the file, and the key's fingerprint."""
    name = name or folder.resolve().name
    check_names([name])
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "site.key").is_file():
        pair = certificates.site_key(name)
        write_new(folder / "site.key", pair.private, secret=True)
    private = (folder / "site.key").read_bytes()
    public = certificates.public_half(private, name)
    write_atomically(folder / "site.pub", public)
    table = {"site": name, "key": public.decode().strip(), "fingerprint": fingerprint(public)}
    table["signature"] = certificates.signed(private, _signed_part(table))
    path = folder.with_name(f"{folder.name}{REQUEST}")
    title = "# A site asks to join a network of fedfew: read the fingerprint to the server's owner over the telephone\n"
    write_atomically(path, (title + dumps(table)).encode())
    return path, table["fingerprint"]


def read_request(path: Path) -> tuple[str, bytes, str]:
    """Name, public key and fingerprint of a request; E513 unless the key itself has signed it."""
    table = _table(path)
    if set(table) != {"site", "key", "fingerprint", "signature"} or not all(isinstance(v, str) for v in table.values()):
        raise FedfewError("E513", str(path), "is not a request to join")
    check_names([table["site"]])
    public = f"{table['key']}\n".encode()
    if not certificates.has_signed(public, _signed_part(table), table["signature"]):
        raise FedfewError("E513", str(path), "is not signed by the key in it")
    return table["site"], public, fingerprint(public)


def admit(plan: ServerPlan, request: Path) -> Path:
    """Let the site of a request into the network; the file that it needs, which holds no secret. May be repeated."""
    name, public, shown = read_request(request)
    with locked(plan.folder / "keys"):
        plan = open_server(plan.folder)
        known = plan.key_of(name) if name in plan.sites else b""
        if known and name not in plan.revoked and fingerprint(known) != shown:
            reason = f"site {name} is in the network with another key, {fingerprint(known)}"
            remedy = f"Choose another name, or `fedfew deploy revoke {name}` first"
            raise FedfewError("E506", str(request), reason, remedy)
        others = {fingerprint(plan.key_of(site)): site for site in plan.sites if site != name}
        if shown in others:
            raise FedfewError(
                "E506", str(request), f"its key is that of site {others[shown]}", "Each site needs its own"
            )
        write_atomically(plan.public_key(name), public)
        plan = replace(
            plan,
            sites=tuple(dict.fromkeys((*plan.sites, name))),
            revoked=tuple(site for site in plan.revoked if site != name),
        )
        with suppress(FedfewError):  # the authority's key may be elsewhere; secure sums then ask for it
            sign_member(plan, name)
        path = write_admission(plan, name)
        write_atomically(plan.folder / SERVER, settings(plan))
    record(plan.folder, "admitted", site=name, fingerprint=shown)
    return path


def write_admission(plan: ServerPlan, name: str) -> Path:
    """What a site needs besides its own key: the server's address, its certificate's authority, its number."""
    table = tomllib.loads(settings(plan.of_site(name)).decode())
    table |= {"ca": plan.ca.read_text(), "key": plan.public_key(name).read_text().strip()}
    folder = plan.folder.parent / "admissions"
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{name}{ADMISSION}", dumps(table).encode())
    return folder / f"{name}{ADMISSION}"


def read_admission(folder: Path, admission: Path) -> tuple[SitePlan, bytes, str]:
    """A site's plan, its authority's certificate and the fingerprint of that; E506 if it is for another key."""
    table = _table(admission)
    ca, key = str(table.pop("ca", "")).encode(), str(table.pop("key", "")).encode()
    plan = plan_of(SitePlan, folder, SITE, dumps(table).encode())
    if not (folder / "site.key").is_file() or fingerprint((folder / "site.pub").read_bytes()) != fingerprint(key):
        raise FedfewError("E506", str(admission), f"is for another key than the one in {folder}")
    return plan, ca, certificates.authority_fingerprint(ca)


def accept(folder: Path, admission: Path) -> SitePlan:
    """Complete a site's folder with what the server sent, also when it has renewed its certificates."""
    plan, ca, _ = read_admission(folder, admission)
    if (folder / SITE).is_file():
        old = open_bundle(folder)
        if (old.network, old.name) != (plan.network, plan.name):
            reason = f"belongs to site {old.name} of network {old.network}"
            raise FedfewError("E506", str(folder), reason)
    write_atomically(plan.ca, ca)
    write_atomically(folder / SITE, settings(plan))
    return plan


def take_up_authority(plan: SitePlan) -> bool:
    """Replace the authority's certificate by the server's newer one of the same key; False if there is none."""
    trusted = ssl.create_default_context(cafile=str(plan.ca))
    try:
        told = httpx.get(f"https://{plan.address}/fedfew", verify=trusted, timeout=10.0).json().get("ca", "").encode()
        newer = certificates.expiry(told) > certificates.expiry(plan.ca.read_bytes())
        same = certificates.authority_fingerprint(told) == certificates.authority_fingerprint(plan.ca.read_bytes())
    except (httpx.HTTPError, ValueError, AttributeError, FedfewError):  # away, or nginx, which does not tell
        return False
    if newer and same:
        write_atomically(plan.ca, told)
    return newer and same


def revoke(plan: ServerPlan, name: str) -> None:
    """Shut a site out; its number stays its own, and it can be admitted again with a new request."""
    with locked(plan.folder / "keys"):
        plan = open_server(plan.folder)
        if name not in plan.members:
            reason = f"{name!r} is not a site of the network; it has {', '.join(plan.members) or 'none'}"
            raise FedfewError("E103", "SITE", reason)
        write_atomically(plan.folder / SERVER, settings(replace(plan, revoked=(*plan.revoked, name))))
    record(plan.folder, "revoked", site=name)


def renew(plan: ServerPlan, days: int) -> list[Path]:
    """New certificates for the same keys, and an admission with them for each site.

    The keys stay, so sites trust the new server certificate with the authority's old one until that expires.
    """
    plan = open_server(plan.folder)
    private = plan.folder / "ca.key"
    if not private.is_file():
        raise FedfewError("E505", str(private), "is missing", "Put the authority's key back, from where you keep it")
    ca = certificates.renewed_authority(Pair(plan.ca.read_bytes(), private.read_bytes()), days)
    own = certificates.server_certificate(ca, plan.host, days, plan.key.read_bytes())
    write_atomically(plan.ca, ca.public)
    write_atomically(plan.certificate, own.public)
    record(plan.folder, "renewed", days=days)
    return [write_admission(plan, name) for name in plan.members]


def site_rows(plan: ServerPlan) -> list[dict[str, str]]:
    """What the server knows of each site."""
    seen, told = last_seen(plan.folder), {}
    for event in events(plan.folder):
        if event["event"] == "answer":
            told[event.get("site")] = event
    rows = []
    for name in plan.sites:
        at, answer = seen.get(name), told.get(name, {})
        online = at is not None and time() - at < _ONLINE
        state = "revoked" if name in plan.revoked else "online" if online else "offline" if at else "never seen"
        when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at else "–"
        versions = ", ".join(f"{key} {value}" for key, value in answer.get("versions", {}).items()) or "–"
        shown = fingerprint(plan.key_of(name))
        rows.append(
            {"site": name, "state": state, "last seen": when, "answer": answer.get("answer", "–"), "versions": versions}
        )
        rows[-1]["fingerprint"] = shown
    return rows


def _signed_part(table: dict[str, Any]) -> bytes:
    return f"fedfew request\n{table['site']}\n{table['key']}".encode()


def _table(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 1 << 16:
            raise FedfewError("E513", str(path), "is too long for a request or an admission")
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FedfewError("E511", str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FedfewError("E513", str(path), f"is not a request or an admission: {error}") from None
