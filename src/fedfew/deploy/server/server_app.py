"""The ServerApp of a network: continues the run in its folder, round by round, on the sites that Flower connects.

It can be killed at any moment: the supervisor submits it again, and it resumes from the checkpoint.
"""

import contextlib
import logging
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfew.config.parts import Parts, sites_of
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.deploy import audit
from fedfew.deploy.plan import ServerPlan, open_server
from fedfew.deploy.server.fleet import GridFleet
from fedfew.deploy.server.job import Job
from fedfew.deploy.server.members import Membership
from fedfew.deploy.site.files import TrialMemory, run_id
from fedfew.deploy.versions import versions
from fedfew.runs.session import Session, reopen
from fedfew.runtime.gate import reply_limit

if TYPE_CHECKING:  # where a run has secure sums
    from fedfew.secure.identity import Identity

_log = logging.getLogger("flwr")  # among Flower's own lines, in the log of its executor

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the job of the supervisor that started this process, unless another ServerApp does it already."""
    with contextlib.suppress(ValueError):  # not in the main thread
        # at once: with its network going down, it must not go on to a round that has fewer sites
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    job = Job.received()
    with contextlib.ExitStack() as stack:
        if not job.begin(stack):
            return
        try:
            conduct(grid, job)
        except FedfewError as fault:
            job.end(fault)
        except Exception:
            job.end(traceback=traceback.format_exc())
            raise


def conduct(grid: Grid, job: Job) -> None:
    """Run the rounds that are left; each is on disk when the next begins."""
    fleet = {f"fleet.{key}": value for key, value in job.fleet.items()}
    # the supervisor has compared the environments and warned about damage
    session = reopen(job.run, warn, fleet, anyway=True, allow_code=job.allow_code)
    plan = open_server(Path(job.network))
    config = session.parts.config
    asked = {plan.sites.index(name) for name in plan.asked(config.fleet.only)}
    keys = {key: number for key, number in plan.numbers_of_keys().items() if number in asked}
    run = run_id(session.folder.path)

    def note(site: int, told: Mapping[str, Any]) -> None:
        audit.record(plan.folder, "answer", site=plan.sites[site], run=run, **told)

    identity = identity_of(config, plan)
    members = Membership(plan.sites[: config.clients], config.clients, keys, identity)
    advance(grid, session, members, note if config.remote else None)


def advance(
    grid: Grid, session: Session, members: Membership, note: Callable[[int, Mapping[str, Any]], None] | None = None
) -> None:
    """Run the rounds that are left on the nodes of a Grid; with ``note`` the sites are asked whether they agree."""
    for record in session.advance(fleet=grid_fleet(grid, session.parts, members, session.folder.path, note)):
        accuracy = "" if record["accuracy"] is None else f": accuracy {100 * record['accuracy']:.1f} %"
        _log.info("round %d of %d%s", record["round"], session.rounds, accuracy)


def identity_of(config: Config, plan: ServerPlan) -> "Identity | None":
    """The sites' signed keys, for a run with secure sums."""
    if config.privacy.sums != "secure" or not config.entry.asks_clients:
        return None
    from fedfew.deploy.roster import server_identity  # noqa: PLC0415 - where a run has secure sums

    return server_identity(plan, plan.asked(config.fleet.only), trial=not config.remote)


def warn(fault: FedfewError) -> None:
    """Write a fault that was repaired to Flower's log."""
    _log.warning("%s", fault)


def grid_fleet(
    grid: Grid,
    parts: Parts,
    members: Membership,
    run: Path,
    note: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> GridFleet:
    """The fleet of a run; the sites of a trial share their clients' memories with it."""
    config = parts.config
    least = config.fleet.min_clients or (0 if config.remote else config.clients)  # a trial's sites are all here
    return GridFleet(
        grid,
        members,
        run_description(parts, run_id(run), members.identity),
        replace(config.fleet, min_clients=least),
        sites_of(config, parts.federation, parts.network),
        reply_limit(parts.wire.reply_schema(parts.network.layout)),
        None if config.remote else TrialMemory(run),
        note,
    )


def run_description(parts: Parts, run: str, identity: "Identity | None" = None) -> dict[str, Any]:
    """Fields of every message besides its payload: the run, and all that a site needs to build its part."""
    federation = parts.federation
    members = {}
    if identity:
        from fedfew.deploy.roster import fingerprints  # noqa: PLC0415 - where a run has secure sums

        members["members"] = fingerprints(identity.members)
    document = {key: value for key, value in parts.config.document.items() if key != "fleet"}
    return {
        "run": run,
        "versions": versions(),
        "config": document | {"fleet": {"kind": "inline", "network": ""}},
        "about": {
            "classes": len(federation.classes),
            "samples": dict(federation.about),
            "backbone": parts.backbone.get("sha256", ""),
            "partition": federation.partition.hash,
        }
        | members,
    }
