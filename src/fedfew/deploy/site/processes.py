"""A site's processes: the warm site and Flower's SuperNode; both are restarted when they die."""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedfew.deploy import flower_programs
from fedfew.deploy.certificates import check_certificate, check_site_key
from fedfew.deploy.plan import SitePlan
from fedfew.deploy.processes import ManagedProcess, Supervisor, flower_environment, free_ports, wait_until
from fedfew.deploy.site import warm_site
from fedfew.deploy.site.limits import SiteTerms

_START = 120.0


@dataclass(eq=False)
class SiteProcesses:
    """The processes of a site. Without ``data`` it is a trial: the images come from the config's partition."""

    plan: SitePlan
    supervisor: Supervisor
    data: Path | None = None
    terms: SiteTerms = field(default_factory=SiteTerms)
    memory: Path | None = None
    """Where clients' memories are stored, if not in the site's folder."""
    _sockets: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="fedfew-")  # mode 0700, short path
    )

    def start(self) -> None:
        """Start both; the SuperNode connects and keeps trying. E505 if the key or certificate is unusable."""
        check_certificate(self.plan.ca)
        check_site_key(self.plan.key)
        self._start_warm_site()
        self.start_node()

    @property
    def socket(self) -> Path:
        return Path(self._sockets.name) / "site"

    @property
    def contact(self) -> Path:
        """Touched by the SuperNode whenever the server has answered."""
        return Path(self._sockets.name) / "contact"

    @property
    def home(self) -> Path:
        return self.plan.folder / "flower"

    def _start_warm_site(self) -> None:
        plan = self.plan
        order = {
            "path": str(self.socket), "state": str(plan.folder), "memory": str(self.memory or plan.folder / "memory"),
            "number": plan.number, "sites": plan.sites, "data": str(self.data or ""), "terms": asdict(self.terms),
        }  # fmt: skip
        command = [sys.executable, "-m", warm_site.__name__, json.dumps(order)]
        environment = flower_environment(self.home, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self.supervisor.add(f"site-{plan.name}", command, environment)

    def start_node(self) -> ManagedProcess:
        """Start Flower's SuperNode; its runtime interface stays on loopback."""
        plan, port = self.plan, str(free_ports(1)[0])
        self.home.mkdir(parents=True, exist_ok=True)
        trust = ["--root-certificates", str(plan.ca), "--auth-supernode-private-key", str(plan.key)]
        command = [sys.executable, "-m", flower_programs.__name__, flower_programs.SUPERNODE]
        command += ["--superlink", plan.address, "--host", "127.0.0.1", "--port", port]
        command += trust
        environment = flower_environment(self.home, FEDFEW_SITE=str(self.socket), FEDFEW_CONTACT=str(self.contact))
        return self.supervisor.add(f"node-{plan.name}", command, environment)

    def wait_for_warm_site(self) -> None:
        """Wait until the process that trains is listening."""
        name = self.plan.name
        wait_until(self.socket.exists, self.supervisor.processes[f"site-{name}"], _START, f"site {name}")

    def close(self) -> None:
        """Remove the socket; the supervisor ends the processes."""
        self._sockets.cleanup()
