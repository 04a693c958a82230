"""Keeps a site online and reports its state, until it is stopped."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time

from fedfew.core.storage import locked
from fedfew.deploy.joining import take_up_authority
from fedfew.deploy.monitoring import monitored
from fedfew.deploy.plan import STATUS, SitePlan
from fedfew.deploy.processes import ManagedProcess, Supervisor, log_text
from fedfew.deploy.site.images import count_images
from fedfew.deploy.site.limits import SiteTerms
from fedfew.deploy.site.processes import SiteProcesses
from fedfew.deploy.site.warm_site import ENDED
from fedfew.interface.console import err

AWAY = "the server cannot be reached; trying again"
REFUSED = "the server refuses this site: its key was revoked, or its clock is wrong; trying again"
_DAILY = 12 * 3600.0
_FRESH = 20.0
"""Seconds for which an answer of the server counts as being online: the SuperNode asks every three."""


def keep_online(plan: SitePlan, data: Path, terms: SiteTerms, metrics: int = 0) -> None:
    """Start the site's processes and watch them; errors at the start are raised, later ones reported and retried."""
    images = count_images(data)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(plan.folder))
        supervisor = Supervisor(plan.folder / "logs")
        site = SiteProcesses(plan, supervisor, data, terms)
        stack.callback(site.close)
        stack.callback(supervisor.close)
        earlier = _size(plan.folder / "logs" / f"node-{plan.name}.log")
        (plan.folder / STATUS).write_text("starting", "utf-8")
        site.start()
        stack.enter_context(monitored(metrics, supervisor, plan))
        site.wait_for_warm_site()
        where = f"server {plan.address}; log {plan.folder / 'logs'}"
        err.print(f"site {plan.name}: {images}; {where}", markup=False, soft_wrap=True)
        node_log = NodeLog(supervisor.processes[f"node-{plan.name}"], earlier, contact=site.contact)
        ended = _stamp(plan.folder / ENDED)
        checked = 0.0
        while True:
            if time() - checked > _DAILY:
                checked = time()
                if take_up_authority(plan):
                    err.print(f"site {plan.name}: the network's authority was renewed", markup=False)
            if (now := _stamp(plan.folder / ENDED)) != ended:
                ended = now
                err.print(f"site {plan.name}: the run is over; waiting for the next one, Ctrl-C quits", markup=False)
            if news := node_log.news():
                (plan.folder / STATUS).write_text(news, "utf-8")
                err.print(f"site {plan.name}: {news}", markup=False, soft_wrap=True)
            sleep(1.0)


@dataclass
class NodeLog:
    """Follows a SuperNode's log: whether the site is online, and why not."""

    node: ManagedProcess
    seen: int = 0
    """Bytes of the log that have been read, or existed before."""
    state: str = "connecting"
    reported: str = ""
    starts: int = 1
    known: bool = False
    """Whether the server has accepted the node since its last start."""
    contact: Path | None = None
    """File that the SuperNode touches whenever the server has answered it: what it says counts, if it exists."""
    refused: float = 0.0
    """When the server last answered that it does not know the site's key."""

    def news(self) -> str:
        """The site's state if it has changed since the last call, else nothing."""
        if self.node.starts != self.starts:
            self.starts, self.state = self.node.starts, "connecting"
            self.known = False
        for line in self._new_lines():
            if "SuperNode ID:" in line:
                self.state, self.known = "online", True
            elif "Connection attempt failed" in line:
                self.state = AWAY
            elif "Connection successful" in line:
                self.state = "online" if self.known else "connecting"
            elif "Failed to initialize the connection" in line or "[code:" in line:
                self.state = f"refused by the server: {line.strip()[:300]}"
            elif "Client error '400" in line:
                self.refused = time()
        if self.contact is not None and self.contact.exists() and self.node.running:
            heard = self.contact.stat().st_mtime
            if time() - heard < _FRESH:
                self.state, self.known = "online", True
            elif self.state == "online":
                self.state = REFUSED if self.refused > heard else AWAY
        gone = self.state == "online" and not self.node.running
        before, self.reported = self.reported, "offline; starting again" if gone else self.state
        return self.reported if self.reported != before else ""

    def _new_lines(self) -> list[str]:
        """New complete lines; a log that is shorter than before has been rotated."""
        if _size(self.node.log) < self.seen:
            self.seen = 0
        try:
            with self.node.log.open("rb") as log:
                log.seek(self.seen)
                content = log.read()
        except OSError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self.seen += len(complete)
        return [log_text(line) for line in complete.decode("utf-8", errors="replace").splitlines()]


def _stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
