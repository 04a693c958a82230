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
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedfew.core.environment import environment
from fedfew.core.layout import Payload
from fedfew.core.types import ClientUpdate
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.processes import Supervisor, flower_environment, free_ports
from fedfew.deploy.server.superlink import SuperLink
from fedfew.deploy.site.answers import Ready
from fedfew.deploy.site.images import read_npz
from fedfew.deploy.site.processes import SiteProcesses
from fedfew.deploy.site.warm_site import WarmSite, listen, serve

DATA, PLAN = "FEDFEW_BENCHMARK_DATA", "FEDFEW_BENCHMARK_PLAN"
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
    warm = WarmSite(0, lambda head: Ready(echo, lambda client: True), Path(state), Path(state, "memory"))
    serve(warm, listen(path))


def measure(folder: Path, kind: str, options: argparse.Namespace, data: Path) -> list[float]:
    """Seconds of each round after the first, which warms everything up, in a running network of one kind."""
    names = [f"s{i}" for i in range(options.sites)]
    plan, out = make_network(folder / "net", names, port=free_ports(1)[0], days=2), folder / "seconds.json"
    paths = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{paths}" if paths else str(HERE)
    os.environ[DATA] = str(data)
    about = {"network": str(plan.folder), "out": str(out), "rounds": options.rounds, "megabytes": options.megabytes}
    os.environ[PLAN] = json.dumps(about)
    with contextlib.ExitStack() as stack:
        supervisor = Supervisor(folder / "logs")
        stack.callback(supervisor.close)
        link = SuperLink(plan, supervisor, {}, server_app="flower_apps:rounds_app", client_app=APPS[kind])
        link.start()
        for name in names:
            bundle = open_bundle(folder / "net" / "bundles" / f"{name}.tar", folder / name)
            processes = SiteProcesses(bundle, supervisor)
            stack.callback(processes.close)
            if kind == "fedfew":
                start_echo(supervisor, processes, data)
            processes.start_node()
        link.submit()
        while not out.exists():
            sleep(0.5)
    seconds: list[float] = json.loads(out.read_text())
    if len(seconds) != options.rounds + 1:
        raise SystemExit(f"{kind}: {seconds}")
    return seconds[1:]


def start_echo(supervisor: Supervisor, processes: SiteProcesses, data: Path) -> None:
    """Start the warm process for a node."""
    command = [sys.executable, __file__, "site", str(processes.socket), str(processes.plan.folder), str(data)]
    supervisor.add(f"site-{processes.plan.name}", command, flower_environment(processes.home))


def report(results: Mapping[str, list[float]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians, and the two ratios that have targets."""
    middle = {kind: statistics.median(seconds) for kind, seconds in results.items()}
    return {
        "seconds": {kind: [round(s, 3) for s in seconds] for kind, seconds in results.items()},
        "median": {kind: round(s, 3) for kind, s in middle.items()},
        "faster_than_plain": round(middle["plain"] / middle["fedfew"], 2),
        "over_floor": round(middle["fedfew"] / middle["floor"], 2),
        "targets": {"faster_than_plain": ">= 1.5", "over_floor": "<= 1.3"},
        "megabytes": options.megabytes,
        "sites": options.sites,
        "images": options.images,
        "flwr": version("flwr"),
        "environment": environment(),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print the medians as a table."""
    print(f"seconds a round, {result['megabytes']} MB to and from each of {result['sites']} sites, median")
    for kind, title in (
        ("floor", "Flower alone: a ClientApp that returns at once"),
        ("plain", "plain: torch and data loaded for every message"),
        ("fedfew", "fedfew: warm sites"),
    ):
        print(f"{result['median'][kind]:8.2f}  {title}")
    print(f"{result['faster_than_plain']:.2f} times faster than plain, {result['over_floor']:.2f} times the floor")


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
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder_name:
        data = Path(folder_name) / "images.npz"
        rng = np.random.default_rng(0)
        np.savez(data, images=rng.integers(0, 256, (options.images, 3, 32, 32), dtype=np.uint8))
        for kind in ("floor", "plain", "fedfew"):
            folder = Path(folder_name) / kind
            folder.mkdir()
            results[kind] = measure(folder, kind, options, data)
    result = report(results, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
