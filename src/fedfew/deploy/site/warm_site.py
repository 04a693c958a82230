"""A site's warm process: images, network and torch loaded once; answers the ClientApp over a Unix socket.

Whatever leaves is first written to the ledger; clients' memories and the reasons for failures stay at the site.
"""

import hashlib
import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.frames import Arrays, FrameError, encode, receive, send_pieces
from fedfew.deploy.site.answers import Ready, fault_code, run_name, train_jobs, with_tensors, without_class_counts
from fedfew.deploy.site.budget import PrivacyBudget
from fedfew.deploy.site.last_answer import LastAnswer
from fedfew.deploy.site.ledger import Ledger
from fedfew.deploy.site.memory import Memory

ENDED = "ended"
"""File in the site's folder with the name of the last run that ended."""
_PATIENCE = 120.0
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class WarmSite:
    """Answers messages; ``build`` makes the site for the config that a server sends, once."""

    number: int
    build: Callable[[Mapping[str, Any]], Ready]
    state: Path
    memory: Path
    """Folder of the clients' memories."""
    budget: PrivacyBudget | None = None
    """The privacy budget of a real site; a trial has none."""
    _ready: tuple[str, Ready] | None = None
    _newest: dict[str, int] = field(default_factory=dict)
    _last: tuple[str, dict[str, Any], dict[str, memoryview]] | None = None

    def answer(self, head: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """The reply to one message."""
        if head.get("kind") == "hello":
            return {"site": self.number}, {}
        run = run_name(head)
        if head.get("kind") == "over":
            (self.state / ENDED).write_text(run, "utf-8")
            _log.info("run %s is over", run)
            return {"site": self.number}, {}
        round, clients = int(head["round"]), [int(job["client"]) for job in head["jobs"]]
        reply: dict[str, Any] = {"run": run, "round": round, "site": self.number}
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
        message = f"{_fingerprint(head, arrays)}/{ready.images}"
        if self._last is None or self._last[0] != message:
            reply["answers"], sent = self._answers(ready, head, arrays, message)
            self._last = (message, reply, sent)
        return self._last[1], self._last[2]  # asked again: the first answer was lost

    def _answers(
        self, ready: Ready, head: Mapping[str, Any], arrays: Arrays, message: str
    ) -> tuple[list[dict[str, Any]], dict[str, memoryview]]:
        """The clients' answers; noisy ones are stored before they leave, and repeated rather than drawn again."""
        stored = LastAnswer(self.state / "answer.safetensors")
        known = stored.read(message) if ready.noise else None
        answers, replies = known or self._train(ready, head, arrays)
        if ready.noise and replies and known is None:
            stored.write(message, answers, replies)
        return with_tensors((answers, replies))

    def _train(self, ready: Ready, head: Mapping[str, Any], arrays: Arrays) -> Any:
        memory = partial(Memory, self.memory)
        if self.budget is None:
            return train_jobs(ready, head, arrays, memory)
        answers, replies = train_jobs(ready, head, arrays, memory, partial(self.budget.charge, ready.noise))
        without_class_counts(answers)
        return answers, replies

    def _built(self, head: Mapping[str, Any]) -> Ready:
        key = json.dumps([head["config"], head["about"]], sort_keys=True)
        if self._ready is None or self._ready[0] != key:
            self._ready = None  # free the old one first
            self._ready = (key, self.build(head))
        return self._ready[1]


def serve(site: WarmSite, listener: socket.socket, limit: int) -> None:
    """Answer one connection after another; a broken or malformed one does not disturb the others."""
    ledger = Ledger(site.state / "ledger.jsonl")
    while True:
        end, _ = listener.accept()
        with end:
            end.settimeout(_PATIENCE)
            try:
                head, arrays = receive(end, limit)
                try:
                    reply, content = site.answer(head, arrays)
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


def _fingerprint(head: Mapping[str, Any], arrays: Arrays) -> str:
    """A hash of what a message asks for."""
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, array in arrays.items():
        digest.update(name.encode())
        digest.update(array)
    return digest.hexdigest()
