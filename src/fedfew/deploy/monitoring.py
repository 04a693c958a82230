"""What monitoring sees of a server or a site, on loopback only: /healthz, and /metrics in Prometheus' text format."""

import contextlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily

from fedfew.core.errors import FedfewError
from fedfew.deploy.audit import events, last_seen
from fedfew.deploy.certificates import expiry
from fedfew.deploy.plan import STATUS, ServerPlan, SitePlan, open_server
from fedfew.deploy.processes import Supervisor
from fedfew.deploy.server.job import Job
from fedfew.deploy.server.queue import waiting
from fedfew.deploy.site.agreement import PAUSED
from fedfew.deploy.site.ledger import NAME as LEDGER
from fedfew.runs.run import Run

Gauges = Iterator[GaugeMetricFamily]


@dataclass(frozen=True)
class Collector:
    """Reads the numbers when somebody asks for them."""

    supervisor: Supervisor
    gauges: Callable[[], Gauges]

    def collect(self) -> Gauges:
        """As `prometheus_client` calls it."""
        processes = dict(self.supervisor.processes)
        up = {name: float(one.running) for name, one in processes.items()}
        starts = {name: float(one.starts) for name, one in processes.items()}
        yield _gauge("process_up", "Whether a process runs", up, "process")
        yield _gauge("process_starts", "How often a process was started", starts, "process")
        yield from self.gauges()


def _gauge(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> GaugeMetricFamily:
    """One number, or one for each value of a label."""
    family = GaugeMetricFamily(f"fedfew_{name}", text, labels=[label] if label else ())
    for key, number in value.items() if isinstance(value, Mapping) else [("", value)]:
        family.add_metric([key] if label else (), number)
    return family


def server_gauges(folder: Path) -> Gauges:
    """The numbers of a server."""
    plan = open_server(folder)
    seen = {site: at for site, at in last_seen(folder).items() if site in plan.members}
    yield _gauge("site_last_seen_seconds", "When a site was last heard of, in seconds since 1970", seen, "site")
    yield _gauge("audit_events", "Lines in the audit log", Counter(str(e["event"]) for e in events(folder)), "event")
    yield _gauge("queue_length", "Plans that wait", len(waiting(folder)))
    with contextlib.suppress(FedfewError, OSError):  # no run yet
        run = Run.open(Job.at(folder / "job").run)
        yield _gauge("run_rounds", "Rounds of the present run, or of the last one", run.planned)
        yield _gauge("run_round", "Rounds of it that are done", len(run.records))
        missing = len(run.records[-1]["missing"]) if run.records else 0
        yield _gauge("run_missing", "Sites without an update in its last round", missing)
    yield from _common(folder, {"authority": plan.ca, "server": plan.certificate})


def site_gauges(plan: SitePlan) -> Gauges:
    """The numbers of a site."""
    folder = plan.folder
    yield _gauge("site_online", "Whether the server answers this site", _text(folder / STATUS) == "online")
    yield _gauge("site_paused", "Whether this site has paused", (folder / PAUSED).exists())
    yield _gauge("answers", "Updates that were sent for a plan", _table(folder / "answers.json"), "plan")
    noisy = Counter[str]()
    for one in _table(folder / "privacy.json").get("updates", ()):
        noisy[f"{one['noise']:g}"] += one["count"]
    yield _gauge("charged_updates", "Updates charged to the privacy budget, by their noise", noisy, "noise")
    size = (folder / LEDGER).stat().st_size if (folder / LEDGER).exists() else 0
    yield _gauge("ledger_bytes", "Size of the ledger", size)
    yield from _common(folder, {"authority": plan.ca})


def _common(folder: Path, certificates: Mapping[str, Path]) -> Gauges:
    ends = {name: expiry(path.read_bytes()).timestamp() for name, path in certificates.items()}
    yield _gauge("certificate_expiry_seconds", "When a certificate ends, in seconds since 1970", ends, "certificate")
    yield _gauge("disk_free_bytes", "Room on the disk", shutil.disk_usage(folder).free)


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _table(path: Path) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        return dict(json.loads(_text(path) or "{}"))
    return {}


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Monitoring asks every few seconds; nobody wants to read that."""


@contextlib.contextmanager
def monitored(port: int, supervisor: Supervisor, plan: ServerPlan | SitePlan) -> Iterator[None]:
    """Answer on a port of 127.0.0.1 while the block runs; E504 if it is taken; port 0: nothing."""
    if not port:
        yield
        return
    registry = CollectorRegistry(auto_describe=False)
    gauges = (lambda: server_gauges(plan.folder)) if isinstance(plan, ServerPlan) else (lambda: site_gauges(plan))
    registry.register(Collector(supervisor, gauges))
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)  # type: ignore[no-any-return]
        if environ["PATH_INFO"] != "/healthz":
            start("404 Not Found", [])
            return [b""]
        running = {name: one.running for name, one in dict(supervisor.processes).items()}
        good = bool(running) and all(running.values())
        start("200 OK" if good else "503 Service Unavailable", [("Content-Type", "application/json")])
        about = {"ok": good, "processes": running, "status": _text(plan.folder / STATUS)}
        return [json.dumps(about).encode()]

    try:
        server = make_server("127.0.0.1", port, answer, handler_class=_Quiet)
    except OSError as error:
        raise FedfewError("E504", f"127.0.0.1:{port}", f"cannot be used: {error.strerror}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
