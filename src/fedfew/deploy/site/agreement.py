"""What a run asks of a site, and the site's answer: by its policy, or as somebody at the site decided.

The site computes the plan's hash and what will leave from the message itself; nothing is taken from the server's word.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Schema
from fedfew.core.storage import write_atomically
from fedfew.deploy.messages.heads import plan_hash
from fedfew.deploy.site.answers import Ready
from fedfew.deploy.site.ledger import Ledger
from fedfew.runtime.wire import Wire
from fedfew.transforms import epsilon

PLANS, PAUSED = "plans", "paused"
APPROVED, REFUSED = "approved", "refused"
AGREED, WAITING = "agreed", "waiting"
SHORTEST = 12
"""Fewest characters of a hash that name a plan."""
_MOST = 200
"""Plans that wait for a decision; beyond, a server cannot fill the disk with more."""


@dataclass(frozen=True)
class Agreement:
    """The answers of a site; ``accept`` is the policy of its limits.toml."""

    folder: Path
    accept: str | Collection[str] = "all"

    def answer(self, plan: str) -> str:
        """Agreed, waiting, refused or paused. A decision about the plan counts more than the policy."""
        if (self.folder / PAUSED).exists():
            return PAUSED
        if decision := _read(self.folder, plan).get("decision"):
            return AGREED if decision == APPROVED else REFUSED
        if isinstance(self.accept, str):
            return AGREED if self.accept == "all" else WAITING
        return AGREED if any(plan.startswith(listed) for listed in self.accept) else REFUSED

    def check(self, head: Mapping[str, Any]) -> None:
        """E424 unless the site has agreed to what a message is part of."""
        plan = plan_hash(head)
        if (answer := self.answer(plan)) != AGREED:
            raise FedfewError("E424", f"plan {plan[:SHORTEST]}", f"this site's answer is: {answer}")

    def show(self, head: Mapping[str, Any], ready: Ready | None, delta: float) -> None:
        """Write down what is asked, for somebody to read and decide."""
        plan, folder = plan_hash(head), self.folder / PLANS
        folder.mkdir(exist_ok=True)
        if not (folder / f"{plan}.json").exists() and len(list(folder.iterdir())) < _MOST:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            about = {"plan": plan, "asked": now, "decision": ""} | _described(head, ready, delta)
            write_atomically(folder / f"{plan}.json", json.dumps(about, indent=1).encode())


def asked_plans(folder: Path) -> list[dict[str, Any]]:
    """What runs have asked of a site, the oldest first."""
    plans = [_read(folder, path.stem) for path in (folder / PLANS).glob("*.json")]
    return sorted((plan for plan in plans if plan), key=lambda plan: str(plan["asked"]))


def decide(folder: Path, plan: str, decision: str) -> dict[str, Any]:
    """Approve or refuse a plan; the ledger records it, and a running site follows it from the next message on."""
    named = [one for one in asked_plans(folder) if len(plan) >= 4 and one["plan"].startswith(plan)]
    if len(named) != 1:
        known = ", ".join(one["plan"][:SHORTEST] for one in asked_plans(folder)) or "none"
        reason = f"{plan!r} names {len(named)} of the plans that this site was asked about: {known}"
        raise FedfewError("E103", "PLAN", reason, "See `fedfew deploy approve FOLDER`")
    (chosen,) = named
    Ledger(folder).append([{"decision": decision, "plan": chosen["plan"]}])
    write_atomically(
        folder / PLANS / f"{chosen['plan']}.json", json.dumps(chosen | {"decision": decision}, indent=1).encode()
    )
    return chosen


def pause(folder: Path, end: bool = False) -> None:
    """Answer nothing until the pause is ended; the site stays online."""
    Ledger(folder).append([{"decision": "pause ended" if end else PAUSED}])
    if end:
        (folder / PAUSED).unlink(missing_ok=True)
    else:
        write_atomically(folder / PAUSED, b"")


def _described(head: Mapping[str, Any], ready: Ready | None, delta: float) -> dict[str, Any]:
    """What is asked, in the words of the config; without ``ready`` the site cannot take part in it anyway."""
    config = head["config"]
    about: dict[str, Any] = {"run": str(head["run"]), "rounds": config.get("rounds"), "config": config}
    about |= {part: str(config.get(part, {}).get("name", "")) for part in ("method", "model")}
    if ready is not None:
        sites = ready.sites
        about["leaves"] = tensors_of(Wire(sites.algorithm, sites.transforms).reply_schema(sites.network.layout))
        if members := head["about"].get("members"):  # of a secure sum
            about["members"] = [f"site {number}: {mark}" for number, mark in members.items()]
            about["honest"] = ready.privacy.honest
        with suppress(FedfewError):  # without the extra nothing can be said
            about["epsilon"] = epsilon({ready.noise: int(about["rounds"])}, delta) if ready.noise else None
            about["delta"] = delta
    return about


def tensors_of(schema: Schema) -> list[str]:
    """Names and shapes of what leaves a site in a round."""
    return [f"{name} {'×'.join('?' if n is None else str(n) for n in one.shape)}" for name, one in schema.items()]


def _read(folder: Path, plan: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / PLANS / f"{plan}.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content
