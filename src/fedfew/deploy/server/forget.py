"""Makes the model of a run again without one site's sums, where the method kept each site's last ones.

What the server has seen of the site, what it told the other sites meanwhile, and copies of the old model stay.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, digest, write_atomically
from fedfew.core.types import Forgetting
from fedfew.deploy import audit
from fedfew.deploy.plan import ServerPlan
from fedfew.runs.files import final_files
from fedfew.runs.folder import EVALUATION, MODEL, free_folder
from fedfew.runs.session import reopen

RECORD = "forgotten.json"


def forget(plan: ServerPlan, site: str, run: Path, warn: Warn, allow_code: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write model and evaluation without the site next to the run; what was done, as in the record there.

    E103 if there is no such site, E515 if its sums cannot be taken out.
    """
    if site not in plan.sites:
        raise FedfewError("E103", "SITE", f"{site!r} is not a site of the network; it has {', '.join(plan.sites)}")
    session = reopen(run, warn, anyway=True, allow_code=allow_code)
    parts, state, client = session.parts, session.state, plan.sites.index(site)
    if client not in state.participation:
        raise FedfewError("E515", str(run), f"no update of site {site} is in it", "There is nothing to take out")
    method = parts.config.method
    if not isinstance(method, Forgetting):
        raise FedfewError("E515", str(run), f"{parts.config.method_name} keeps no sums of single sites")
    after = method.forget(state, client, parts.server)
    if after is None:
        raise FedfewError("E515", str(run), "what each site sent was not kept in it")
    before, files = final_files(session.folder, parts, state), final_files(session.folder, parts, after)
    out = free_folder(run.with_name(f"{run.name}-without-{site}"))
    out.mkdir(parents=True)
    for name in (MODEL, EVALUATION):
        if name in files:
            write_atomically(out / name, files[name])
    accuracy = [json.loads(one[EVALUATION])["accuracy"] if EVALUATION in one else None for one in (before, files)]
    about = {
        "site": site, "run": str(run), "time": datetime.now(UTC).isoformat(timespec="seconds"), "folder": str(out),
        "model_before": digest(before[MODEL]), "model": digest(files[MODEL]),
        "accuracy_before": accuracy[0], "accuracy": accuracy[1],
        "sites_left": [plan.sites[k] for k in sorted(after.participation)],
    }  # fmt: skip
    write_atomically(out / RECORD, json.dumps(about, indent=1).encode())
    audit.record(plan.folder, "forgotten", site=site, run=str(run), folder=str(out), model=about["model"])
    return about
