"""Runs of a network: one, or one after the other while the server stays up."""

from collections.abc import Collection
from time import sleep

from fedfew.core.errors import FedfewError
from fedfew.deploy.monitoring import monitored
from fedfew.deploy.plan import ServerPlan, open_server
from fedfew.deploy.server.network import kept_up, start_or_resume
from fedfew.deploy.server.queue import leave, run_folder, waiting
from fedfew.interface.commands.run import finish, has_baseline, note_sums
from fedfew.interface.console import complain, err, note, warn
from fedfew.runs.folder import SUMMARY
from fedfew.runs.session import Session

_POLL = 1.0


def run_once(plan: ServerPlan, session: Session, json: bool, metrics: int) -> None:
    """Run to the end, with the verdict."""
    asked = ", ".join(plan.asked(session.parts.config.fleet.only))
    err.print(f"network {plan.name} at {plan.host}:{plan.port}; waiting for {asked}", markup=False)
    with kept_up(plan) as link, monitored(metrics, link.supervisor, plan):
        _finish(session, json)


def serve(plan: ServerPlan, allow_code: Collection[str], json: bool, metrics: int) -> None:
    """Stay up and run the plans of the queue, one after the other, until the process is ended."""
    with kept_up(plan) as link, monitored(metrics, link.supervisor, plan):
        err.print(f"network {plan.name} at {plan.host}:{plan.port}; waiting for plans", markup=False)
        while True:
            link.refresh()
            for queued in waiting(plan.folder)[:1]:
                now, out, fault = open_server(plan.folder), run_folder(plan, queued), None
                try:
                    if not (out / SUMMARY).is_file():  # else it ended just before the server did
                        _finish(start_or_resume(now, warn, queued, {}, out, allow_code=allow_code), json)
                except FedfewError as error:
                    fault = error
                    complain(fault)
                leave(plan, queued, fault)
            sleep(_POLL)


def _finish(session: Session, json: bool) -> None:
    note_sums(session.parts.config)
    tested = len(session.parts.federation.test) > 0
    if not tested:
        note("There are no test images: nothing can be said about what the sites' images bring.")
    finish(session, json, baseline=tested and has_baseline(session.parts.config))
