"""A site's answers to the jobs of one message: each client trained with its memory, or a code that says why not.

The reasons for failures stay at the site.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.types import ClientUpdate, Missing
from fedfew.deploy.messages.frames import Arrays
from fedfew.deploy.messages.heads import MEANINGS
from fedfew.deploy.messages.tensors import pack, unpack
from fedfew.deploy.site.payload import check_payload
from fedfew.runtime.site import Sites

Answers = tuple[list[dict[str, Any]], dict[str, dict[str, Tensor]]]
"""One entry per client, and the tensors of each client that answered."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ready:
    """A site that is built for one config."""

    sites: Sites
    serves: Callable[[int], bool]
    """Whether this site serves a client."""
    noise: float = 0.0
    """z of the noise on each update; 0 if none is added."""
    images: str = ""
    """Hash of the site's images: a message that comes again after they changed is a new one."""


class RefusedError(FedfewError):
    """E417 with the part of the run that the site refuses; only that word leaves the site."""

    def __init__(self, part: str, where: str, reason: str, remedy: str | None = None) -> None:
        super().__init__("E417", where, reason, remedy)
        self.part = part


class ClientMemory(Protocol):
    """What one client remembers between the rounds of one run."""

    def before(self, round: int) -> dict[str, Tensor]: ...

    def write(self, round: int, tensors: Mapping[str, Tensor]) -> None: ...


def train_jobs(
    ready: Ready,
    head: Mapping[str, Any],
    arrays: Arrays,
    memory_of: Callable[[str, int], ClientMemory],
    charge: Callable[[], None] = lambda: None,
) -> Answers:
    """Train every client that a message names; ``charge`` is called before each, and may refuse it."""
    run, round = run_name(head), int(head["round"])
    answers: list[dict[str, Any]] = []
    replies: dict[str, dict[str, Tensor]] = {}
    for job in head["jobs"]:
        client = int(job["client"])
        try:
            if not ready.serves(client):
                raise RefusedError("client", "client", f"{client} is not a client of this site")
            payload = unpack(job["tensors"], arrays)
            layout = ready.sites.network.layout
            check_payload(payload, ready.sites.algorithm.reply_schema(layout), layout)
            charge()
            update = _train(ready.sites, round, client, payload, memory_of(run, client))
        except FedfewError as fault:
            _log.error("client %d: %s", client, fault)
            answers.append({"client": client, "code": fault_code(fault)})
            continue
        if isinstance(update, ClientUpdate):
            replies[str(client)] = dict(update.reply)
            answers.append({"client": client, "examples": update.examples, "metrics": update.metrics})
        else:
            _log.error("client %d: %s %s", client, update.code, update.reason)
            answers.append({"client": client, "code": "E408"})
    return answers, replies


def _train(sites: Sites, round: int, client: int, payload: Payload, memory: ClientMemory) -> ClientUpdate | Missing:
    """One client's round, with its memory as it was before this round, whatever was tried since."""
    sites.memory.clear()
    if before := memory.before(round):
        sites.memory[client] = before
    update = sites.train(round, client, payload)
    if isinstance(update, ClientUpdate):
        memory.write(round, sites.memory.get(client, {}))
    return update


def with_tensors(answers: Answers) -> tuple[list[dict[str, Any]], dict[str, memoryview]]:
    """The answers with an index of their tensors, and the arrays to send."""
    index, arrays = pack(answers[1])
    return [one | {"tensors": index[k]} if (k := str(one["client"])) in index else one for one in answers[0]], arrays


def without_class_counts(answers: list[dict[str, Any]]) -> None:
    """Take out how many pseudo-labels each class has: they would reveal a site's class mix."""
    for answer in answers:
        if "metrics" in answer:
            metrics = answer["metrics"].items()
            answer["metrics"] = {name: n for name, n in metrics if name != "right" and not name.startswith("class/")}


def fault_code(fault: FedfewError) -> str:
    """The code that leaves the site after a fault, from a fixed list; never the fault's text."""
    if isinstance(fault, RefusedError):
        return f"E417.{fault.part}"
    if fault.code == "E417" and f"E417.{fault.where}" in MEANINGS:
        return f"E417.{fault.where}"
    if fault.code in MEANINGS:
        return fault.code
    return "E417.data" if fault.code.startswith("E2") or fault.code in ("E417", "E509") else "E417.config"


def run_name(head: Mapping[str, Any]) -> str:
    """The run of a message, safe as a part of a file name."""
    run = head.get("run")
    if not isinstance(run, str) or not (run.isascii() and run.isalnum()) or len(run) > 64:
        raise FedfewError("E419", "run", "has an invalid name")
    return run
