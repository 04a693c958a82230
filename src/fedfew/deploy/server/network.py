"""Runs on a network: starts the server's processes (and in a trial the sites'), and follows the run in its folder.

The rounds themselves run in the ServerApp, which writes an ordinary run folder; this process keeps the ServerApp alive
and reads the journal.
"""

import contextlib
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fedfew.config import parts as build
from fedfew.config.names import own_code
from fedfew.config.parts import Parts
from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, locked
from fedfew.core.types import Report
from fedfew.deploy import audit
from fedfew.deploy.messages.heads import head_limit, plan_hash
from fedfew.deploy.plan import CONFIG, SITE, ServerPlan, make_network, open_bundle, open_server
from fedfew.deploy.processes import Supervisor, free_ports
from fedfew.deploy.server.job import Job
from fedfew.deploy.server.server_app import identity_of, run_description
from fedfew.deploy.server.superlink import SuperLink
from fedfew.deploy.site.agreement import tensors_of
from fedfew.deploy.site.files import TrialMemory, run_id
from fedfew.deploy.site.limits import SiteTerms
from fedfew.deploy.site.processes import SiteProcesses
from fedfew.runs.folder import SUMMARY
from fedfew.runs.run import Run
from fedfew.runs.session import Session, reopen, start
from fedfew.runtime.gate import reply_limit
from fedfew.runtime.record import RoundRecord

PROJECT = "a Flower project"
"""``fleet.network`` where a Flower project's own SuperLink connects the nodes."""
_POLL = 0.25
_PATIENCE = 120.0
"""Seconds that a ServerApp may take to start."""
_UP: dict[Path, SuperLink] = {}
"""Networks whose processes this process keeps up, by the server's folder."""
_MOST_FAILURES = 3
"""Times that a ServerApp may end without having done anything, before the run is given up."""


def start_or_resume(
    plan: ServerPlan, warn: Warn, config: str | Path, overrides: dict[str, Any], out: Path | None, *,
    anyway: bool = False, allow_code: Collection[str] = (),
) -> Session:  # fmt: skip
    """The run of a real network, in the network's own folder; an unfinished one is resumed.

    ``config``: what a person named, or the path of a plan in the queue; without, it is the network's own.
    """
    folder = out or plan.folder / "run"
    plan.asked(overrides.get("fleet.only", ""))
    fleet = {"fleet.kind": "flower", "fleet.network": str(plan.folder.absolute())}
    if is_unfinished(folder):
        return reopen(folder, warn, overrides | fleet, anyway=anyway, allow_code=allow_code)
    chosen = overrides | fleet | {"clients": len(plan.sites)}
    allowed = None if config and isinstance(config, str) else allow_code
    return start(load(config or plan.folder / CONFIG, chosen, allowed), folder)


def is_unfinished(folder: Path) -> bool:
    """Whether a folder has a run to continue; E301 if the run in it is finished."""
    if (folder / SUMMARY).is_file():
        remedy = "Give the next run another folder (--out DIR)"
        raise FedfewError("E301", str(folder), "contains a finished run", remedy)
    return (folder / "checkpoints").is_dir()


def assemble(config: Config, report: Report | None = None) -> Parts:
    """The parts of a run on a network."""
    return build.assemble(config, site_names(config), report)


def site_names(config: Config) -> tuple[str, ...]:
    """The names of remote sites, as many as there were when the run started; a trial has none."""
    if not config.remote:
        return ()
    if config.fleet.network == PROJECT:
        return tuple(f"node {number}" for number in range(config.clients))
    return open_server(Path(config.fleet.network)).sites[: config.clients]


def advance(session: Session, report: Report | None = None) -> Generator[RoundRecord]:
    """The remaining rounds, as the ServerApp commits them; everything that was started ends with this generator."""
    if session.parts.config.fleet.network == PROJECT:
        reason = "its clients are the nodes of a Flower project"
        raise FedfewError("E113", str(session.folder.path), reason, "Start the project's app again: flwr run")
    with contextlib.ExitStack() as stack:
        if not session.parts.config.remote:
            link = _start_trial(session, session.folder.path / "network", stack)
            yield from _follow(session, link, report)
            return
        plan = open_server(Path(session.parts.config.fleet.network))
        link = _UP.get(plan.folder.absolute()) or stack.enter_context(kept_up(plan))
        asked, path = plan.asked(session.parts.config.fleet.only), str(session.folder.path)
        run = run_id(session.folder.path)
        asks = plan_hash(run_description(session.parts, run, identity_of(session.parts.config, plan)))
        leaves = tensors_of(session.parts.wire.reply_schema(session.parts.network.layout))
        audit.record(plan.folder, "run started", run=run, folder=path, sites=asked, plan=asks, leaves=leaves)
        yield from _follow(session, link, report)
        audit.record(plan.folder, "run finished", run=run, folder=path)


@contextlib.contextmanager
def kept_up(plan: ServerPlan) -> Generator[SuperLink]:
    """The server's processes, which stay up between the runs of this process."""
    folder = plan.folder.absolute()
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder))
        link = _UP[folder] = _start_link(plan, stack, folder / "logs")
        stack.callback(_UP.pop, folder)
        yield link


def _start_link(plan: ServerPlan, stack: contextlib.ExitStack, logs: Path) -> SuperLink:
    supervisor = Supervisor(logs)
    stack.callback(supervisor.close)
    link = SuperLink(plan, supervisor, Job.environment(plan.folder.absolute() / "job"))
    link.start()
    return link


def _start_trial(session: Session, folder: Path, stack: contextlib.ExitStack) -> SuperLink:
    """Server and sites on loopback, with TLS and keys; ledgers and memories stay in the run's folder."""
    config = session.parts.config
    names = [f"site{i}" for i in range(min(config.fleet.sites, config.clients))]
    for name in names:  # a resumed trial gets new keys; ledger and memory stay
        (folder / "sites" / name / SITE).unlink(missing_ok=True)
    plan = make_network(folder, names, port=free_ports(1)[0], days=3650, force=True)
    code = (*own_code(config.document).values(), config.model.settings.get("source", ""))
    terms = SiteTerms(allow_code=tuple(name for name in code if name))
    memory, supervisor, sites = TrialMemory(session.folder.path).folder, Supervisor(folder / "logs"), []
    for name in names:
        bundle = open_bundle(folder / "bundles" / f"{name}.tar", folder / "sites" / name)
        sites.append(SiteProcesses(bundle, supervisor, terms=terms, memory=memory))
        stack.callback(sites[-1].close)
    stack.callback(supervisor.close)
    link = _start_link(plan, stack, folder / "logs")  # ends before the sites: no round has fewer of them
    for site in sites:
        site.start()
    return link


def _largest_reply(parts: Parts, sites: int) -> int:
    """Most bytes that a site uploads for a round: its clients' replies, the head, and Flower's description of them."""
    clients = min(-(-parts.clients.count // sites), parts.clients.cohort)
    one = reply_limit(parts.wire.reply_schema(parts.network.layout))
    return one * clients + head_limit(clients) + (1 << 21)


def _follow(session: Session, link: SuperLink, report: Report | None) -> Generator[RoundRecord]:
    """Each round once it is in the journal, until the run is finished; a ServerApp that ended is started again."""
    parts, network = session.parts, link.plan.folder.absolute()
    code = tuple(own_code(parts.config.document).values())  # allowed when the session was opened
    path = str(session.folder.path.absolute())
    job = Job(str(network / "job"), path, str(network), vars(parts.config.fleet), code)
    job.prepare()
    link.limit_replies(_largest_reply(parts, len(link.plan.sites)))
    run, done, app = Run(session.folder), session.state.round, KeptAlive(job, link.submit)
    warmed = 0
    while True:
        link.refresh()
        working = job.is_at_work()  # looked at first: what it wrote before it ended is then read below
        run = run.again()
        for record in run.records[done:]:
            done = record["round"]
            yield record
        warmup = run.warmup
        if report is not None and warmup is not None and warmup.done != warmed:
            warmed = warmup.done
            report(warmup.done, warmup.total)
        if working:
            app.seen = True
        elif fault := job.ended()[0]:
            raise fault
        elif run.finished:
            return
        else:
            app.start((done, warmup and warmup.done))
        sleep(_POLL)


@dataclass(eq=False)
class KeptAlive:
    """A ServerApp that is submitted to Flower, and again when it has ended."""

    job: Job
    submit: Callable[[], None]
    seen: bool = False
    """Whether the ServerApp submitted last has begun its work."""
    _deadline: float = 0.0
    _progress: object = None
    _failures: int = 0

    def start(self, progress: object) -> None:
        """Submit it, unless it is still starting; E508 if it has ended too often without any ``progress``."""
        if not self.seen and monotonic() < self._deadline:
            return
        self._failures = self._failures + 1 if progress == self._progress else 0
        self._progress, self.seen, self._deadline = progress, False, monotonic() + _PATIENCE
        if self._failures > _MOST_FAILURES:
            reason = f"ended {self._failures} times in the same round: {self.job.ended()[1].strip()}"
            raise FedfewError("E508", "ServerApp", reason)
        try:
            self.submit()
        except FedfewError:  # the SuperLink may be restarting
            if self._failures == _MOST_FAILURES:
                raise
            self._deadline = monotonic() + 2.0 * (1 + self._failures)
