"""A site's answers to the jobs of one message: each client trained with its memory, or a code that says why not.

The reasons for failures stay at the site.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.layout import Payload
from fedfew.core.types import ClientUpdate
from fedfew.deploy.messages.frames import Arrays
from fedfew.deploy.messages.heads import MEANINGS
from fedfew.deploy.messages.tensors import pack, unpack
from fedfew.deploy.site.limits import check_payload
from fedfew.runtime.site import Sites
from fedfew.transforms import Privacy

Answers = list[dict[str, Any]]
"""One for each client: its update with the tensors, or a code."""
_log = logging.getLogger(__name__)


class KeptSecrets(Protocol):
    """What one client keeps between the exchanges of a secure sum."""

    def read(self) -> dict[str, Tensor]: ...

    def write(self, tensors: Mapping[str, Tensor]) -> None: ...


class ClientMemory(Protocol):
    """What one client remembers between the rounds of one run."""

    def before(self, round: int) -> dict[str, Tensor]: ...

    def write(self, round: int, tensors: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Ready:
    """A site that is built for one config."""

    sites: Sites
    serves: Callable[[int], bool]
    """Whether this site serves a client."""
    privacy: Privacy = field(default_factory=Privacy)
    """Of a real site's updates; in a trial nothing is charged."""
    images: str = ""
    """Hash of the site's images: a message that comes again after they changed is a new one."""
    trial: bool = False
    """Whether the pseudo-labels of each class may be told: they would reveal a real site's class mix."""
    max_weight: float = 1e6
    """Largest entry of a payload."""
    secrets: Callable[[str, int], KeptSecrets] | None = None
    """Where a client's secrets of a sum are kept, if the run has sums only."""

    @property
    def noise(self) -> float:
        """z of the noise on each update as it is accounted for; 0 if none is added."""
        return self.privacy.counted if self.privacy.is_on else 0.0


def train_jobs(
    ready: Ready,
    head: Mapping[str, Any],
    arrays: Arrays,
    memory_of: Callable[[str, int], ClientMemory],
    charge: Callable[[], None] = lambda: None,
) -> Answers:
    """Answer for every client that a message names; ``charge`` is called before one trains, and may refuse it."""
    run, round = run_name(head), int(head["round"])
    answers: Answers = []
    for job in head["jobs"]:
        client = int(job["client"])
        try:
            if not ready.serves(client):
                raise FedfewError("E417", "client", f"{client} is not a client of this site")
            payload, sites = unpack(job["tensors"], arrays), ready.sites
            secrets = ready.secrets(run, client) if ready.secrets else None
            sites.secrets.clear()
            if secrets:
                sites.secrets[client] = secrets.read()
            if trains := sites.trains(round, client, payload):
                _check(ready, payload)
                charge()
            update = _train(ready, round, client, payload, memory_of(run, client) if trains else None)
            if secrets:  # before the answer leaves, so that the site never gives another one
                secrets.write(sites.secrets[client])
        except FedfewError as fault:
            _log.error("client %d: %s", client, fault)
            answers.append({"client": client, "code": fault_code(fault)})
            continue
        answers.append({"client": client} | update)
    return answers


def _check(ready: Ready, payload: Payload) -> None:
    """E419 for a payload that no honest server sends."""
    layout, algorithm = ready.sites.network.layout, ready.sites.algorithm
    check_payload(payload, algorithm.reply_schema(layout), layout, ready.max_weight)
    if why := algorithm.refused(payload, layout):
        raise FedfewError("E419", "payload", why)


def _train(ready: Ready, round: int, client: int, payload: Payload, memory: ClientMemory | None) -> dict[str, Any]:
    """One client's answer; if it trains, with its memory as it was before this round, whatever was tried since."""
    sites = ready.sites
    sites.memory.clear()
    if memory and (before := memory.before(round)):
        sites.memory[client] = before
    update = sites.train(round, client, payload)
    if not isinstance(update, ClientUpdate):
        refused = update.code == Refusal.SUM_REFUSED
        raise FedfewError(update.code if refused else "E408", f"round {round + 1}", update.reason)
    if memory:
        memory.write(round, sites.memory.get(client, {}))
    metrics = {
        name: value
        for name, value in update.metrics.items()
        if ready.trial or (name != "right" and not name.startswith("class/"))
    }
    return {"examples": update.examples, "metrics": metrics, "tensors": dict(update.reply)}


def packed(answers: Answers) -> tuple[Answers, dict[str, memoryview]]:
    """The answers with an index in the place of their tensors, and the arrays to send."""
    index, arrays = pack({str(one["client"]): one["tensors"] for one in answers if "tensors" in one})
    return [one | {"tensors": index[str(one["client"])]} if "tensors" in one else one for one in answers], arrays


def guarded(answer: Callable[[], tuple[dict[str, Any], Arrays]]) -> tuple[dict[str, Any], Arrays]:
    """A reply's head and arrays, or a code: the reason of a failure stays here."""
    try:
        return answer()
    except FedfewError as fault:
        _log.error("a message is refused: %s", fault)
        return {"code": fault_code(fault)}, {}
    except Exception:  # a malformed message, or a bug
        _log.exception("a message could not be answered")
        return {"code": "E408"}, {}


def fault_code(fault: FedfewError) -> str:
    """The code that leaves the site after a fault, from a fixed list; never the fault's text."""
    if fault.code == "E417" and f"E417.{fault.where}" in MEANINGS:
        return f"E417.{fault.where}"
    if fault.code in MEANINGS:
        return fault.code
    if fault.code.startswith("E3"):  # its disk is full, or broken
        return "E408"
    return "E417.data" if fault.code.startswith("E2") or fault.code in ("E417", "E509") else "E417.config"


def run_name(head: Mapping[str, Any]) -> str:
    """The run of a message, safe as a part of a file name."""
    run = head.get("run")
    if not isinstance(run, str) or not (run.isascii() and run.isalnum()) or len(run) > 64:
        raise FedfewError("E419", "run", "has an invalid name")
    return run
