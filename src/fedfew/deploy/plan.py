"""The folders of a network: the server's, and the bundle for each site."""

import io
import os
import re
import secrets
import shutil
import stat
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from fedfew.config.files import dumps
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically, writing
from fedfew.deploy.certificates import (
    as_flower_sends_it,
    authority,
    authority_fingerprint,
    server_certificate,
    site_key,
)

PORT = 9092
SERVER, SITE, CONFIG = "server.toml", "site.toml", "config.toml"
NODES = "nodes.json"
"""File in the server's folder: site → Flower's number of the node that its key was registered as."""
LARGEST_REPLY = "largest-reply"
"""File in the server's folder: bytes that a site may upload for one reply in the present run."""
STATUS = "status"
"""A site's file with the status of its running client; the doctor reads it."""
_BUNDLE_LIMIT = 1 << 20
_NAME, _HOST = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,40}\Z"), re.compile(r"\A[A-Za-z0-9.:%_-]{1,253}\Z")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
Port = Annotated[int, Field(gt=0, lt=1 << 16)]
P = TypeVar("P", bound="Plan")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What server.toml and site.toml have in common."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    folder: Path
    network: str
    name: str
    host: Annotated[str, StringConstraints(pattern=_HOST)]
    """The name or address under which the sites reach the server."""
    port: Port
    """The port under which they reach it."""

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"


@dataclass(frozen=True, kw_only=True)
class ServerPlan(Plan):
    """server.toml: where the server listens and which sites belong to it."""

    listen: str
    sites: tuple[str, ...]
    """In the order in which they were admitted: a site's place is its number, for ever."""
    revoked: tuple[str, ...] = ()
    behind: int = 0
    """Port on which the SuperLink waits for nginx, if nginx is the front; 0: the built-in front."""
    bind: Port | Literal[0] = 0
    """Port on which this machine listens, if a router or balancer forwards the public one to it; 0: the same."""

    @property
    def bound(self) -> int:
        return self.bind or self.port

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def members(self) -> tuple[str, ...]:
        """The sites that may connect."""
        return tuple(site for site in self.sites if site not in self.revoked)

    def asked(self, only: str) -> tuple[str, ...]:
        """The sites that a run asks to take part: all members, or those it names; E103 if there is no such site."""
        names = tuple(name.strip() for name in only.split(",") if name.strip()) or self.members
        unknown = [name for name in names if name not in self.members]
        if unknown or not names:
            reason = f"{unknown[0]!r} is not a site of the network" if unknown else "the network has no sites yet"
            raise FedfewError(
                "E103", "sites", reason, f"It has {', '.join(self.members) or 'none'}; see `deploy sites`"
            )
        return names

    def public_key(self, site: str) -> Path:
        return self.folder / "keys" / f"{site}.pub"

    def key_of(self, site: str) -> bytes:
        """The content of a site's public key; E505 if its file is gone."""
        try:
            return self.public_key(site).read_bytes()
        except OSError as error:
            remedy = f"Restore it from a backup, or `fedfew deploy revoke {site}` and admit the site again"
            raise FedfewError("E505", str(self.public_key(site)), f"cannot be read: {error.strerror}", remedy) from None

    def numbers_of_keys(self) -> dict[str, int]:
        """Public key, as Flower sends it → number of the site."""
        return {as_flower_sends_it(self.key_of(site)): self.sites.index(site) for site in self.members}

    def of_site(self, name: str) -> "SitePlan":
        """What a site has to know."""
        server = {key: getattr(self, key) for key in ("network", "host", "port")}
        return SitePlan(folder=Path(), name=name, number=self.sites.index(name), sites=len(self.sites), **server)


@dataclass(frozen=True, kw_only=True)
class SitePlan(Plan):
    """site.toml: which site this is, and where its server is."""

    name: Annotated[str, StringConstraints(pattern=_NAME)]
    number: int
    sites: int

    @property
    def key(self) -> Path:
        return self.folder / "site.key"

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def make_network(
    folder: Path,
    sites: Sequence[str],
    *,
    host: str = "127.0.0.1",
    listen: str = "",
    port: int = PORT,
    bind: int = 0,
    days: int = 365,
    force: bool = False,
    config: str = "",
) -> ServerPlan:
    """Write NAME/server: authority, certificate, settings; and with ``sites`` NAME/bundles/SITE.tar, keys included.

    A network that exists gets the sites that it does not have yet, and keeps everything else.
    """
    names = check_names(sites)
    if not _HOST.match(host):
        raise FedfewError("E103", "--server", f"{host!r} is not the name or address of a machine")
    if (folder / "server" / SERVER).is_file() and not force and (new := set(names) - set(open_server(folder).sites)):
        server = open_server(folder)
        server = replace(server, sites=(*server.sites, *(name for name in names if name in new)))
        _write_bundles(server, folder, [name for name in names if name in new])
        write_atomically(server.folder / SERVER, settings(server))
        return server
    if folder.exists() and any(folder.iterdir()) and not force:
        raise FedfewError("E301", str(folder), "is not empty", "Choose another name, or replace its keys with --force")
    listen = listen or ("127.0.0.1" if host in LOOPBACK else "0.0.0.0")
    server = ServerPlan(
        folder=folder / "server", network=secrets.token_hex(8), name=folder.name, host=host, port=port, bind=bind,
        listen=listen, sites=names,
    )  # fmt: skip
    for old in (folder / "bundles", folder / "admissions", server.folder / "keys"):
        shutil.rmtree(old, ignore_errors=True)
    (server.folder / "keys").mkdir(parents=True)
    for stale in ("state.db", NODES):  # they know the keys of the old network
        (server.folder / stale).unlink(missing_ok=True)
    ca = authority(folder.name, days)
    own = server_certificate(ca, host, days)
    write_new(server.ca, ca.public)
    write_new(server.folder / "ca.key", ca.private, secret=True)
    write_new(server.certificate, own.public)
    write_new(server.key, own.private, secret=True)
    _write_bundles(server, folder, names)
    write_new(server.folder / SERVER, settings(server))
    if config and (force or not (server.folder / CONFIG).exists()):
        write_new(server.folder / CONFIG, config.encode())
    return server


def _write_bundles(server: ServerPlan, folder: Path, names: Sequence[str]) -> None:
    """Keys for sites, made here: for trials, and where a site's owner is not at hand."""
    for name in names:
        keys = site_key(f"{folder.name}/{name}")
        write_new(server.public_key(name), keys.public)
        files = {SITE: settings(server.of_site(name)), "ca.crt": server.ca.read_bytes(), "site.key": keys.private}
        (folder / "bundles").mkdir(parents=True, exist_ok=True)
        write_new(folder / "bundles" / f"{name}.tar", _tar(files | {"site.pub": keys.public}), secret=True)


def open_server(folder: Path) -> ServerPlan:
    """The server's side of a network; NAME or NAME/server."""
    return plan_of(ServerPlan, folder if (folder / SERVER).is_file() else folder / "server", SERVER)


def open_bundle(bundle: Path, state: Path | None = None) -> SitePlan:
    """Unpack a bundle into its site's folder, once; E506 if that folder belongs to another network or site."""
    if bundle.is_dir():
        return plan_of(SitePlan, bundle, SITE)
    folder = state or bundle.with_suffix("")
    files = _untar(bundle)
    new = plan_of(SitePlan, folder, SITE, files[SITE])
    authority_fingerprint(files["ca.crt"])
    if (folder / SITE).exists():
        old = plan_of(SitePlan, folder, SITE)
        if (old.network, old.name) != (new.network, new.name):
            theirs = f"site {new.name} of {new.network}"
            reason = f"belongs to site {old.name} of network {old.network}, the bundle to {theirs}"
            raise FedfewError("E506", str(folder), reason)
        return old  # what was renewed since stays
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_new(folder / name, content, secret=name == "site.key")
    return new


def secrets_left(plan: ServerPlan) -> list[str]:
    """Secrets at the server with which it could do more than its part, in words."""
    bundles = [site for site in plan.members if (plan.folder.parent / "bundles" / f"{site}.tar").is_file()]
    left = []
    if bundles:
        left.append(f"The private keys of {', '.join(bundles)} are in bundles/: who reads them can act as these sites.")
    if (plan.folder / "ca.key").is_file():
        left.append("The authority's key is on the server, which could make up sites of a secure sum with it.")
    return left


def check_names(sites: Sequence[str]) -> tuple[str, ...]:
    """The names of sites; E103 if one is not valid, or there are two of it."""
    odd = [name for name in sites if not _NAME.fullmatch(name)]
    if odd or len(set(sites)) != len(sites):
        reason = f"{odd[0]!r} is not valid" if odd else "each site needs a different one"
        raise FedfewError("E103", "name", reason, "Give names of letters, digits, - and _, e.g. north,south")
    return tuple(sites)


def settings(plan: Plan) -> bytes:
    """The content of server.toml or site.toml."""
    content = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(plan).items()}
    content.pop("folder")
    return dumps(content).encode()


def plan_of(kind: type[P], folder: Path, name: str, content: bytes | None = None) -> P:
    """The plan in a folder's file, or in the content of one; E511 if a key is missing or unknown."""
    return read_settings(kind, folder / name, {"folder": folder}, content)


def read_settings(kind: type[T], path: Path, stated: Mapping[str, Any], content: bytes | None = None) -> T:
    """Settings of a TOML file, or of its content; those ``stated`` come first. E511 if they are not right."""
    try:
        table = tomllib.loads((path.read_bytes() if content is None else content).decode())
        return TypeAdapter(kind).validate_python(table | dict(stated))
    except OSError as error:
        raise FedfewError("E511", str(path), f"cannot be read: {error.strerror}") from None
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        remedy = f"It may set {', '.join(kind.__annotations__)}"
        raise FedfewError("E511", str(path), f"its settings are not right: {wrong}", remedy) from None
    except ValueError as error:
        raise FedfewError("E511", str(path), f"is not TOML: {error}") from None


def write_new(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a file; a private key is never readable by others, not even briefly."""
    with writing(path):
        path.unlink(missing_ok=True)
        mode = stat.S_IRUSR | stat.S_IWUSR | (0 if secret else stat.S_IRGRP | stat.S_IROTH)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _untar(bundle: Path) -> dict[str, bytes]:
    """The four files of a bundle; anything else in it is refused."""
    expected = {SITE, "ca.crt", "site.key", "site.pub"}
    try:
        if bundle.stat().st_size > _BUNDLE_LIMIT:
            raise FedfewError("E511", str(bundle), "is too large for a bundle")
        with tarfile.open(bundle, "r:") as archive:
            entries = archive.getmembers()
            if {entry.name for entry in entries} != expected or not all(entry.isreg() for entry in entries):
                raise FedfewError("E511", str(bundle), f"must contain exactly {', '.join(sorted(expected))}")
            files = {entry.name: archive.extractfile(entry) for entry in entries}
            if any(entry.issparse() or entry.size > _BUNDLE_LIMIT for entry in entries):  # holes unpack to anything
                raise FedfewError("E511", str(bundle), "unpacks to more than a bundle has")
            return {name: file.read() for name, file in files.items() if file is not None}
    except (OSError, tarfile.TarError) as error:
        raise FedfewError("E511", str(bundle), f"cannot be read: {error}") from None
