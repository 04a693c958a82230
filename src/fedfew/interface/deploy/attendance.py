"""Keeps a site online and tells what happens to it, until it is told to end."""

import contextlib
from pathlib import Path
from time import sleep

from fedfew.experiment.deploy.client import SiteProcesses
from fedfew.experiment.deploy.images import count_images
from fedfew.experiment.deploy.plan import SitePlan
from fedfew.experiment.deploy.processes import Crew, Kept
from fedfew.experiment.storage import locked
from fedfew.interface.console import err


def attend(plan: SitePlan, data: Path, min_noise: float, max_clip: float, allowed: tuple[str, ...] = ()) -> None:
    """Start the site's processes and watch them; a fault at the start is raised, later ones are told and mended."""
    images = count_images(data)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(plan.folder))
        crew = Crew(plan.folder / "logs")
        site = SiteProcesses(plan, crew, data, min_noise, max_clip, allowed)
        stack.callback(site.close)
        stack.callback(crew.close)
        site.start()
        site.wait_for_warm_site()
        err.print(f"site {plan.name}: {images}; server {plan.address}; log {plan.folder / 'logs'}", markup=False)
        _watch(plan, crew.members[f"node-{plan.name}"])


def _watch(plan: SitePlan, node: Kept) -> None:
    """Tell when the site is online, and why it is not."""
    told = ""
    while True:
        state = _state(node)
        if state != told:
            told = state
            err.print(f"site {plan.name}: {state}", markup=False, soft_wrap=True)
        sleep(1.0)


def _state(node: Kept) -> str:
    try:
        lines = node.log.read_text("utf-8", errors="replace").splitlines()[-200:]
    except OSError:
        return "starting"
    for line in reversed(lines):
        if "SuperNode ID:" in line:
            return "online" if node.running else "offline; starting again"
        if "Failed to initialize the connection" in line or "[code:" in line:
            return f"refused by the server: {line.strip()[:300]}"
    return "connecting"
