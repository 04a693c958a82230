"""The fleet of sites on Flower's Grid: the same rounds, payloads and replies as in one process.

A site serves the clients k with k mod S = its number; in a real network there are as many clients as sites, in a trial
on one machine a site may serve several. One message per site and round carries what all its sampled clients need.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedfew.config.tree import FleetSettings
from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.layout import Payload, Vector, nbytes
from fedfew.core.types import ClientUpdate, Fleet, Missing, Scoring
from fedfew.deploy.messages.answers import read_answers
from fedfew.deploy.messages.post import Post, Pulled
from fedfew.deploy.messages.records import as_array, to_content
from fedfew.deploy.messages.tensors import pack
from fedfew.deploy.server.members import Agreements, Attendance, Membership
from fedfew.deploy.site.files import TrialMemory
from fedfew.runtime.site import Sites

if TYPE_CHECKING:  # where a run has secure sums
    from fedfew.secure.identity import Identity

NO_LIMIT = 3600.0
"""Longest duration of a round in seconds if fleet.timeout is 0: a network needs a limit."""
_GRACE = 60.0
_POLL = 0.2
_FAREWELL = 10.0
_FAULTS = {
    3: (Refusal.UNREACHABLE, "the message was not fetched in time"),
    4: (Refusal.UNREACHABLE, "its reply did not arrive completely"),
    5: (Refusal.UNREACHABLE, "its site went offline"),
    8: (Refusal.DIED, "Flower's process for the message ended"),
}
"""Flower's error code → ours. Its text is not passed on: a site could have written it."""
_FAILED = (Refusal.FAILED, "Flower could not run the site's app; the site's log says why")
Memories = dict[int, dict[str, Tensor]]


@dataclass(eq=False)
class SiteMessage:
    """The message to one site in a round."""

    round: int
    site: int
    clients: list[int]
    content: RecordDict
    size: int
    """Bytes of its tensors."""
    posted: bool = False
    tries: int = 0
    since: float = 0.0
    """When it was last posted."""

    def missing(self, code: Refusal, reason: str) -> Iterator[Missing]:
        """No update from any of its clients."""
        return (Missing(client, code, reason) for client in self.clients)


class GridFleet(Fleet):
    """Trains clients at the nodes of a Grid, with deadlines of its own."""

    def __init__(
        self,
        grid: Grid,
        members: Membership,
        description: Mapping[str, Any],
        settings: FleetSettings,
        sites: Sites,
        limit: int,
        memory: TrialMemory | None = None,
        note: Callable[[int, Mapping[str, Any]], None] | None = None,
    ) -> None:
        """``description``: the fields of every message that say what is trained; ``limit``: bytes of a reply.

        ``sites`` scores models; ``memory`` is that of clients on this machine. With ``note`` each site is asked whether
        it agrees to the run, and ``note`` is told the answers.
        """
        self._post, self._members, self._settings = Post(grid, limit), members, settings
        self._description, self._sites, self._memory = dict(description), sites, memory
        self._agreements = Agreements(self._description, note) if note else None
        self._attendance = Attendance(self._post, members, self._agreements)
        self._asked: dict[str, SiteMessage] = {}
        """Messages without a reply, of earlier rounds too, by their ids; one that was posted again has two."""
        self._traffic = {"down": 0, "up": 0, "messages": 0}

    @property
    def identity(self) -> "Identity | None":
        """Who the sites are to each other, in secure sums."""
        return self._members.identity

    def online(self) -> list[int]:
        """The clients whose sites can be reached, sorted; waits for as many as a round needs, then raises E503."""
        return self._attendance.wait(self._settings)

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they arrive; those missing at the deadline are reported as missing, later ones as late."""
        self._traffic = {"down": 0, "up": 0, "messages": 0}
        limit = self._settings.timeout or NO_LIMIT
        deadline = monotonic() + limit
        open_ = self._write(round, payloads)
        while open_ and monotonic() < deadline:
            yield from self._send(round, open_, limit)
            idle = True
            for reply in self._post.pull({id_: len(message.clients) for id_, message in self._asked.items()}):
                yield from self._take(round, reply, open_)
                idle = False
            for message in open_.values():
                if message.tries == 1 and monotonic() > message.since + limit / 2:
                    message.posted = False  # Flower hands a message out once; on a bad line it may not have arrived
            if open_ and idle:
                sleep(_POLL)
        for message in open_.values():
            yield from message.missing(Refusal.NO_ANSWER, f"no answer within {limit:g} s")

    def _write(self, round: int, payloads: Mapping[int, Payload]) -> dict[int, SiteMessage]:
        """The message to each site; a vector that goes to several is copied and hashed once."""
        index, raw = pack({str(k): payload for k, payload in payloads.items()})
        arrays = {name: as_array(content) for name, content in raw.items()}
        messages = {}
        for site in sorted({self._members.site_of(k) for k in payloads}):
            clients = [k for k in payloads if self._members.site_of(k) == site]
            jobs = [{"client": k, "tensors": index[str(k)]} for k in clients]
            head = {"kind": "train", "round": round, "jobs": jobs} | self._description
            named = [(entry[0], payloads[k][name]) for k in clients for name, entry in index[str(k)].items()]
            used = {array: arrays[array] for array, _ in named if array in arrays}
            small = sum(tensor.nbytes for array, tensor in named if array not in arrays)
            size = small + sum(len(raw[array]) for array in used)
            messages[site] = SiteMessage(round, site, clients, to_content(json.dumps(head), used), size)
        return messages

    def _send(self, round: int, open_: dict[int, SiteMessage], limit: float) -> Iterator[Missing]:
        """Send what has not been sent."""
        waiting = [message for message in open_.values() if not message.posted]
        if not waiting:
            return
        self._attendance.look()
        for message in [message for message in waiting if message.site not in self._attendance.nodes]:
            waiting.remove(message)
            if message in self._asked.values():  # was posted before, and may still be answered
                message.posted, message.since = True, monotonic()
                continue
            del open_[message.site]
            yield from message.missing(Refusal.UNREACHABLE, f"site {self._members.sites[message.site]} is offline")
        nodes = [self._attendance.nodes[message.site] for message in waiting]
        ttl = limit + min(limit, _GRACE)
        ids = self._post.push([message.content for message in waiting], nodes, ttl, f"{round}")
        for message, id_ in zip(waiting, ids, strict=True):
            self._traffic["down"] += message.size
            self._traffic["messages"] += 1
            message.posted, message.tries, message.since = True, message.tries + 1, monotonic()
            if id_:
                self._asked[id_] = message
            else:
                del open_[message.site]
                yield from message.missing(Refusal.UNREACHABLE, "Flower did not accept the message")

    def _take(self, round: int, reply: Pulled, open_: dict[int, SiteMessage]) -> Iterator[ClientUpdate | Missing]:
        """Interpret a reply."""
        message = self._asked.pop(reply.to, None)
        if message is None:
            return
        if message.round != round:
            if not reply.error:
                yield from message.missing(Refusal.LATE, f"answer to round {message.round + 1} came after its end")
            return
        if open_.get(message.site) is not message:  # or of an earlier exchange of the round
            yield from message.missing(Refusal.TWICE, f"answered round {round + 1} again")
            return
        code, reason = _FAULTS.get(reply.error, _FAILED)
        if reply.error and code == Refusal.DIED and message.tries < 2:
            message.posted = False  # only Flower's process for it died; the site itself may have the answer
            return
        del open_[message.site]
        if reply.error:
            yield from message.missing(code, reason)
            return
        for answer in read_answers(self._description["run"], round, message.clients, reply, self._post.limit):
            if isinstance(answer, ClientUpdate):
                self._traffic["up"] += nbytes(answer.reply)
            elif answer.code == Refusal.NOT_AGREED and self._agreements:
                self._agreements.withdraw(message.site)
            yield answer

    def traffic(self) -> dict[str, int]:
        """Bytes of tensors that actually travelled in the last round."""
        return dict(self._traffic)

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        """Scored here: the server has the test images."""
        return partial(self._sites.score, omega, clients)

    def memory(self) -> Memories:
        """Clients' memories, where the sites are on this machine; otherwise they stay on the sites' disks."""
        return {} if self._memory is None else self._memory.read()

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """Give the clients their memories; a real site restores its own by the number of the round."""
        if self._memory is not None:
            self._memory.replace(memory)
        elif memory:
            reason = "its checkpoints hold clients' tensors, which cannot be moved to real sites"
            raise FedfewError("E113", "fleet.kind", reason, "Continue with fleet.kind = 'pool'")

    def end(self) -> None:
        """Inform the sites that are online that the run is over; waits briefly so that the messages can leave."""
        self._attendance.look()
        content = to_content(json.dumps({"kind": "over", "run": self._description["run"]}), {})
        nodes = list(self._attendance.nodes.values())
        ids = self._post.push([content] * len(nodes), nodes, _GRACE, "over")
        waiting, deadline = dict.fromkeys((id_ for id_ in ids if id_), 0), monotonic() + _FAREWELL
        while waiting and monotonic() < deadline:
            for reply in self._post.pull(dict(waiting)):
                waiting.pop(reply.to, None)
            sleep(_POLL if waiting else 0)
