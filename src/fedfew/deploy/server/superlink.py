"""The server's side of Flower: SuperLink on loopback, its executor, the TLS front, registered keys, the run itself."""

import contextlib
import json
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.deploy import flower_programs
from fedfew.deploy.certificates import check_certificate
from fedfew.deploy.front import proxy
from fedfew.deploy.plan import LARGEST_REPLY, NODES, SERVER, ServerPlan, open_server
from fedfew.deploy.processes import Supervisor, check_port, flower_environment, free_ports, wait_until

_START = 90.0
_APP = """[project]
name = "fedfew-app"
version = "1.0.0"
description = "Names the modules of fedfew that are installed on both sides; holds no code of its own."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedfew"

[tool.flwr.app.components]
serverapp = "{server_app}"
clientapp = "{client_app}"

[tool.flwr.app.config]
"""


@dataclass(eq=False)
class SuperLink:
    """Flower's server processes, supervised."""

    plan: ServerPlan
    supervisor: Supervisor
    environment: Mapping[str, str]
    """Variables for the ServerApp."""
    largest_reply: int = 1 << 40
    """Bytes that a site may upload for one reply, until a run says how many it needs."""
    server_app: str = "fedfew.deploy.server.server_app:server_app"
    client_app: str = "fedfew.deploy.site.client_app:client_app"
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _stamps: tuple[int, int] = (0, 0)
    """When server.toml and the certificate were written, as last taken up."""

    def start(self) -> None:
        """Start everything that sites need to connect."""
        plan = self.plan
        check_certificate(plan.ca)
        check_certificate(plan.certificate, plan.ca)
        self.port = plan.behind or self.port
        check_port(*(("127.0.0.1", self.port) if plan.behind else (plan.listen, plan.bound)))
        self._write_home()
        environment = flower_environment(self.home, **self.environment)
        superlink = self.supervisor.add("superlink", self._superlink(), environment)
        wait_until(self._healthy, superlink, _START, "SuperLink")
        executor = ["flower-superexec", "--root-certificates", str(plan.ca)]
        self.supervisor.add("superexec", [*executor, "--runtime-api-address", f"127.0.0.1:{self.port}"], environment)
        self._register()
        if not plan.behind:  # last: a site that connects finds its key registered
            self.limit_replies(self.largest_reply)
            words = [str(plan.folder.absolute()), str(self.port)]
            front = self.supervisor.add("front", [sys.executable, "-m", proxy.__name__, *words], environment)
            wait_until(lambda: answers(plan.listen, plan.bound, plan.ca), front, _START, "TLS front")
        self._stamps = self._written()

    def limit_replies(self, largest: int) -> None:
        """Tell the front how many bytes a site may upload for one reply; it stops the site there."""
        write_atomically(self.plan.folder / LARGEST_REPLY, str(largest).encode())

    def refresh(self) -> None:
        """Take up what changed while running: sites that were admitted or revoked, renewed certificates."""
        if (now := self._written()) == self._stamps:
            return
        renewed, self._stamps = now[1] != self._stamps[1], now
        self.plan = open_server(self.plan.folder)
        for name in ("superlink", "front") if renewed else ("front",):
            self.supervisor.restart(name)
        wait_until(self._healthy, self.supervisor.processes["superlink"], _START, "SuperLink")
        self._register()

    def _written(self) -> tuple[int, int]:
        paths = (self.plan.folder / SERVER, self.plan.certificate)
        first, second = (path.stat().st_mtime_ns for path in paths)
        return first, second

    @property
    def home(self) -> Path:
        return self.plan.folder.absolute() / "flower"

    def _superlink(self) -> list[str]:
        plan = self.plan
        command = [sys.executable, "-m", flower_programs.__name__, flower_programs.SUPERLINK]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--isolation", "process"]
        command += ["--database", str(plan.folder / "state.db"), "--disable-runtime-dependency-installation"]
        certificates = ["--ssl-ca-certfile", plan.ca, "--ssl-certfile", plan.certificate, "--ssl-keyfile", plan.key]
        return [*command, *map(str, certificates), "--enable-supernode-auth"]

    def _write_home(self) -> None:
        """Write the app that names our modules, and the connection for Flower's command line."""
        app = self.home / "app"
        app.mkdir(parents=True, exist_ok=True)
        (app / "pyproject.toml").write_text(_APP.format(server_app=self.server_app, client_app=self.client_app))
        authority = json.dumps(str(self.plan.ca.resolve()))
        here = f'[superlink.fedfew]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = {authority}\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "fedfew"\n\n{here}')

    def _healthy(self) -> bool:
        return answers("127.0.0.1", self.port, self.plan.ca, "/health")

    def _register(self) -> None:
        """Register the keys of the members; known ones stay, those of revoked sites go."""
        plan, path = self.plan, self.plan.folder / NODES
        nodes: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
        keys = {site: str(plan.public_key(site).absolute()) for site in plan.members}
        gone = [site for site in nodes if site not in keys]
        commands = [["supernode", "unregister", nodes.pop(site), "fedfew"] for site in gone]
        commands += [["supernode", "register", key, "fedfew", "--name", site] for site, key in keys.items()]
        for site, result in zip((*gone, *keys), self._flwr(commands) if commands else (), strict=True):
            message = str(result.get("error-message", result))
            if result.get("success") and site in keys:
                nodes[site] = str(result["node-id"])
            elif not result.get("success") and site in keys and "already" not in message.lower():
                raise FedfewError("E508", f"site {site}", f"its key could not be registered: {message[:300]}")
        write_atomically(path, json.dumps(nodes).encode())

    def submit(self) -> None:
        """Start a Flower run, and with it the ServerApp."""
        (result,) = self._flwr([["run", str(self.home / "app"), "fedfew"]])
        if not result.get("success"):
            raise FedfewError("E508", "flwr run", str(result.get("error-message", result))[:300])

    def _flwr(self, commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Run Flower's command line, several commands in one process."""
        environment = flower_environment(self.home)
        try:
            done = subprocess.run(
                [sys.executable, "-m", flower_programs.__name__, json.dumps(commands)],
                env=environment, capture_output=True, text=True, timeout=180, check=False, stdin=subprocess.DEVNULL,
                cwd=self.home,  # Flower takes a folder with the name of the connection for an app
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise FedfewError("E508", "flwr", "did not answer within 180 s") from None
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(results) != len(commands):
            raise FedfewError("E508", "flwr", (done.stderr or done.stdout).strip()[-400:] or "ended without output")
        return results


def answers(host: str, port: int, ca: Path, path: str = "/fedfew") -> bool:
    """Whether a server of this machine answers a request, with a certificate of this authority."""
    where = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    with contextlib.suppress(httpx.HTTPError):
        trusted = ssl.create_default_context(cafile=str(ca))
        httpx.get(f"https://{where}:{port}{path}", verify=trusted, timeout=5.0, trust_env=False)
        return True
    return False
