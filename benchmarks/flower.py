"""Seconds per round through Flower with several sites on loopback: a plain ClientApp, warm sites, and the floor.

    python benchmarks/flower.py [--megabytes 26] [--sites 5] [--rounds 6] [--json]

All use the same SuperLink, TLS front, keys, ServerApp and traffic (the model goes down and comes back, no training), so
only the site differs: torch and data loaded for every message, loaded once in a warm process, or nothing at all.
Writes benchmarks/results/flower.json. Needs an otherwise idle machine.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedfew.core.environment import environment
from fedfew.core.types import ClientUpdate, Payload, Scores
from fedfew.deploy.messages.frames import LIMIT
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.processes import Supervisor, flower_environment, free_ports
from fedfew.deploy.server.fleet import FlowerFleet, Membership, Timeouts
from fedfew.deploy.server.superlink import SuperLink
from fedfew.deploy.site.images import read_npz
from fedfew.deploy.site.processes import SiteProcesses
from fedfew.deploy.site.warm_site import Ready, WarmSite, serve

HERE = Path(__file__).resolve().parent
APPS = {
    "floor": "flower_apps:floor_app",
    "plain": "flower_apps:plain_app",
    "fedfew": "fedfew.deploy.site.client_app:client_app",
}


@dataclass
class Echo:
    """Replaces a site's training: the images are loaded, and ψ is ω as received."""

    images: torch.Tensor
    memory: dict[int, dict[str, torch.Tensor]]

    @property
    def algorithm(self) -> "Echo":
        return self

    @property
    def network(self) -> Any:
        return SimpleNamespace(layout=SimpleNamespace(size=1 << 30))

    def reply_schema(self, layout: object) -> dict[str, Any]:
        return {}

    def train(self, round: int, client: int, payload: Payload) -> ClientUpdate:
        return ClientUpdate(client, {"psi": payload["omega"]}, 1, {})


def site(path: str, state: str, data: str) -> None:
    """The warm process of a site, with an echo instead of training."""
    echo: Any = Echo(read_npz(Path(data)), {})
    warm = WarmSite(0, lambda head: Ready(echo, lambda client: True), Path(state))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    serve(warm, listener, LIMIT)


@contextlib.contextmanager
def network(folder: Path, kind: str, sites: int, data: Path) -> Iterator[FlowerFleet]:
    """A running network of one kind, with every site online."""
    names = [f"s{i}" for i in range(sites)]
    plan = make_network(folder / "net", names, port=free_ports(1)[0], days=2)
    paths = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{paths}" if paths else str(HERE)
    os.environ["FEDFEW_BENCHMARK_DATA"] = str(data)
    with contextlib.ExitStack() as stack:
        supervisor = Supervisor(folder / "logs")
        stack.callback(supervisor.close)
        link = SuperLink(plan, supervisor, APPS[kind])
        stack.callback(link.connection.close)
        link.start()
        for name in names:
            processes = SiteProcesses(
                open_bundle(folder / "net" / "bundles" / f"{name}.tar", folder / name), supervisor
            )
            stack.callback(processes.close)
            if kind == "fedfew":
                start_echo(supervisor, processes, data)
            processes.start_node()
        fleet = FlowerFleet(
            link.connection, Membership(names, sites, link.keys()), {"run": "bench", "config": {}, "about": {}},
            Timeouts(timeout=600.0, wait=300.0), lambda omega, clients: Scores(0.0, 0.0, None),
        )  # fmt: skip
        fleet.online()
        yield fleet


def start_echo(supervisor: Supervisor, processes: SiteProcesses, data: Path) -> None:
    """Start the warm process for a node."""
    command = [sys.executable, __file__, "site", str(processes.socket), str(processes.plan.folder), str(data)]
    supervisor.add(f"site-{processes.plan.name}", command, flower_environment(processes.home))


def measure(folder: Path, kind: str, given: argparse.Namespace, data: Path) -> list[float]:
    """Seconds of each round after the first, which warms everything up."""
    seconds = []
    with network(folder, kind, given.sites, data) as fleet:
        for t in range(given.rounds + 1):
            omega = torch.randn(given.megabytes * 1_000_000 // 4, generator=torch.Generator().manual_seed(t))
            payloads: Mapping[int, Payload] = {k: {"omega": omega} for k in range(given.sites)}
            start = perf_counter()
            answers = list(fleet.train(t, payloads))
            seconds.append(perf_counter() - start)
            wrong = [a for a in answers if not isinstance(a, ClientUpdate) or not torch.equal(a.reply["psi"], omega)]
            if wrong or len(answers) != given.sites:
                raise SystemExit(f"{kind}: round {t} went wrong: {wrong[:1]}")
            print(f"{kind:7} round {t}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    return seconds[1:]


def report(results: Mapping[str, list[float]], given: argparse.Namespace) -> dict[str, Any]:
    """Medians, and the two ratios that have targets."""
    middle = {kind: statistics.median(seconds) for kind, seconds in results.items()}
    return {
        "seconds": {kind: [round(s, 3) for s in seconds] for kind, seconds in results.items()},
        "median": {kind: round(s, 3) for kind, s in middle.items()},
        "faster_than_plain": round(middle["plain"] / middle["fedfew"], 2),
        "over_floor": round(middle["fedfew"] / middle["floor"], 2),
        "targets": {"faster_than_plain": ">= 1.5", "over_floor": "<= 1.3"},
        "megabytes": given.megabytes,
        "sites": given.sites,
        "images": given.images,
        "flwr": version("flwr"),
        "environment": environment(),
    }


def show(found: Mapping[str, Any]) -> None:
    """Print the medians as a table."""
    print(f"seconds a round, {found['megabytes']} MB to and from each of {found['sites']} sites, median")
    for kind, title in (
        ("floor", "Flower alone: a ClientApp that returns at once"),
        ("plain", "plain: torch and data loaded for every message"),
        ("fedfew", "fedfew: warm sites"),
    ):
        print(f"{found['median'][kind]:8.2f}  {title}")
    print(f"{found['faster_than_plain']:.2f} times faster than plain, {found['over_floor']:.2f} times the floor")


def main() -> None:
    """Measure all three, one after another."""
    if sys.argv[1:2] == ["site"]:
        site(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=26)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=10_000, help="images of 3×32×32 that a site has")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "flower.json")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "images.npz"
        rng = np.random.default_rng(0)
        np.savez(data, images=rng.integers(0, 256, (given.images, 3, 32, 32), dtype=np.uint8))
        for kind in ("floor", "plain", "fedfew"):
            folder = Path(place) / kind
            folder.mkdir()
            results[kind] = measure(folder, kind, given, data)
    found = report(results, given)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
