"""The server of a real network: starts its run, or resumes it, in the network's own folder."""

from pathlib import Path
from typing import Any

from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn
from fedfew.deploy.plan import CONFIG, ServerPlan
from fedfew.runs.folder import SUMMARY
from fedfew.runs.session import Session, reopen, start


def start_or_resume(
    plan: ServerPlan, warn: Warn, config: str, overrides: dict[str, Any], out: Path | None, *, anyway: bool = False
) -> Session:
    """A session on the network's run; one that has begun is resumed from its last committed round."""
    folder = out or plan.folder / "run"
    fleet = {"fleet.kind": "flower", "fleet.network": str(plan.folder.absolute())}
    if (folder / "checkpoints").is_dir():
        if (folder / SUMMARY).is_file():
            raise FedfewError(
                "E301", str(folder), "holds a finished run", "Give another folder for the next with --out"
            )
        return reopen(folder, warn, overrides | fleet, anyway=anyway)
    return start(load(config or str(plan.folder / CONFIG), overrides | fleet), folder)
