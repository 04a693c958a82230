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

_START = 120.0


@dataclass(frozen=True)
class SiteTerms:
    """Conditions that a site enforces, whatever a server's config says."""

    min_noise: float = 0.0
    max_clip: float = 0.0
    """0: any."""
    max_epsilon: float = 0.0
    """Largest total ε of all updates in all runs; 0: no limit."""
    delta: float = 1e-5
    """δ at which ε is computed."""
    allow_code: tuple[str, ...] = ()
    """Names of code outside fedfew that a server's config may use."""

    def options(self) -> list[str]:
        """The terms as command-line options; only those that differ from the defaults."""
        plain = SiteTerms()
        numbers = ("min_noise", "max_clip", "max_epsilon", "delta")
        changed = [(name, value) for name in numbers if (value := getattr(self, name)) != getattr(plain, name)]
        words = [word for name, value in changed for word in (f"--{name.replace('_', '-')}", f"{value:g}")]
        return words + [word for name in self.allow_code for word in ("--allow-code", name)]


@dataclass(frozen=True)
class Order:
    """What the warm process of a site is started with. Without ``data`` it is a trial with the config's partition."""

    socket: str
    state: str
    number: int
    sites: int
    data: str
    memory: str
    """Folder of the clients' memories."""
    terms: SiteTerms

    @staticmethod
    def parsed(text: str) -> "Order":
        """From the JSON on the process's command line."""
        content = json.loads(text)
        return Order(**content | {"terms": SiteTerms(**content["terms"])})


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

    def check(self) -> None:
        """E505 if the key or certificate is unusable."""
        self.plan.check()
        if not self.plan.insecure:
            check_certificate(self.plan.ca)
            check_site_key(self.plan.key)

    def start(self) -> None:
        """Start both; the SuperNode connects and keeps trying."""
        self.check()
        self.start_warm_site()
        self.start_node()

    @property
    def socket(self) -> Path:
        return Path(self._sockets.name) / "site"

    def start_warm_site(self) -> ManagedProcess:
        """Start the process that trains."""
        plan, data, memory = self.plan, str(self.data or ""), str(self.memory or self.plan.folder / "memory")
        order = Order(str(self.socket), str(plan.folder), plan.number, plan.sites, data, memory, self.terms)
        command = [sys.executable, "-m", "fedfew.deploy.site", json.dumps(asdict(order))]
        environment = flower_environment(self.home, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        return self.supervisor.add(f"site-{plan.name}", command, environment)

    def start_node(self) -> ManagedProcess:
        """Start Flower's SuperNode; its runtime interface stays on loopback."""
        plan, port = self.plan, str(free_ports(1)[0])
        self.home.mkdir(parents=True, exist_ok=True)
        trust = ["--root-certificates", str(plan.ca), "--auth-supernode-private-key", str(plan.key)]
        command = [sys.executable, "-m", flower_programs.__name__, flower_programs.SUPERNODE]
        command += ["--superlink", plan.address, "--host", "127.0.0.1", "--port", port]
        command += ["--insecure"] if plan.insecure else trust
        environment = flower_environment(self.home, FEDFEW_SITE=str(self.socket))
        return self.supervisor.add(f"node-{plan.name}", command, environment)

    @property
    def home(self) -> Path:
        return self.plan.folder / "flower"

    def wait_for_warm_site(self) -> None:
        """Wait until the process that trains is listening."""
        name = self.plan.name
        wait_until(self.socket.exists, self.supervisor.processes[f"site-{name}"], _START, f"site {name}")

    def close(self) -> None:
        """Remove the socket; the supervisor ends the processes."""
        self._sockets.cleanup()
