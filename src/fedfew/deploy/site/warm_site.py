"""A site's warm process: images, network and torch loaded once; answers the ClientApp over a Unix socket.

Whatever leaves is first written to the ledger; clients' memories and the reasons for failures stay at the site.
"""

import hashlib
import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.types import ClientUpdate, Payload
from fedfew.deploy.messages.frames import Arrays, FrameError, encode, receive, send_pieces
from fedfew.deploy.messages.heads import MEANINGS
from fedfew.deploy.messages.tensors import pack, unpack
from fedfew.deploy.site.budget import PrivacyBudget
from fedfew.deploy.site.last_answer import Answers, LastAnswer
from fedfew.deploy.site.ledger import Ledger
from fedfew.deploy.site.memory import Memory
from fedfew.deploy.site.payload import check_payload
from fedfew.runtime.site import Sites

ENDED = "ended"
"""File in the site's folder with the name of the last run that ended."""
_PATIENCE = 120.0
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

    def __init__(self, part: str, place: str, what: str, remedy: str | None = None) -> None:
        super().__init__("E417", place, what, remedy)
        self.part = part


@dataclass(eq=False)
class WarmSite:
    """Answers messages; ``build`` makes the site for the config that a server sends, once."""

    number: int
    build: Callable[[Mapping[str, Any]], Ready]
    state: Path
    memory: Path | None = None
    """Where clients' memories are kept; None: in ``state``."""
    budget: PrivacyBudget | None = None
    """The privacy budget of a real site; a trial has none."""
    _ready: tuple[str, Ready] | None = None
    _newest: dict[str, int] = field(default_factory=dict)
    _last: tuple[str, dict[str, Any], dict[str, memoryview]] | None = None

    def answer(self, head: Mapping[str, Any], parts: Arrays) -> tuple[dict[str, Any], Arrays]:
        """The reply to one message."""
        if head.get("kind") == "hello":
            return {"site": self.number}, {}
        if head.get("kind") == "over":
            run = _name(head["run"])
            (self.state / ENDED).write_text(run, "utf-8")
            _log.info("run %s is over", run)
            return {"site": self.number}, {}
        run, round = _name(head["run"]), int(head["round"])
        reply: dict[str, Any] = {"run": run, "round": round, "site": self.number}
        clients = [int(job["client"]) for job in head["jobs"]]
        if len(set(clients)) != len(clients):
            raise FedfewError("E419", "jobs", "name a client twice")
        if round < self._newest.get(run, 0) - 1:
            _log.error("round %d of run %s ended long ago", round + 1, run)
            return reply | {"answers": [{"client": client, "code": "E408"} for client in clients]}, {}
        self._newest = {run: round}
        try:
            ready = self._built(head)
        except FedfewError as fault:
            _log.error("run %s is refused: %s", run, fault)
            return reply | {"answers": [{"client": client, "code": fault_code(fault)} for client in clients]}, {}
        message = f"{_fingerprint(head, parts)}/{ready.images}"
        if self._last is None or self._last[0] != message:
            reply["answers"], parts_up = self._answers(ready, head, parts, message)
            self._last = (message, reply, parts_up)
        return self._last[1], self._last[2]  # asked again: the first answer was lost

    def _answers(
        self, ready: Ready, head: Mapping[str, Any], parts: Arrays, message: str
    ) -> tuple[list[dict[str, Any]], dict[str, memoryview]]:
        """The clients' answers; noisy ones are stored before they leave, and repeated rather than drawn again."""
        stored = LastAnswer(self.state / "answer.safetensors")
        known = stored.read(message) if ready.noise else None
        answers, replies = known or self._train_all(ready, head, parts)
        if ready.noise and replies and known is None:
            stored.write(message, answers, replies)
        index, parts_up = pack(replies)
        for answer in answers:
            if str(answer["client"]) in index:
                answer["tensors"] = index[str(answer["client"])]
        return answers, parts_up

    def _built(self, head: Mapping[str, Any]) -> Ready:
        key = json.dumps([head["config"], head["about"]], sort_keys=True)
        if self._ready is None or self._ready[0] != key:
            self._ready = None  # free the old one first
            self._ready = (key, self.build(head))
        return self._ready[1]

    def _train_all(self, ready: Ready, head: Mapping[str, Any], parts: Arrays) -> Answers:
        answers: list[dict[str, Any]] = []
        replies: dict[str, dict[str, Tensor]] = {}
        for job in head["jobs"]:
            client = int(job["client"])
            try:
                if not ready.serves(client):
                    raise RefusedError("client", "client", f"{client} is not a client of this site")
                update = self._train(ready, head, client, unpack(job["tensors"], parts))
            except FedfewError as fault:
                _log.error("client %d: %s", client, fault)
                answers.append({"client": client, "code": fault_code(fault)})
                continue
            if isinstance(update, ClientUpdate):
                replies[str(client)] = dict(update.reply)
                metrics = self._reported(update.metrics)
                answers.append({"client": client, "examples": update.examples, "metrics": metrics})
            else:
                _log.error("client %d: %s %s", client, update.code, update.reason)
                answers.append({"client": client, "code": "E408"})
        return answers, replies

    def _reported(self, metrics: dict[str, float]) -> dict[str, float]:
        """A real site does not report how many pseudo-labels each class has."""
        if self.budget is None:
            return metrics
        return {name: value for name, value in metrics.items() if name != "right" and not name.startswith("class/")}

    def _train(self, ready: Ready, head: Mapping[str, Any], client: int, payload: Payload) -> Any:
        """One client's round, with its memory as it was before this round, whatever was tried since."""
        run, round, sites = _name(head["run"]), int(head["round"]), ready.sites
        layout = sites.network.layout
        check_payload(payload, sites.algorithm.reply_schema(layout), layout)
        if self.budget is not None:
            self.budget.charge(ready.noise)
        memory = Memory(self.memory or self.state / "memory", run, client)
        sites.memory.clear()
        if before := memory.before(round):
            sites.memory[client] = before
        update = sites.train(round, client, payload)
        if isinstance(update, ClientUpdate):
            memory.write(round, sites.memory.get(client, {}))
        return update


def fault_code(fault: FedfewError) -> str:
    """The code that leaves the site after a fault, from a fixed list; never the fault's text."""
    if isinstance(fault, RefusedError):
        return f"E417.{fault.part}"
    if fault.code == "E417" and f"E417.{fault.place}" in MEANINGS:
        return f"E417.{fault.place}"
    if fault.code in MEANINGS:
        return fault.code
    return "E417.data" if fault.code.startswith("E2") or fault.code in ("E417", "E509") else "E417.config"


def _name(run: object) -> str:
    """A run's name as part of a file name."""
    if not isinstance(run, str) or not (run.isascii() and run.isalnum()) or len(run) > 64:
        raise FedfewError("E419", "run", "has an invalid name")
    return run


def serve(site: WarmSite, listener: socket.socket, limit: int) -> None:
    """Answer one connection after another; a broken or malformed one does not disturb the others."""
    ledger = Ledger(site.state / "ledger.jsonl")
    while True:
        end, _ = listener.accept()
        with end:
            end.settimeout(_PATIENCE)
            try:
                head, parts = receive(end, limit)
                try:
                    reply, content = site.answer(head, parts)
                except FedfewError as fault:
                    _log.error("a message is refused: %s", fault)
                    reply, content = {"code": fault_code(fault)}, {}
                except Exception:  # a malformed message, or a bug: the reason stays here
                    _log.exception("a message could not be answered")
                    reply, content = {"code": "E408"}, {}
                frame = encode(reply, content)
                ledger.write(head, reply, frame)
                send_pieces(end, frame)
            except (FrameError, OSError) as error:  # what cannot be recorded does not leave
                _log.error("a connection broke: %s", error)


def _fingerprint(head: Mapping[str, Any], parts: Arrays) -> str:
    """A hash of what a message asks for."""
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, part in parts.items():
        digest.update(name.encode())
        digest.update(part)
    return digest.hexdigest()
