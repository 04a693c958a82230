"""Checks before a start: each finding says what was checked, the result, and what to do about it."""

import json
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import torch

from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.storage import locked
from fedfew.core.streams import stream
from fedfew.data.samples import Images
from fedfew.deploy.certificates import check_certificate, check_site_key
from fedfew.deploy.front.proxy import versions
from fedfew.deploy.plan import CONFIG, STATUS, ServerPlan, SitePlan, open_bundle, open_server
from fedfew.deploy.processes import Supervisor, check_port
from fedfew.deploy.server.superlink import answers, ask
from fedfew.deploy.site.images import load_images, read_npz
from fedfew.deploy.site.processes import SiteProcesses
from fedfew.models.build import build_model

ROOM = 1 << 30
CLOCK = 60.0
_ONLINE = 45.0


@dataclass(frozen=True)
class Finding:
    """One check."""

    name: str
    passed: bool
    detail: str
    remedy: str = ""


def examine_server(folder: Path, allow_code: Collection[str] = ()) -> Iterator[Finding]:
    """Check the server's side."""
    try:
        plan = open_server(folder)
    except FedfewError as fault:
        yield _failed("settings", fault)
        return
    yield Finding("settings", True, f"network {plan.name} with sites {', '.join(plan.sites)}")
    if not plan.insecure:
        yield _check("certificate", lambda: f"valid until {check_certificate(plan.certificate, plan.ca):%Y-%m-%d}")
        yield _check("private key", lambda: _server_key(plan))
    yield _check("site keys", lambda: _site_keys(plan))
    yield _check("versions", lambda: _listed(versions()))
    yield _check("port", lambda: _own_port(plan))
    yield _check("disk", lambda: _room(plan.folder))
    yield _check("data and a training step", lambda: _server_step(plan, allow_code))


def examine_client(bundle: Path, data: Path | None, state: Path | None = None) -> Iterator[Finding]:
    """Check a site's side."""
    try:
        plan = open_bundle(bundle, state)
    except FedfewError as fault:
        yield _failed("bundle", fault)
        return
    yield Finding("bundle", True, f"site {plan.name} of network {plan.network}")
    if not plan.insecure:
        yield _check("authority", lambda: f"valid until {check_certificate(plan.ca):%Y-%m-%d}")
        yield _check("private key", lambda: _own_key(plan))
    yield (reached := _check("port", lambda: _reach(plan)))
    if reached.passed and not plan.insecure:
        yield from _over_tls(plan)
    yield _check("disk", lambda: _room(plan.folder))
    yield _check("images and a training step", lambda: _site_step(data))


def _check(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except FedfewError as fault:
        return _failed(name, fault)


def _failed(name: str, fault: FedfewError) -> Finding:
    return Finding(name, False, f"{fault.code} {fault.where}: {fault.message}", fault.remedy)


def _own_key(plan: SitePlan) -> str:
    check_site_key(plan.key)
    return "readable by this user only"


def _server_key(plan: ServerPlan) -> str:
    if plan.key.stat().st_mode & 0o077:
        raise FedfewError("E505", str(plan.key), "can be read by others", f"Run chmod 600 {plan.key}")
    return "readable by this user only"


def _site_keys(plan: ServerPlan) -> str:
    lacking = [site for site in plan.sites if not plan.public_key(site).is_file()]
    if lacking:
        raise FedfewError("E505", str(plan.folder / "keys"), f"has no key for {', '.join(lacking)}")
    return f"{len(plan.sites)} public keys"


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def _own_port(plan: ServerPlan) -> str:
    if answers(plan.listen, plan.port, None if plan.insecure else plan.ca):
        return f"{plan.listen}:{plan.port}: the server is running"
    check_port(plan.listen, plan.port)
    return f"{plan.listen}:{plan.port} is free"


def _room(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    if free < ROOM:
        raise FedfewError("E305", str(folder), f"has {free / 1e9:.2f} GB left", "Make room: at least 1 GB")
    return f"{free / 1e9:.1f} GB free"


def _server_step(plan: ServerPlan, allow_code: Collection[str]) -> str:
    """Load what the config names and train on the labels for one pass, as the run would for many."""
    path = plan.folder / "run" / "run.toml"
    source = path if path.is_file() else plan.folder / CONFIG
    network = {"fleet.kind": "flower", "fleet.network": str(plan.folder.absolute())}
    config = load(str(source), network | {"server.epochs": 1}, allow_code)
    if getattr(config.method, "warmup", 0):
        config = load(config.document, {"method.warmup": 1}, allow_code)
    parts = assemble(config, plan.sites)
    state = parts.algorithm.start(parts.network.snapshot())
    state = parts.algorithm.warm_up(state, parts.server, stream(config.seed, "doctor"))
    if not bool(torch.isfinite(state.sigma).all()):
        raise FedfewError("E404", str(source), "a training step gave NaN or infinite values", "Lower server.lr")
    return f"{len(parts.server.labeled)} labels of {len(parts.federation.classes)} classes, σ is finite"


def _reach(plan: SitePlan) -> str:
    try:
        with socket.create_connection((plan.host, plan.port), timeout=5):
            return f"{plan.address} answers"
    except OSError as error:
        raise FedfewError("E510", plan.address, f"cannot be reached: {error.strerror or error}") from None


def _over_tls(plan: SitePlan) -> Iterator[Finding]:
    """What the server says about itself: certificate, clock, versions and network; then whether it knows the key."""
    said: dict[str, Any] = {}

    def handshake() -> str:
        try:
            status, content = ask(plan.host, plan.port, plan.ca)
        except ssl.SSLCertVerificationError as error:
            reason, remedy = f"its certificate was rejected: {error.verify_message}", "Check the bundle and both clocks"
            raise FedfewError("E505", plan.address, reason, remedy) from None
        except OSError as error:
            raise FedfewError("E510", plan.address, f"TLS fails: {error}") from None
        if status != 200:
            remedy = "Let nginx answer /fedfew, see --nginx"
            raise FedfewError("E510", plan.address, f"answers with status {status}", remedy)
        said.update(json.loads(content))
        return "the server shows a certificate of this network's authority"

    def clock() -> str:
        if "time" not in said:
            return "nginx is the front and does not report the time"
        off = time() - float(said["time"])
        if abs(off) > CLOCK:
            raise FedfewError("E510", "clock", f"{off:+.0f} s off the server's", "Set both clocks, e.g. with NTP")
        return f"{abs(off):.1f} s off the server's"

    def same_versions() -> str:
        ours = versions()
        other = [f"{name}: here {ours[name]}, server {said.get(name)}" for name in ours if said.get(name) != ours[name]]
        if other:
            raise FedfewError("E417", "versions", "; ".join(other))
        return _listed(ours)

    def same_network() -> str:
        if said.get("network") != plan.network:
            reason = f"the server's network is {said.get('network')}, the bundle's {plan.network}"
            raise FedfewError("E506", plan.address, reason)
        return plan.network

    yield (secure := _check("TLS", handshake))
    if secure.passed:
        yield from map(_check, ("clock", "versions", "network"), (clock, same_versions, same_network))
        yield _check("key registered", lambda: _connect(plan))


def _connect(plan: SitePlan) -> str:
    """Go online briefly: only this proves that the server knows the key. A running client proves it too."""
    try:
        with locked(plan.folder), tempfile.TemporaryDirectory() as logs:
            return _go_online(plan, Path(logs))
    except FedfewError as fault:
        if fault.code != "E306":
            raise
    status = (plan.folder / STATUS).read_text("utf-8") if (plan.folder / STATUS).is_file() else "starting"
    if status != "online":
        remedy = f"See {plan.folder / 'logs'}, and look at the other findings here"
        raise FedfewError("E510", plan.address, f"the site's client is running, but {status}", remedy)
    return "the site's client is running and online"


def _go_online(plan: SitePlan, logs: Path) -> str:
    supervisor = Supervisor(logs)
    processes = SiteProcesses(plan, supervisor)
    try:
        node = processes.start_node()
        node.restart = False
        deadline = monotonic() + _ONLINE
        while monotonic() < deadline and node.running:
            if "SuperNode ID:" in node.log_tail(50):
                return "the server accepts this key"
            sleep(0.2)
        reason = f"the server did not accept this key: {node.log_tail(3)}"
        raise FedfewError("E510", plan.address, reason, "Is the site in server.toml, and the bundle of the same init?")
    finally:
        supervisor.close()
        processes.close()


def _site_step(data: Path | None) -> str:
    """Read the images and take one step with a small network."""
    if data is None:
        raise FedfewError("E509", "--data", "is missing")
    images = load_images(data, (3, 32, 32)) if data.is_dir() else read_npz(data)
    if not len(images):
        raise FedfewError("E509", str(data), "contains no image")
    channels, size = images.shape[1], images.shape[2]
    rng = stream(0, "doctor")
    network = Network.of(build_model("cnn", channels, size, 10, {}, rng))
    loss = network(Images(images[:8])).logsumexp(1).mean()
    loss.backward()
    if not bool(torch.isfinite(network.gradient).all()):
        raise FedfewError("E404", str(data), "a training step gave NaN or infinite values")
    return f"{len(images):,} images of {channels}×{size}×{images.shape[3]}, gradient is finite"
