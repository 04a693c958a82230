"""Checks before a start: each says what was checked, the result, and what to do about it."""

import shutil
import ssl
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx
import torch

from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.storage import locked
from fedfew.core.streams import stream
from fedfew.data.samples import Images
from fedfew.deploy.certificates import check_expiry, check_private, check_site_key
from fedfew.deploy.plan import CONFIG, STATUS, ServerPlan, SitePlan, open_bundle, open_server, secrets_left
from fedfew.deploy.processes import Supervisor, check_port
from fedfew.deploy.server.superlink import answers
from fedfew.deploy.site.images import count_images, load_images, own_rows, read_npz
from fedfew.deploy.site.limits import LIMITS, SiteTerms, check_count, site_terms
from fedfew.deploy.site.processes import SiteProcesses
from fedfew.deploy.versions import check_versions, versions
from fedfew.models.build import build_model

ROOM = 1 << 30
CLOCK = 60.0
_ONLINE = 45.0


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    name: str
    passed: bool
    detail: str
    remedy: str = ""

    @staticmethod
    def of(name: str, look: Callable[[], str]) -> "Check":
        """Passed with what ``look`` returns, or failed with the fault that it raises; E514 is a warning."""
        try:
            return Check(name, True, look())
        except FedfewError as fault:
            return Check(name, fault.code == "E514", f"{fault.code} {fault.where}: {fault.message}", fault.remedy)


def examine_server(folder: Path, allow_code: Collection[str] = ()) -> Iterator[Check]:
    """Check the server's side."""
    yield (opened := Check.of("settings", lambda: f"network {open_server(folder).name}"))
    if not opened.passed:
        return
    plan = open_server(folder)
    yield Check.of("certificate", partial(check_expiry, plan.certificate, plan.ca))
    yield Check.of("authority", partial(check_expiry, plan.ca))
    yield Check.of("private key", partial(check_private, plan.key))
    yield Check.of("site keys", partial(_site_keys, plan))
    left = secrets_left(plan)
    remedy = (
        "Hand bundles over and delete them; keep ca.key elsewhere: only `admit` and `renew` need it" if left else ""
    )
    yield Check("secrets of others", True, " ".join(left) or "none on this machine", remedy)
    yield Check.of("versions", lambda: _listed(versions()))
    yield Check.of("port", partial(_own_port, plan))
    yield Check.of("disk", partial(_room, plan.folder))
    yield Check.of("data and a training step", partial(_server_step, plan, allow_code))


def examine_client(bundle: Path, data: Path | None, state: Path | None = None) -> Iterator[Check]:
    """Check a site's side."""
    yield (opened := Check.of("bundle", lambda: f"site {open_bundle(bundle, state).name}"))
    if not opened.passed:
        return
    plan = open_bundle(bundle, state)
    yield Check.of("authority", partial(check_expiry, plan.ca))
    yield Check.of("private key", partial(check_site_key, plan.key))
    said: dict[str, Any] = {}
    yield (reached := Check.of("server", partial(_reach, plan, said)))
    if reached.passed:
        yield Check.of("clock", partial(_clock, said))
        yield Check.of("versions", partial(_same_versions, said))
        yield Check.of("key registered", partial(_connect, plan))
    yield Check.of("disk", partial(_room, plan.folder))
    yield (limits := Check.of("limits", partial(_limits, plan)))
    if limits.passed:
        yield Check.of("images and a training step", partial(_site_step, data, site_terms(plan.folder)))


def _site_keys(plan: ServerPlan) -> str:
    if lacking := [site for site in plan.members if not plan.public_key(site).is_file()]:
        raise FedfewError("E505", str(plan.folder / "keys"), f"has no key for {', '.join(lacking)}")
    return f"public keys of {', '.join(plan.members) or 'no site yet'}"


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def _own_port(plan: ServerPlan) -> str:
    address = f"{plan.listen}:{plan.bound}"
    if answers(plan.listen, plan.bound, plan.ca):
        return f"{address}: the server is running"
    check_port(plan.listen, plan.bound)
    return f"{address} is free"


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
    parts = assemble(config, plan.sites or ("none yet",))
    state = parts.algorithm.start(parts.network.snapshot())
    state = parts.algorithm.warm_up(state, parts.server, stream(config.seed, "doctor"))
    if not bool(torch.isfinite(state.sigma).all()):
        raise FedfewError("E404", str(source), "a training step gave NaN or infinite values", "Lower server.lr")
    return f"{len(parts.server.labeled)} labels of {len(parts.federation.classes)} classes, σ is finite"


def _reach(plan: SitePlan, said: dict[str, Any]) -> str:
    """Ask the server about itself as Flower's SuperNode asks it, through the same proxy if one is set.

    A certificate of this network's authority proves that it is this network's server.
    """
    proxy = "" if proxy_bypass(plan.host) else getproxies().get("https", "")
    way = f" through the proxy {proxy}" if proxy else ""
    trusted = ssl.create_default_context(cafile=str(plan.ca))
    try:
        answer = httpx.get(f"https://{plan.address}/fedfew", verify=trusted, timeout=5.0)
    except httpx.TransportError as error:
        if "CERTIFICATE_VERIFY_FAILED" not in str(error):
            raise FedfewError("E510", plan.address, f"cannot be reached{way}: {error}") from None
        reason, remedy = f"its certificate was rejected: {error}", "Check the bundle and both clocks"
        raise FedfewError("E505", plan.address, reason, remedy) from None
    if answer.status_code != 200:
        remedy = "Let nginx answer /fedfew, see --nginx"
        raise FedfewError("E510", plan.address, f"answers with status {answer.status_code}", remedy)
    said.update(answer.json())
    return f"{plan.address} answers{way}, with a certificate of this network's authority"


def _clock(said: dict[str, Any]) -> str:
    if "time" not in said:
        return "nginx is the front and does not report the time"
    off = time() - float(said["time"])
    if abs(off) > CLOCK:
        raise FedfewError("E510", "clock", f"{off:+.0f} s off the server's", "Set both clocks, e.g. with NTP")
    return f"{abs(off):.1f} s off the server's"


def _same_versions(said: dict[str, Any]) -> str:
    check_versions(said)
    return _listed(versions())


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


def _limits(plan: SitePlan) -> str:
    """The site's own limits, which options of ``deploy client`` may change."""
    terms = asdict(site_terms(plan.folder))
    shown = ", ".join(f"{name} {value:g}" for name, value in terms.items() if isinstance(value, int | float))
    return f"accept {terms['accept']}, {shown} ({plan.folder / LIMITS} changes them)"


def _site_step(data: Path | None, terms: SiteTerms) -> str:
    """Read the images and take one step with a small network."""
    if data is None:
        raise FedfewError("E509", "--data", "is missing")
    if rows := own_rows(data):
        check_count(sum(map(len, rows)), terms)
        return count_images(data)
    images = load_images(data, (3, 32, 32)) if data.is_dir() else read_npz(data)
    check_count(len(images), terms)
    channels, size = images.shape[1], images.shape[2]
    network = Network.of(build_model("cnn", channels, size, 10, {}, stream(0, "doctor")))
    network(Images(images[:8])).logsumexp(1).mean().backward()
    if not bool(torch.isfinite(network.gradient).all()):
        raise FedfewError("E404", str(data), "a training step gave NaN or infinite values")
    return f"{len(images):,} images of {channels}×{size}×{images.shape[3]}, gradient is finite"
