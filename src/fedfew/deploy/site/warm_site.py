"""A site's warm process: images, network and torch loaded once; answers the ClientApp over a Unix socket.

Whatever leaves is first written to the ledger; clients' memories and the reasons for failures stay at the site. It
never sees a label, because there is no way to name them.
"""

import contextlib
import json
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedfew.core.environment import keep_freed_memory
from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.frames import Arrays, FrameError, encode, hash_of, receive, send
from fedfew.deploy.messages.heads import SITE_LIMIT, ContentError, parse_head, plan_hash
from fedfew.deploy.site.agreement import Agreement
from fedfew.deploy.site.answers import Answers, Ready, fault_code, guarded, packed, run_name, train_jobs
from fedfew.deploy.site.build import real_site, trial_site
from fedfew.deploy.site.files import Memory, PrivacyBudget, SumSecrets, given_once
from fedfew.deploy.site.ledger import Ledger
from fedfew.deploy.site.limits import SiteTerms, bound_memory, count_answer
from fedfew.deploy.versions import versions

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
    terms: SiteTerms | None = None
    """A real site's limits; a trial has none."""
    _ready: tuple[str, Ready] | None = None
    _newest: dict[str, int] = field(default_factory=dict)
    _last: tuple[str, dict[str, Any], dict[str, memoryview]] | None = None

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.state, asdict(self.terms) if self.terms else {})

    def answer(self, head: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """The reply to one message."""
        if head.get("kind") == "hello":
            return {"site": self.number}, {}
        run = run_name(head)
        if head.get("kind") == "over":
            (self.state / ENDED).write_text(run, "utf-8")
            SumSecrets.forget(self.state, run)
            _log.info("run %s is over", run)
            return {"site": self.number}, {}
        if head.get("kind") == "ask":
            return self._agree(head), {}
        round, clients = int(head["round"]), [int(job["client"]) for job in head["jobs"]]
        reply: dict[str, Any] = {"run": run, "round": round, "site": self.number}
        if len(set(clients)) != len(clients):
            raise FedfewError("E419", "jobs", "name a client twice")
        try:
            if round < self._newest.get(run, 0) - 1:
                raise FedfewError("E408", f"round {round + 1}", "ended long ago")
            self._newest = {run: round}
            if self.terms:
                Agreement(self.state, self.terms.accept).check(head)
            ready = self._built(head)
        except FedfewError as fault:
            _log.error("run %s is refused: %s", run, fault)
            return reply | {"answers": [{"client": client, "code": fault_code(fault)} for client in clients]}, {}
        message = f"{hash_of(head, arrays)}/{ready.images}"
        if self._last is None or self._last[0] != message:
            reply["answers"], sent = packed(self._answers(ready, head, arrays, message))
            self._last = (message, reply, sent)
        return self._last[1], self._last[2]  # asked again: the first answer was lost

    def _agree(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The site's answer to a run that asks for it; a code says beforehand that it could not train."""
        agreement = Agreement(self.state, self.terms.accept if self.terms else "all")
        ready, code = None, {}
        try:
            ready = self._built(head)
        except FedfewError as fault:
            _log.error("run %s does not fit: %s", run_name(head), fault)
            code = {"code": fault_code(fault)}
        agreement.show(head, ready, self.terms.delta if self.terms else 1e-5)
        plan = plan_hash(head)
        about = {"site": self.number, "plan": plan, "answer": agreement.answer(plan), "versions": versions()}
        _log.info("run %s asks for plan %s: %s", run_name(head), plan[:12], about["answer"])
        return about | code

    def _answers(self, ready: Ready, head: Mapping[str, Any], arrays: Arrays, message: str) -> Answers:
        """The clients' answers; noisy ones are stored before they leave, and repeated rather than drawn again."""
        charge = partial(self._charge, ready, plan_hash(head))
        make = partial(train_jobs, ready, head, arrays, partial(Memory, self.memory), charge)
        return make() if ready.secrets or not ready.noise else given_once(self.state, message, make)  # sums keep theirs

    def _charge(self, ready: Ready, plan: str) -> None:
        """Count an answer before it is made; raises if the site gives no more."""
        if self.terms:
            count_answer(self.state / "answers.json", plan, self.terms.max_rounds)
        if self.budget:
            self.budget.charge(ready.privacy)

    def _built(self, head: Mapping[str, Any]) -> Ready:
        key = plan_hash(head)
        if self._ready is None or self._ready[0] != key:
            self._ready = None  # free the old one first
            self._ready = (key, self.build(head))
        return self._ready[1]


def serve(site: WarmSite, listener: socket.socket) -> None:
    """Answer one connection after another; a broken or malformed one does not disturb the others."""
    while True:
        end, _ = listener.accept()
        with end:
            end.settimeout(_PATIENCE)
            try:
                _exchange(site, end)
            except (FrameError, FedfewError) as error:  # what cannot be recorded does not leave
                _log.error("a connection broke: %s", error)


def _exchange(site: WarmSite, end: socket.socket) -> None:
    text, arrays = receive(end)
    head: dict[str, Any] = {}
    with contextlib.suppress(ContentError):
        head = parse_head(text, SITE_LIMIT)
    site.ledger.received(head, text, arrays)
    reply, sent = guarded(lambda: site.answer(head or parse_head(text, SITE_LIMIT), arrays))
    frame = encode(json.dumps(reply), sent)
    site.ledger.sent(head, reply, frame)
    send(end, frame)


def listen(path: str) -> socket.socket:
    """A listening Unix socket."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    return listener


def main(path: str, state: Path, memory: Path, number: int, sites: int, data: str, terms: SiteTerms) -> None:
    """Listen at ``path`` and serve until the process guard ends this process; without ``data`` it is a trial."""
    logging.basicConfig(format="%(name)s: %(message)s")  # the process guard adds the time
    logging.getLogger("fedfew").setLevel(logging.DEBUG)  # training errors are logged here and nowhere else
    torch.set_num_threads(1)
    keep_freed_memory()
    state.mkdir(parents=True, exist_ok=True)
    build = real_site(number, Path(data), terms, state) if data else trial_site(number, sites, terms, state)
    if data:
        bound_memory(terms.max_memory)
    budget = PrivacyBudget(state / "privacy.json", terms.max_epsilon, terms.delta, terms.unit) if data else None
    serve(WarmSite(number, build, state, memory, budget, terms if data else None), listen(path))


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    main(
        **order | {"state": Path(order["state"]), "memory": Path(order["memory"]), "terms": SiteTerms(**order["terms"])}
    )
