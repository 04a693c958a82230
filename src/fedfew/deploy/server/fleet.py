"""The fleet of sites on Flower's Grid: the same rounds, payloads and replies as in one process.

A site serves the clients k with k mod S = its number; in a real network there are as many clients as sites, in a trial
on one machine a site may serve several. One message per site and round carries what all its sampled clients need.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import Any, Protocol

from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.layout import Payload, Vector, nbytes
from fedfew.core.types import ClientUpdate, Missing, Scores, Scoring
from fedfew.deploy.messages.answers import read_answers
from fedfew.deploy.messages.heads import ContentError, head_limit
from fedfew.deploy.messages.post import Post
from fedfew.deploy.messages.pull import Pulled
from fedfew.deploy.messages.records import as_array, from_content, to_content
from fedfew.deploy.messages.tensors import pack
from fedfew.deploy.server.members import Attendance, Membership, Timeouts

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


class MemoryStore(Protocol):
    """Clients' memories at sites that are on this machine."""

    def read(self) -> Memories: ...

    def replace(self, memory: Mapping[int, Mapping[str, Tensor]]) -> None: ...


@dataclass(eq=False)
class SiteMessage:
    """The message to one site in a round."""

    site: int
    clients: list[int]
    content: RecordDict
    size: int
    """Bytes of its tensors."""
    posted: bool = False
    tries: int = 0
    since: float = 0.0
    """When it was last posted."""


class GridFleet:
    """Trains clients at the nodes of a Grid, with deadlines of its own."""

    def __init__(
        self,
        grid: Grid,
        members: Membership,
        description: Mapping[str, Any],
        timeouts: Timeouts,
        score: Callable[[Vector, Vector | None], Scores],
        limit: int,
        memory: MemoryStore | None = None,
    ) -> None:
        """``description``: the fields of every message that say what is trained; ``limit``: bytes of a reply."""
        self._post, self._members, self._timeouts = Post(grid, limit), members, timeouts
        self._description, self._score, self._memory = dict(description), score, memory
        self._attendance = Attendance(self._post, members)
        self._late: dict[str, tuple[int, list[int]]] = {}
        self._traffic = {"down": 0, "up": 0, "messages": 0}

    def online(self) -> list[int]:
        """The clients whose sites can be reached, sorted; waits for as many as a round needs, then raises E503."""
        return self._attendance.wait(self._timeouts)

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they arrive; those missing at the deadline are reported as missing, later ones as late."""
        self._traffic = {"down": 0, "up": 0, "messages": 0}
        limit = self._timeouts.timeout or NO_LIMIT
        deadline = monotonic() + limit
        open_, ids = self._write(round, payloads), dict[str, SiteMessage]()
        while open_ and monotonic() < deadline:
            yield from self._send(round, open_, ids, limit)
            clients = {id_: len(message.clients) for id_, message in ids.items()}
            idle = True
            for reply in self._post.pull(clients | {id_: len(late) for id_, (_, late) in self._late.items()}):
                yield from self._take(round, reply, open_, ids)
                idle = False
            for message in open_.values():
                if message.tries == 1 and monotonic() > message.since + limit / 2:
                    message.posted = False  # Flower hands a message out once; on a bad line it may not have arrived
            if open_ and idle:
                sleep(_POLL)
        for message in open_.values():
            yield from (Missing(k, Refusal.NO_ANSWER, f"no answer within {limit:g} s") for k in message.clients)
        self._late |= {id_: (round, message.clients) for id_, message in ids.items()}

    def _write(self, round: int, payloads: Mapping[int, Payload]) -> dict[int, SiteMessage]:
        """The message to each site; a vector that goes to several is copied and hashed once."""
        index, raw = pack({str(k): payload for k, payload in payloads.items()})
        arrays = {name: as_array(content) for name, content in raw.items()}
        messages = {}
        for site in sorted({self._members.site_of(k) for k in payloads}):
            clients = [k for k in payloads if self._members.site_of(k) == site]
            jobs = [{"client": k, "tensors": index[str(k)]} for k in clients]
            head = {"kind": "train", "round": round, "jobs": jobs} | self._description
            named = {k: {name: entry[0] for name, entry in index[str(k)].items()} for k in clients}
            used = {array: arrays[array] for k in clients for array in named[k].values() if array in arrays}
            small = [payloads[k][name] for k in clients for name, array in named[k].items() if array not in arrays]
            size = sum(len(raw[array]) for array in used) + sum(tensor.nbytes for tensor in small)
            messages[site] = SiteMessage(site, clients, to_content(head, used), size)
        return messages

    def _send(
        self, round: int, open_: dict[int, SiteMessage], ids: dict[str, SiteMessage], limit: float
    ) -> Iterator[Missing]:
        """Send what has not been sent."""
        waiting = [message for message in open_.values() if not message.posted]
        if not waiting:
            return
        self._attendance.look()
        for message in [message for message in waiting if message.site not in self._attendance.nodes]:
            waiting.remove(message)
            if message in ids.values():  # was posted before, and may still be answered
                message.posted, message.since = True, monotonic()
                continue
            del open_[message.site]
            reason = f"site {self._members.sites[message.site]} is offline"
            yield from (Missing(k, Refusal.UNREACHABLE, reason) for k in message.clients)
        nodes = [self._attendance.nodes[message.site] for message in waiting]
        ttl = limit + min(limit, _GRACE)
        new = self._post.push([message.content for message in waiting], nodes, ttl, f"{round}")
        for message, id_ in zip(waiting, new, strict=True):
            self._traffic["down"] += message.size
            self._traffic["messages"] += 1
            message.posted, message.tries, message.since = True, message.tries + 1, monotonic()
            if id_:
                ids[id_] = message
            else:
                del open_[message.site]
                yield from (
                    Missing(k, Refusal.UNREACHABLE, "Flower did not accept the message") for k in message.clients
                )

    def _take(
        self, round: int, reply: Pulled, open_: dict[int, SiteMessage], ids: dict[str, SiteMessage]
    ) -> Iterator[ClientUpdate | Missing]:
        """Interpret a reply."""
        if reply.to in self._late:
            earlier, clients = self._late.pop(reply.to)
            if not reply.error:
                yield from (
                    Missing(k, Refusal.LATE, f"answer to round {earlier + 1} came after its end") for k in clients
                )
            return
        message = ids.pop(reply.to, None)
        if message is None:
            return
        if message.site not in open_:
            yield from (Missing(k, Refusal.TWICE, f"answered round {round + 1} again") for k in message.clients)
            return
        if reply.error:
            code, reason = _FAULTS.get(reply.error, _FAILED)
            if code == Refusal.DIED and message.tries < 2:
                message.posted = False  # only Flower's process for it died; the site itself may have the answer
                return
            del open_[message.site]
            yield from (Missing(k, code, reason) for k in message.clients)
            return
        del open_[message.site]
        for answer in self._read(round, reply, message.clients):
            if isinstance(answer, ClientUpdate):
                self._traffic["up"] += nbytes(answer.reply)
            yield answer

    def _read(self, round: int, reply: Pulled, clients: list[int]) -> Iterator[ClientUpdate | Missing]:
        """The answers of a site's clients."""
        try:
            if reply.refused is not None:
                raise reply.refused
            assert reply.content is not None
            text, arrays = from_content(reply.content, self._post.limit * len(clients), head_limit(len(clients)))
        except ContentError as error:
            yield from (Missing(k, error.code, str(error)) for k in clients)
            return
        yield from read_answers(self._description["run"], round, clients, text, arrays, self._post.limit)

    def traffic(self) -> dict[str, int]:
        """Bytes of tensors that actually travelled in the last round."""
        return dict(self._traffic)

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        """Scored here: the server has the test images."""
        return partial(self._score, omega, clients)

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
        content = to_content({"kind": "over", "run": self._description["run"]}, {})
        nodes = list(self._attendance.nodes.values())
        ids = self._post.push([content] * len(nodes), nodes, _GRACE, "over")
        waiting, deadline = dict.fromkeys((id_ for id_ in ids if id_), 0), monotonic() + _FAREWELL
        while waiting and monotonic() < deadline:
            for reply in self._post.pull(dict(waiting)):
                waiting.pop(reply.to, None)
            sleep(_POLL if waiting else 0)

    def close(self) -> None:
        """Nothing to end: the Grid belongs to the ServerApp."""
