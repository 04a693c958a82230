"""The Flower fleet of a config: a trial with every part on this machine, or the server of a real network."""

import contextlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedfew.build.parts import Parts, has_remote_sites
from fedfew.config.names import own_code
from fedfew.core.layout import Vector
from fedfew.core.storage import locked
from fedfew.core.types import Scores
from fedfew.deploy.messages.heads import head_limit
from fedfew.deploy.plan import SITE, ServerPlan, make_network, open_bundle, open_server
from fedfew.deploy.processes import Supervisor, free_ports
from fedfew.deploy.server.fleet import FlowerFleet, Membership, Timeouts
from fedfew.deploy.server.superlink import SuperLink
from fedfew.deploy.site.memory import hand_over, memory_folder, run_id
from fedfew.deploy.site.processes import SiteProcesses, SiteTerms
from fedfew.runtime.gate import reply_limit


def flower_fleet(parts: Parts, score: Callable[[Vector, Vector | None], Scores], folder: Path) -> FlowerFleet:
    """Start what the config asks for; after an error nothing is left running."""
    stack = contextlib.ExitStack()
    moves = None
    try:
        if has_remote_sites(parts.config):
            plan = open_server(Path(parts.config["fleet.network"]))
            stack.enter_context(locked(plan.folder))
            link = _start_server(parts, plan, stack, plan.folder / "logs")
        else:
            plan, link = _start_trial(parts, folder, stack)
            moves = partial(hand_over, folder)
        return FlowerFleet(
            connection=link.connection,
            members=Membership(plan.sites, parts.config["clients"], link.keys()),
            run_description=run_description(parts, run_id(folder)),
            timeouts=_timeouts(parts),
            score_here=score,
            limit=_limit(parts),
            shut_down=stack.close,
            hand_over=moves,
        )
    except BaseException:
        stack.close()
        raise


def _start_server(parts: Parts, plan: ServerPlan, stack: contextlib.ExitStack, logs: Path) -> SuperLink:
    supervisor = Supervisor(logs)
    stack.callback(supervisor.close)
    link = SuperLink(plan, supervisor, largest_reply=_largest_reply(parts, len(plan.sites)))
    stack.callback(link.connection.close)
    link.start()
    return link


def _start_trial(parts: Parts, run: Path, stack: contextlib.ExitStack) -> tuple[ServerPlan, SuperLink]:
    """Server and sites on loopback, with TLS and keys; ledgers and memories stay in the run's folder."""
    folder = run / "network"
    count = min(parts.config["fleet.sites"], parts.config["clients"])
    names = [f"site{i}" for i in range(count)]
    for name in names:  # a resumed trial gets new keys; ledger and memory stay
        (folder / "sites" / name / SITE).unlink(missing_ok=True)
    plan = make_network(folder, names, port=free_ports(1)[0], days=3650, force=True)
    link = _start_server(parts, plan, stack, folder / "logs")
    supervisor = Supervisor(folder / "logs")
    stack.callback(supervisor.close)
    named = (*own_code(parts.config.document).values(), parts.config["model"].get("source", ""))
    terms = SiteTerms(allow_code=tuple(name for name in named if name))
    for name in names:
        site = SiteProcesses(
            open_bundle(folder / "bundles" / f"{name}.tar", folder / "sites" / name),
            supervisor,
            terms=terms,
            memory=memory_folder(run),
        )
        stack.callback(site.close)
        site.start()
    return plan, link


def run_description(parts: Parts, run: str) -> dict[str, Any]:
    """Fields of every message besides its payload: the run, and all that a site needs to build its part."""
    federation = parts.federation
    document = {key: value for key, value in parts.config.document.items() if key != "fleet"}
    return {
        "run": run,
        "versions": {name: version(name) for name in ("fedfew", "torch")},
        "config": document | {"fleet": {"kind": "inline", "network": ""}},
        "about": {
            "classes": len(federation.classes),
            "samples": dict(federation.about),
            "backbone": parts.backbone.get("sha256", ""),
            "partition": federation.partition.hash,
        },
    }


def _timeouts(parts: Parts) -> Timeouts:
    config = parts.config
    return Timeouts(config["fleet.timeout"], config["fleet.wait"], config["fleet.min_clients"])


def _limit(parts: Parts) -> int:
    """Most bytes of one client's reply."""
    return reply_limit(parts.wire.reply_schema(parts.network.layout))


def _largest_reply(parts: Parts, sites: int) -> int:
    """Most bytes that a site uploads for a round: its clients' replies, the head, and Flower's description of them."""
    clients = min(-(-parts.clients.count // sites), parts.clients.cohort)
    return _limit(parts) * clients + head_limit(clients) + (1 << 21)
