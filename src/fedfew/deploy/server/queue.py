"""The queue of a server that stays up: a folder of plans, of which the first by name is next.

A plan is a config. It leaves the queue when its run has ended; so a server that was killed continues it.
"""

from pathlib import Path
from typing import Any

from fedfew.config.files import dumps
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.deploy import audit
from fedfew.deploy.plan import ServerPlan, check_names

QUEUE, RUNS = "queue", "runs"
DONE, FAILED = ".done", ".failed"


def submit(plan: ServerPlan, config: str, overrides: dict[str, Any], name: str) -> Path:
    """Put a config at the end of the queue, checked as a run would check it."""
    check_names([name])
    plan.asked(overrides.get("fleet.only", ""))
    document = load(config, overrides | {"clients": len(plan.sites), "fleet.kind": "flower"}).document
    folder = plan.folder / QUEUE
    folder.mkdir(exist_ok=True)
    numbers = [int(number) for path in folder.iterdir() if (number := path.name.partition("-")[0]).isdigit()]
    path = folder / f"{max(numbers, default=0) + 1:04d}-{name}.toml"
    write_atomically(path, dumps(document).encode())
    audit.record(plan.folder, "plan submitted", plan=path.name)
    return path


def waiting(folder: Path) -> list[Path]:
    """The plans in the queue of a server's folder, the next one first."""
    return sorted((folder / QUEUE).glob("*.toml"))


def run_folder(plan: ServerPlan, queued: Path) -> Path:
    """Where the run of a plan is."""
    return plan.folder / RUNS / queued.stem


def leave(plan: ServerPlan, queued: Path, fault: FedfewError | None = None) -> None:
    """Take a plan out of the queue, done or failed; renamed to .toml again, a failed one is continued."""
    queued.replace(queued.with_suffix(FAILED if fault else DONE))
    audit.record(plan.folder, "plan failed" if fault else "plan done", plan=queued.name, reason=str(fault or ""))
